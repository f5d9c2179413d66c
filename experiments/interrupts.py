"""SIGTERM and SIGINT as a wish to stop, to be met at the next good place."""

from collections.abc import Iterator
import contextlib
import signal
import threading

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Wish:
  """Whether someone wants the run to stop.

  Attributes:
    signal: the name of the signal that came, None so far.
  """

  def __init__(self):
    self.signal: str | None = None


@contextlib.contextmanager
def listening() -> Iterator[Wish]:
  """Turns the first signal into a wish; a second one acts as it always did.

  Only the main thread of a process can listen; elsewhere nothing is changed.
  """
  wish = Wish()
  if threading.current_thread() is not threading.main_thread():
    yield wish
    return
  usual = {number: signal.getsignal(number) for number in _SIGNALS}

  def restore():
    for number, handler in usual.items():
      signal.signal(number, handler)

  def hear(number, frame):
    del frame
    wish.signal = signal.Signals(number).name
    restore()

  for number in _SIGNALS:
    signal.signal(number, hear)
  try:
    yield wish
  finally:
    restore()
