"""Local processes that end together: when one fails, all are ended.

The first one shows what it prints. What the others print is kept in files, and
the end of it is shown if they fail, unless the first has shown the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from experiments import heartbeat, processors

SILENCE = 30.0  # seconds
_GRACE = 5.0  # seconds between asking a process to end and ending it
_POLL = 0.05  # seconds
_TAIL = 20  # lines
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


class ProcessError(Exception):
  """One of the processes failed, and all have been ended."""


@dataclasses.dataclass(frozen=True)
class Process:
  """A process to be started.

  Attributes:
    module: a Python module.
    arguments: for it.
    environment: all of its variables, by default those of this process.
    command: makes of a command what runs it in its place, see `network.Host`.
  """

  module: str
  arguments: Sequence[str] = ()
  environment: Mapping[str, str] | None = None
  command: Callable[[list[str]], list[str]] = list


def run(processes: Sequence[Process], silence: float = SILENCE) -> None:
  """Runs processes until all have ended.

  Each has its share of the processors to itself. SIGINT and SIGTERM are passed
  on to all of them. If this process is killed, they are killed too.

  Args:
    processes: what to run.
    silence: after how many seconds without a sign of life a process is taken to
      have failed.

  Raises:
    ProcessError: one did not end with exit code 0, or gave no sign of life. The
      message names the first to do so.
  """
  folder = pathlib.Path(tempfile.mkdtemp(prefix='processes_'))
  children = []
  with contextlib.ExitStack() as stack:
    stack.callback(_end, children)
    stack.enter_context(_passing_on(children))
    shares = processors.shares(len(processes))
    for index, (process, share) in enumerate(
      zip(processes, shares, strict=True)
    ):
      children.append(_Child(process, index, share, folder))
    running = True
    while running:
      # In this order: those that have ended since the last look count, too.
      running = any(child.running() for child in children)
      failed = [child for child in children if child.failure(silence)]
      if failed:
        # Those killed from outside first: what they take with them fails next.
        cause = min(failed, key=lambda child: not child.killed())
        why = cause.failure(silence)
        _end(children)
        # A mistake in a command is found, and told, by all of them.
        told = cause.words() and cause.words() == children[0].words()
        raise ProcessError(
          f'process {cause.index} of {len(children)} (0 to'
          f' {len(children) - 1}) {why}; all others have been ended.'
          f'{"" if told else cause.tail()}'
        )
      time.sleep(_POLL)
  shutil.rmtree(folder)


class _Child:
  """A process that has been started."""

  def __init__(
    self,
    process: Process,
    index: int,
    share: tuple[int, ...],
    folder: pathlib.Path,
  ):
    self.index = index
    self._heartbeat = folder / f'process_{index}.heartbeat'
    self._heartbeat.touch()
    self._beat, self._heard = None, time.monotonic()
    self._log = folder / f'process_{index}.log' if index else None
    command = [sys.executable, '-m', 'experiments.heartbeat']
    command += [str(self._heartbeat), str(os.getpid()), process.module]
    with (
      contextlib.nullcontext() if self._log is None else self._log.open('wb')
    ) as log:
      self._process = subprocess.Popen(
        process.command([*command, *process.arguments]),
        env={
          **(process.environment or os.environ),
          **processors.environment(share),
          'PYTHONUNBUFFERED': '1',  # for the tail
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
        # A terminal sends Ctrl-C to all of a group: it is passed on, once.
        process_group=0,
      )
    processors.pin(self._process.pid, share)

  def running(self) -> bool:
    return self._process.poll() is None

  def killed(self) -> bool:
    return self._process.poll() == -signal.SIGKILL

  def failure(self, silence: float) -> str | None:
    """What is wrong with it, in words."""
    code = self._process.poll()
    if code is None:
      return self._silent(silence)
    if code < 0:
      return f'was killed by {signal.Signals(-code).name}'
    return f'failed with exit code {code}' if code else None

  def _silent(self, limit: float) -> str | None:
    # Clocks that jump, or a machine that slept, must not count as silence.
    beat, now = self._heartbeat.stat().st_mtime_ns, time.monotonic()
    if beat != self._beat:
      self._beat, self._heard = beat, now
    seconds = now - self._heard
    if seconds < limit:
      return None
    return f'gave no sign of life for {seconds:.0f} s (stopped, or hangs)'

  def words(self) -> str:
    """What it said as it exited, as far as it has been shown."""
    path = self._heartbeat.with_suffix(heartbeat.WORDS)
    return path.read_text(encoding='utf-8') if path.exists() else ''

  def tail(self) -> str:
    """The end of what it printed, if that has not been shown."""
    if self._log is None:
      return ''
    lines = self._log.read_text(errors='replace').splitlines()[-_TAIL:]
    shown = ''.join(f'\n  {line}' for line in lines)
    return f' The last lines of {self._log}:{shown}'

  def signal(self, number: int) -> None:
    self._process.send_signal(number)

  def kill(self) -> None:
    """Ends it, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)
    self._process.wait()


@contextlib.contextmanager
def _passing_on(children: list[_Child]) -> Iterator[None]:
  """Passes signals on to children, also to those to come."""

  def pass_on(number, frame):
    del frame
    for child in children:
      child.signal(number)

  usual = {number: signal.signal(number, pass_on) for number in _FORWARDED}
  try:
    yield
  finally:
    for number, handler in usual.items():
      signal.signal(number, handler)


def _end(children: list[_Child]) -> None:
  for child in children:
    child.signal(signal.SIGTERM)
  deadline = time.monotonic() + _GRACE
  while any(child.running() for child in children):
    if time.monotonic() > deadline:
      break
    time.sleep(_POLL)
  for child in children:
    child.kill()
