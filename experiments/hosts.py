"""The processes of a run: how they join, and what they tell each other.

Each process runs the whole training loop, with the workers whose devices it
has. All take the same decisions, because what they decide by is the same: the
config, the checkpoints of one directory, and what they have gathered. Only the
first writes. Where there is one process, nothing is sent and nothing is copied.

A process that fails ends at once. The others then wait for it in vain: whoever
started them ends them, as `experiments.launch` and the scripts in
`experiments/clusters` do.
"""

import atexit
from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import sys
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from experiments import errors
import signmomentum as sm

_T = TypeVar('_T')
_ADDRESS, _COUNT, _ID = VARIABLES = (
  'JAX_COORDINATOR_ADDRESS',
  'JAX_NUM_PROCESSES',
  'JAX_PROCESS_ID',
)


@contextlib.contextmanager
def joined(distributed: bool) -> Iterator[None]:
  """Joins the other processes, before anything uses a device.

  Args:
    distributed: False for a process on its own: then nothing is done. SLURM,
      Open MPI, Kubernetes and TPU pods are asked who the others are, unless the
      environment says it, in all three of `VARIABLES`.

  Raises:
    UserError: nothing says who the others are.
  """
  if not distributed:
    yield
    return
  # It would take SIGTERM, which `interrupts` listens to.
  jax.config.update('jax_enable_preemption_service', False)
  _initialize()
  try:
    yield
  except BaseException:
    # At its end a process waits for the others, and they for this one. What is
    # registered last is called first, after the error has been shown.
    atexit.register(_leave)
    raise


def environment(address: str, count: int, index: int) -> dict[str, str]:
  """Variables for one of several processes, from which `joined` knows them all.

  Args:
    address: of the first one, with a free port.
    count: how many there are.
    index: which one it is.
  """
  values = (address, str(count), str(index))
  return dict(zip(VARIABLES, values, strict=True))


def one_cpu_device() -> dict[str, str]:
  """Variables for another process on this machine, which has one CPU device.

  They are those of this process, but for proxies: these do not know the way
  from one process to another.
  """
  kept = {
    name: value
    for name, value in os.environ.items()
    if not name.lower().endswith('_proxy')
  }
  return kept | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '1'}


def first() -> bool:
  """Whether this is the process that writes and prints."""
  return jax.process_index() == 0


def say(text: str) -> None:
  """Prints, once and not by each process."""
  if first():
    print(text)


def only_first(make: Callable[[], _T]) -> _T:
  """Makes a thing that only the first process has.

  Args:
    make: makes it.

  Returns:
    it, or elsewhere something of which every method does nothing.
  """
  return make() if first() else _Nothing()


def require_same(what: str, number: int) -> None:
  """Sees that all processes have the same number; all of them must call it.

  Raises:
    UserError: they have not.
  """
  if jax.process_count() == 1:
    return
  numbers = multihost_utils.process_allgather(np.int32(number)).tolist()
  if len(set(numbers)) > 1:
    raise errors.UserError(
      f'The processes disagree on {what}: {numbers}. All must see the same'
      ' --workdir, on a file system that they share.'
    )


class Exchange:
  """Passes data between the host and the workers of a run.

  Args:
    team: the workers, on devices if there are several processes.

  Attributes:
    own: the workers of this process, in order.
    alone: whether it has all of them.
  """

  def __init__(self, team: sm.Workers):
    self._count = team.count
    self.alone = jax.process_count() == 1
    self.own = tuple(range(team.count))
    if not self.alone:
      self._rows = jax.NamedSharding(team.mesh, jax.P(team.axis_name))
      self.own = tuple(
        worker
        for worker, device in enumerate(team.mesh.devices.flat)
        if device.process_index == jax.process_index()
      )
      self._gather = jax.jit(
        lambda *arrays: jnp.stack(arrays),
        out_shardings=jax.NamedSharding(team.mesh, jax.P()),
      )

  def scatter(self, rows: np.ndarray) -> np.ndarray | jax.Array:
    """Makes an input of `Workers.step` from the rows of this process.

    Args:
      rows: `[own workers, ...]`.

    Returns:
      `[workers, ...]`.
    """
    if self.alone:
      return rows
    place = {worker: i for i, worker in enumerate(self.own)}
    return jax.make_array_from_callback(
      (self._count, *rows.shape[1:]),
      self._rows,
      lambda index: rows[place[index[0].start]][None],
    )

  def gather(self, outputs: Sequence[jax.Array], note: int) -> Any:
    """Makes outputs of `Workers.step` readable everywhere, in one message.

    Args:
      outputs: `[workers, ...]`, of equal shape, in float32.
      note: a small number to tell the other processes.

    Returns:
      for `jax.device_get`, which waits for them: the outputs, and one more
      array of that shape with the notes of all processes.
    """
    shape = outputs[0].shape[1:]
    notes = np.full((len(self.own), *shape), note, np.float32)
    together = (*outputs, self.scatter(notes))
    return together if self.alone else self._gather(*together)


def _initialize() -> None:
  count, index = os.environ.get(_COUNT), os.environ.get(_ID)
  if count or index:
    if not (count and index and os.environ.get(_ADDRESS)):
      raise errors.UserError(
        f'Of {", ".join(VARIABLES)} some are set and some are not: set all'
        ' three, or none for a cluster that JAX knows.'
      )
    jax.distributed.initialize(
      os.environ[_ADDRESS],
      int(count),
      int(index),
      cluster_detection_method='deactivate',
    )
    return
  try:
    jax.distributed.initialize()
  except ValueError as error:
    raise errors.UserError(
      f'Nothing says who the other processes are ({error}) Under SLURM, Open'
      ' MPI, Kubernetes and on TPU pods JAX finds out by itself. Elsewhere set'
      f' {", ".join(VARIABLES)}, or start it with experiments.launch.'
    ) from error


def _leave() -> None:
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


class _Nothing:
  """Stands in for what only the first process has."""

  def __enter__(self) -> '_Nothing':
    return self

  def __exit__(self, *_: Any) -> None:
    pass

  def __getattr__(self, name: str) -> Callable[..., None]:
    return lambda *_, **__: None
