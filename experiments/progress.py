"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any, TextIO

import tqdm

_SECONDS_BETWEEN_LINES = 15


class Progress:
  """Shows units, speed, time left and the loss; use it in a `with` statement.

  Args:
    total: units of the whole run.
    done: units that earlier calls have trained on.
    unit: their name, such as 'tokens'.
    file: where to write, by default the standard error stream.
  """

  def __init__(
    self,
    total: int,
    done: int = 0,
    unit: str = 'tokens',
    file: TextIO | None = None,
  ):
    self._unit = unit
    self._file = file or sys.stderr
    self._bar = tqdm.tqdm(
      total=total,
      initial=done,
      unit=unit.removesuffix('s'),
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

  def advance(self, units: int, loss: float) -> None:
    """Shows that the run went on.

    Args:
      units: how many were trained on.
      loss: the newest, in nats per token or image.
    """
    self._done += units
    losses = f'loss {loss:.3f}{self._validation}'
    self._bar.set_postfix_str(losses, refresh=False)
    self._bar.update(units)
    now = time.monotonic()
    if self._bar.disable and now - self._printed >= _SECONDS_BETWEEN_LINES:
      self._printed = now
      speed = (self._done - self._start) / (now - self._began)
      self.say(
        f'{self._done / self._total:4.0%}  {losses}'
        f'  {speed:,.0f} {self._unit}/s'
        f'  {(self._total - self._done) / speed:,.0f} s left'
      )

  def evaluated(self, result: str) -> None:
    """Shows the result of an evaluation from now on."""
    self._validation = f', {result}'

  def say(self, line: str) -> None:
    """Prints a line above the bar."""
    self._bar.write(line, file=self._file)
