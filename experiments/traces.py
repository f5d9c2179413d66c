"""What a recorded trace says of the operations of compiled programs."""

import collections
import os
import pathlib

import jax

# They last as long as what is in them, which is listed itself.
_OUTER = ('while', 'call', 'cond', 'conditional')


def operations(folder: str | os.PathLike) -> dict[str, float]:
  """Seconds of each operation, over all devices and threads, longest first.

  Args:
    folder: what was given to `jax.profiler.trace`. If it has several traces,
      the newest is read.

  Returns:
    seconds by the operation's name in the compiled program; empty if the trace
    of this backend does not name operations.
  """
  files = pathlib.Path(folder).rglob('*.xplane.pb')
  newest = max(files, key=lambda file: file.stat().st_mtime)
  seconds = collections.Counter()
  for plane in jax.profiler.ProfileData.from_file(str(newest)).planes:
    for line in plane.lines:
      for event in line.events:
        name = dict(event.stats).get('hlo_op')
        if name and name.partition('.')[0] not in _OUTER:
          seconds[name] += event.duration_ns / 1e9
  return dict(seconds.most_common())
