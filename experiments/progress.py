"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any, TextIO

import tqdm

_SECONDS_BETWEEN_LINES = 15


class Progress:
  """Shows tokens, speed, time left and the loss; use it in a `with` statement.

  Args:
    total: tokens of the whole run.
    done: tokens that earlier calls have trained on.
    file: where to write, by default the standard error stream.
  """

  def __init__(self, total: int, done: int = 0, file: TextIO | None = None):
    self._file = file or sys.stderr
    self._bar = tqdm.tqdm(
      total=total,
      initial=done,
      unit='token',
      unit_scale=True,
      file=self._file,
      # Without a terminal only its arithmetic is used.
      disable=not self._file.isatty(),
      dynamic_ncols=True,
    )
    self._total, self._start, self._done = total, done, done
    self._validation = ''
    self._began = self._printed = time.monotonic()

  def __enter__(self) -> 'Progress':
    """Returns itself."""
    return self

  def __exit__(self, *_: Any) -> None:
    """Leaves the bar as it is."""
    self._bar.close()

  def advance(self, tokens: int, loss: float) -> None:
    """Shows that the run went on.

    Args:
      tokens: how many were trained on.
      loss: the newest, in nats per token.
    """
    self._done += tokens
    losses = f'loss {loss:.3f}{self._validation}'
    self._bar.set_postfix_str(losses, refresh=False)
    self._bar.update(tokens)
    now = time.monotonic()
    if self._bar.disable and now - self._printed >= _SECONDS_BETWEEN_LINES:
      self._printed = now
      speed = (self._done - self._start) / (now - self._began)
      self.say(
        f'{self._done / self._total:4.0%}  {losses}'
        f'  {speed:,.0f} tokens/s'
        f'  {(self._total - self._done) / speed:,.0f} s left'
      )

  def evaluated(self, loss: float) -> None:
    """Shows a validation loss from now on."""
    self._validation = f', validation {loss:.3f}'

  def say(self, line: str) -> None:
    """Prints a line above the bar."""
    self._bar.write(line, file=self._file)
