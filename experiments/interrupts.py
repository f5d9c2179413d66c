"""SIGTERM and SIGINT as a wish to stop, to be met at the next good place.

Python calls its handlers between two of its own instructions, so not while XLA
compiles or computes. What the system calls writes the signal's number into a
pipe first, where a thread reads it at once.
"""

from collections.abc import Callable, Collection, Iterator
import contextlib
import os
import signal
import sys
import threading

import tqdm

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END = 0  # which is no signal


class Wish:
  """Whether someone wants the run to stop.

  Attributes:
    number: of the signal that came, 0 so far.
  """

  def __init__(self):
    self.number = 0

  @property
  def signal(self) -> str | None:
    """The name of the signal that came, None so far."""
    return signal.Signals(self.number).name if self.number else None


def end_commands() -> None:
  """Lets Ctrl-C end this process as SIGTERM does: at once, with no traceback.

  For a command that has nothing to clean up, before it is `listening`.
  """
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def listening(
  said: str = '', second: Callable[[], None] | None = None
) -> Iterator[Wish]:
  """Turns the first signal into a wish; a second one acts as it always did.

  If that is to end the process, it ends at once, whatever it does. Only the
  main thread of a process can listen; elsewhere nothing is changed.

  Args:
    said: a line to show when the first signal comes, at once; empty: none.
    second: is called at later ones instead.
  """
  wish = Wish()
  if threading.current_thread() is not threading.main_thread():
    yield wish
    return
  usual = {number: signal.getsignal(number) for number in _SIGNALS}

  def hear(number, frame):
    if not wish.number:
      wish.number = number
    elif second is not None:
      second()
    elif callable(usual[number]):
      usual[number](number, frame)

  deadly = [
    n for n in _SIGNALS if second is None and usual[n] == signal.SIG_DFL
  ]
  with _watching(said, deadly):
    for number in _SIGNALS:
      signal.signal(number, hear)
    try:
      yield wish
    finally:
      for number, handler in usual.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def _watching(said: str, deadly: Collection[int]) -> Iterator[None]:
  """Watches signals in a thread; those that are deadly are so from the second.

  It writes nothing but `said`: the main thread has the rest to do.
  """
  reader, writer = os.pipe()
  os.set_blocking(writer, False)

  def watch():
    heard = False
    while (number := os.read(reader, 1)[0]) != _END:
      if number not in _SIGNALS:
        continue
      if heard and number in deadly:
        os._exit(128 + number)  # as a shell has it
      if said and not heard:
        tqdm.tqdm.write(said, file=sys.stderr)  # above a bar, if there is one
      heard = True

  before = signal.set_wakeup_fd(writer)
  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    os.write(writer, bytes([_END]))
    thread.join()
    os.close(reader)
    os.close(writer)
