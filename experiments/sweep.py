"""Makes the runs of a sweep that are missing, several at a time.

Each is made by `loop.train` in a process of its own, which has its share of the
processors to itself and prints into `train.log` of the run's directory. (At
the nano config, two processes with a core each train on 168 thousand tokens a
second, one with both on 110.)

A terminal sends Ctrl-C to all processes, `kill` sends a signal to one. In both
cases the children are to write their checkpoints, once: they do not listen to
SIGINT before they train, `loop.train` takes the first as a wish to stop, and
after that they ignore it. So the parent can send it as often as it likes. What
comes to the parent a second time ends the children by force.
"""

from collections.abc import Callable, Collection
from concurrent import futures
import contextlib
import dataclasses
import math
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
from typing import Any

import ml_collections
import tqdm

from experiments import (
  entry,
  errors,
  interrupts,
  loop,
  outcomes,
  outputs,
  processors,
  report,
  settings,
)

_LOG = 'train.log'
_SECONDS_BETWEEN_LOOKS = 1.0
_STOPPING = 'Stopping: the runs write checkpoints.'


@dataclasses.dataclass(frozen=True)
class Task:
  """All that a process must know to make a run.

  Attributes:
    config: the experiment.
    folder: the run's directory.
    workers: a key of `executors.EXECUTORS`.
    cpu_devices: how many virtual devices the CPU shall be, None: as needed.
    processors: those to run on, empty for any.
  """

  config: ml_collections.ConfigDict
  folder: pathlib.Path
  workers: str
  cpu_devices: int | None
  processors: tuple[int, ...]


def train(task: Task) -> None:
  """Makes a run; only for a process that does nothing else.

  Raises:
    UserError: for a mistake in the config, the directory or the devices.
  """
  processors.pin(os.getpid(), task.processors)
  os.environ |= processors.environment(task.processors)
  # Of the system's, which it has by default, something would be left behind if
  # the process is killed, and be complained of.
  tqdm.tqdm.set_lock(threading.RLock())
  outputs.directory(task.folder)
  _print_into(task.folder / _LOG)
  entry.quiet()
  entry.set_cpu_devices(task.workers, task.config.workers, task.cpu_devices)
  try:
    loop.train(task.config, task.folder, task.workers)
  except FloatingPointError as error:
    print(f'Diverged: {error}')
    outcomes.record_divergence(task.folder, error)


class Crew:
  """Makes a few runs at a time; use it in a `with` statement, once.

  Leaving it ends the runs that are being made, each with a checkpoint unless
  they are killed.

  Args:
    jobs: how many runs to make at a time.
    workers: a key of `executors.EXECUTORS`.
    cpu_devices: how many virtual devices the CPU shall be, None: as needed.
    make: what makes a run.
    pool: where, by default in new processes.

  Attributes:
    jobs: as above.
    killed: whether its processes have been.
  """

  def __init__(
    self,
    jobs: int = 1,
    workers: str = 'simulated',
    cpu_devices: int | None = None,
    make: Callable[[Task], None] = train,
    pool: futures.Executor | None = None,
  ):
    self.jobs = jobs
    self.killed = False
    self._how = {'workers': workers, 'cpu_devices': cpu_devices}
    self._make = make
    self._pool = pool or futures.ProcessPoolExecutor(
      jobs,
      multiprocessing.get_context('spawn'),
      initializer=_ignore_interrupts,
      # Devices are counted and memory is freed once for each process.
      max_tasks_per_child=1,
    )
    self._free = processors.shares(jobs)
    self._busy: dict[futures.Future, tuple[settings.Run, Task]] = {}

  def __enter__(self) -> 'Crew':
    """Returns itself."""
    return self

  def __exit__(self, *_: Any) -> None:
    """Ends what is being made."""
    while self._busy:
      for child in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
          os.kill(child.pid, signal.SIGINT)
      for future in self._done():
        del self._busy[future]
    self._pool.shutdown()

  def kill(self) -> None:
    """Ends what is being made by force, as far as it is in new processes."""
    self.killed = True
    for child in multiprocessing.active_children():
      child.kill()

  def runs(self) -> list[settings.Run]:
    """What is being made."""
    return [run for run, _ in self._busy.values()]

  def idle(self) -> bool:
    """Whether another run can be started."""
    return bool(self._free)

  def start(
    self,
    run: settings.Run,
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
  ) -> None:
    """Starts a run. Somebody must be idle."""
    task = Task(config, folder, processors=self._free.pop(0), **self._how)
    # A process inherits what the thread that makes it blocks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
      self._busy[self._pool.submit(self._make, task)] = run, task
    finally:
      signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

  def ended(self) -> list[settings.Run]:
    """Waits a moment, and returns the runs that have come to an end in it.

    Raises:
      UserError: that was the end of one of them.
    """
    runs = []
    for future in self._done():
      run, task = self._busy.pop(future)
      self._free.append(task.processors)
      try:
        future.result()
      except futures.BrokenExecutor as error:
        if self.killed:
          continue
        raise errors.UserError(
          f'The process of {run} or of one beside it was ended by force; was'
          f' there too little memory? See {task.folder / _LOG}. The same'
          ' command goes on.'
        ) from error
      runs.append(run)
    return runs

  def _done(self) -> set[futures.Future]:
    return futures.wait(
      self._busy, _SECONDS_BETWEEN_LOOKS, futures.FIRST_COMPLETED
    ).done


