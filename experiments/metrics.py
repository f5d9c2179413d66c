"""Metrics: a line of JSON for each log point, and the same for TensorBoard.

`metrics.jsonl` has each step once: what was written after the checkpoint that
a run goes on from will be written again, so it is cut off first.
"""

import json
import os
import pathlib
from typing import Any

import tensorboardX

from experiments import outputs

_FILE = 'metrics.jsonl'
_FOLDER = 'tensorboard'


class Metrics:
  """Writes the metrics of one run, to be used in a `with` statement.

  Args:
    workdir: the run's directory.
    step: the step from which the run goes on.
  """

  def __init__(self, workdir: str | os.PathLike, step: int):
    workdir = pathlib.Path(workdir)
    path = workdir / _FILE
    kept = [record for record in read(workdir) if record['step'] <= step]
    outputs.write(path, ''.join(map(_line, kept)))
    self._file = path.open('a', encoding='utf-8')
    self._record = {}
    # Viewers drop what earlier event files say of later steps.
    self._events = tensorboardX.SummaryWriter(
      str(workdir / _FOLDER), purge_step=step + 1
    )

  def __enter__(self) -> 'Metrics':
    """Returns itself."""
    return self

  def __exit__(self, *_: Any) -> None:
    """Writes what is left and closes the files."""
    self.flush()
    self._file.close()
    self._events.close()

  def write(self, step: int, values: dict[str, float]) -> None:
    """Notes values of a step; all of one step become one line.

    Args:
      step: not smaller than before.
      values: numbers by name.
    """
    if self._record.get('step') != step:
      self.flush()
    self._record |= {'step': step} | values
    for name, value in values.items():
      self._events.add_scalar(name, value, step)

  def flush(self) -> None:
    """Writes the line of the newest step. Nothing may be added to it then."""
    if self._record:
      self._file.write(_line(self._record))
      self._file.flush()
      self._record = {}


def read(workdir: str | os.PathLike) -> list[dict[str, float]]:
  """The log points of a run, in order; of none if it has not begun."""
  path = pathlib.Path(workdir) / _FILE
  if not path.exists():
    return []
  records = []
  for line in path.read_text(encoding='utf-8').splitlines():
    try:
      records.append(json.loads(line))
    except json.JSONDecodeError:  # the last line of a run that was killed
      break
  return records


def _line(record: dict[str, float]) -> str:
  return json.dumps(record) + '\n'
