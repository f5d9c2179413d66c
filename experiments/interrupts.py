"""SIGTERM and SIGINT as a wish to stop, to be met at the next good place."""

from collections.abc import Iterator
import contextlib
import signal
import threading

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    wish.number = number
    restore()

  for number in _SIGNALS:
    signal.signal(number, hear)
  try:
    yield wish
  finally:
    restore()