def run(
  results: outcomes.Results,
  chosen: Collection[tuple[str, str]],
  publish: Callable[[], None],
  crew: Crew,
) -> bool:
  """Makes the runs that are missing.

  SIGTERM and SIGINT end it, with a checkpoint of each run that is being made; a
  second one without.

  Args:
    results: what is known.
    chosen: names of studies and methods.
    publish: called whenever a study is complete, and at the end.
    crew: who makes the runs.

  Returns:
    whether it came to the end; if not, it was stopped.

  Raises:
    UserError: for a mistake in a config, a directory or the devices.
  """
  left = results.left(chosen)
  print(f'Runs to make: at least {sum(left.values())}; {crew.jobs} at a time.')
  stopped = False
  said = f'{_STOPPING} Once more: end them now, without.'
  with interrupts.listening(said, crew.kill) as wish, crew:
    while not (stopped or wish.signal):
      if crew.idle():
        _start(results, chosen, crew)
      if not crew.runs():
        break
      for item in crew.ended():
        before, left = left, results.left(chosen)
        print(_line(item, results, left, crew.jobs), flush=True)
        stopped |= results.outcome(item) is None
        if any(before[name] and not left[name] for name in left):
          publish()
    if crew.runs() and not wish.signal:
      print(_STOPPING, flush=True)
  if not crew.killed:
    publish()
  if stopped or wish.signal:
    by = f' by {wish.signal}' if wish.signal else ''
    how = ', at once' if crew.killed else ''
    print(f'Stopped{by}{how}. The same command goes on.')
  return not (stopped or wish.signal)


def _start(
  results: outcomes.Results, chosen: Collection[tuple[str, str]], crew: Crew
) -> None:
  """Gives the next runs to those who are idle."""
  for item in results.next(chosen):
    if not crew.idle():
      return
    if item not in crew.runs():
      crew.start(item, results.config(item), results.folder(item))


def _line(
  item: settings.Run, results: outcomes.Results, left: dict[str, int], jobs: int
) -> str:
  """What is to be said of a run that has ended."""
  outcome = results.outcome(item)
  if outcome is None:
    return f'{item}: stopped'
  if outcome.summary is None:
    said = f'diverged. {outcome.diverged}'
  else:
    s = outcome.summary
    said = f'{report.headline(s.measures)}, {s.seconds:,.0f} s'
  time = _time(results, left, jobs)
  return f'{item}: {said}; {sum(left.values())} left{time}'


def _time(results: outcomes.Results, left: dict[str, int], jobs: int) -> str:
  """How long the rest takes, by the time that the known runs took."""
  known = [end.summary for end in results.known() if end.summary]
  units = sum(
    number * results.sweep[name].setting().seen for name, number in left.items()
  )
  if not units or not known:
    return ''
  speed = sum(s.seen for s in known) / sum(s.seconds for s in known)
  hours, minutes = divmod(math.ceil(units / speed / jobs / 60), 60)
  return f', about {hours} h {minutes} min'


def _print_into(path: pathlib.Path) -> None:
  """Sends what this process prints to a file, what libraries print included."""
  sys.stdout.reconfigure(line_buffering=True)
  with path.open('ab') as file:
    for descriptor in (1, 2):
      os.dup2(file.fileno(), descriptor)


def _ignore_interrupts() -> None:
  """What a new process does first."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
