"""Measured rates beside the bounds of theory: a table and a picture."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any

import matplotlib
from matplotlib import figure, lines
import numpy as np

from experiments import exponents, outputs

_MARKDOWN, _JSON, _PICTURE = 'theory.md', 'theory.json', 'theory.png'
_AXES = {'T': 'rounds T', 'n': 'workers n'}
_POINTS, _FIT, _WHOLE = 'measured', 'fit', 'mean over the whole run'
_BOUND, _FLOOR = 'bound on that mean', 'its floor, computed'
_STYLES = {
  _POINTS: {'marker': 'o', 'linestyle': ''},
  _FIT: {'linestyle': '-'},
  _WHOLE: {'marker': 's', 'markerfacecolor': 'none', 'linestyle': ''},
  _BOUND: {'linestyle': '--'},
  _FLOOR: {'linestyle': ':'},
}


@dataclasses.dataclass(frozen=True)
class Study:
  """One method, measured along one axis.

  Attributes:
    what: the method.
    measure: what the exponent is of.
    axis: a key of ``_AXES``.
    paper: the exponent of the bound.
    x: places along the axis.
    steps: the step size at each place.
    fitted: what the exponent is of, ``[places, repetitions]``.
    averages: the mean over the whole run of what the bound is about, likewise.
    bounds: the bound on the expectation of that, at each place.
    floors: where that tends as steps become small; None if to 0.
  """

  what: str
  measure: str
  axis: str
  paper: float
  x: tuple[int, ...]
  steps: tuple[float, ...]
  fitted: np.ndarray
  averages: np.ndarray
  bounds: tuple[float, ...]
  floors: tuple[float, ...] | None = None

  @property
  def fit(self) -> exponents.Fit:
    """The exponent that was measured."""
    return exponents.fit(self.x, self.fitted)

  @property
  def slower(self) -> float:
    """By how much the interval of the exponent misses the bound's, at least 0.

    An exponent below the bound's misses nothing: it is faster.
    """
    return max(0.0, self.fit.low - self.paper)

  @property
  def share(self) -> float:
    """The largest part of its bound that a mean over repetitions reaches."""
    return float(np.max(self.averages.mean(1) / np.array(self.bounds)))

  def record(self) -> dict[str, Any]:
    """Everything in plain numbers; repetitions as mean and standard error."""
    fields = dataclasses.asdict(self)
    for name in ('fitted', 'averages'):
      mean, error = _mean(fields.pop(name))
      fields |= {name: mean.tolist(), f'{name}_error': error.tolist()}
    return fields | {
      'repetitions': self.fitted.shape[1],
      'fit': dataclasses.asdict(self.fit),
      'slower': self.slower,
      'largest_share_of_bound': self.share,
    }


def markdown(studies: Sequence[Study]) -> str:
  """The table in Markdown."""
  rows = [
    '| method | measure | exponent of the bound | fitted | 95 % interval | last'
    ' two points | range | repetitions | at least as fast | largest share of'
    ' the bound |',
    '| --- | --- | --: | --: | --: | --: | --- | --: | --- | --: |',
  ]
  for study in studies:
    fit = study.fit
    speed = f'no, by {study.slower:.3f}' if study.slower else 'yes'
    rows.append(
      f'| {study.what} | {study.measure} | {study.paper:.3f}'
      f' | {fit.exponent:.3f} | {fit.low:.3f} to {fit.high:.3f}'
      f' | {fit.last:.3f} ± {fit.last_error:.3f}'
      f' | {study.axis} = {study.x[0]:,} to {study.x[-1]:,}'
      f' | {study.fitted.shape[1]} | {speed} | {study.share:.2f} |'
    )
  return '\n'.join(rows) + '\n'


def save(
  panels: Mapping[str, Sequence[Study]],
  facts: Mapping[str, Any],
  workdir: str | os.PathLike,
) -> str:
  """Writes table, record and picture.

  Args:
    panels: studies with the same axis and measure, by title.
    facts: how they were made, for the record.
    workdir: an existing directory.

  Returns:
    the table.
  """
  workdir = pathlib.Path(workdir)
  studies = [study for group in panels.values() for study in group]
  table = markdown(studies)
  outputs.write(workdir / _MARKDOWN, table)
  record = dict(facts) | {'studies': [study.record() for study in studies]}
  outputs.write(workdir / _JSON, json.dumps(record, indent=2) + '\n')
  _draw(panels, workdir / _PICTURE)
  return table


def _draw(panels: Mapping[str, Sequence[Study]], path: pathlib.Path) -> None:
  """A panel for each group of studies."""
  canvas = figure.Figure(figsize=(13, 11), layout='constrained')
  grid = canvas.subplots(-(-len(panels) // 2), 2, squeeze=False)
  colors = matplotlib.colormaps['tab10'].colors
  for axes, (title, studies) in zip(grid.flat, panels.items(), strict=False):
    for study, color in zip(studies, colors, strict=False):
      _draw_study(axes, study, color)
    first = studies[0]
    axes.set(
      title=f'{title}: {first.measure}',
      xlabel=_AXES[first.axis],
      xscale='log',
      yscale='log',
    )
    axes.grid(alpha=0.3, which='both')
    axes.legend(fontsize=9, loc='upper center', bbox_to_anchor=(0.5, -0.1))
  keys = [
    lines.Line2D([], [], color='0.3', label=label, **style)
    for label, style in _STYLES.items()
  ]
  canvas.legend(handles=keys, loc='outside lower center', ncols=len(keys))
  canvas.savefig(path, dpi=100)


def _draw_study(axes, study: Study, color) -> None:
  """One study: points, the line through them, and lines of theory."""
  x, fit = np.array(study.x, float), study.fit
  y = study.fitted.mean(1)
  middle_x, middle_y = np.exp(np.log(x).mean()), np.exp(np.log(y).mean())
  drawn = {
    _POINTS: y,
    _FIT: middle_y * (x / middle_x) ** fit.exponent,
    _WHOLE: study.averages.mean(1),
    _BOUND: study.bounds,
    _FLOOR: study.floors,
  }
  if np.array_equal(study.fitted, study.averages):
    del drawn[_WHOLE]
  for label, values in drawn.items():
    if values is not None:
      axes.plot(x, values, color=color, **_STYLES[label])
  axes.plot(
    [],
    [],
    color=color,
    label=f'{study.what}: {fit.exponent:.3f}'
    f' [{fit.low:.3f}, {fit.high:.3f}], bound {study.paper:g}',
  )


def _mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard error over repetitions."""
  return values.mean(1), values.std(1, ddof=1) / values.shape[1] ** 0.5
