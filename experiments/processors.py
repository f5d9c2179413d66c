"""Which processors a process runs on, where several share a machine.

A process with some to itself is faster than one that competes with others for
all of them.
"""

from collections.abc import Collection
import contextlib
import os

_ONE_THREAD = '--xla_cpu_multi_thread_eigen=false'


def shares(count: int) -> list[tuple[int, ...]]:
  """Divides the processors of this process among `count` others.

  Returns:
    those of each, or nothing where processes cannot be tied to processors. If
    there are too few, each has one, which others have too.
  """
  if not hasattr(os, 'sched_getaffinity'):
    return [()] * count
  known = sorted(os.sched_getaffinity(0))
  return [tuple(known[i % len(known) :: count]) for i in range(count)]


def environment(share: Collection[int]) -> dict[str, str]:
  """Variables for a process that is to be pinned to its share."""
  if len(share) != 1:
    return {}
  flags = f'{os.environ.get("XLA_FLAGS", "")} {_ONE_THREAD}'
  return {'XLA_FLAGS': flags.strip()}


def pin(pid: int, share: Collection[int]) -> None:
  """Ties a process that has not started threads to its share, if it has any."""
  if share:
    with contextlib.suppress(ProcessLookupError):  # it has ended
      os.sched_setaffinity(pid, share)
