"""Pictures of a sweep: the curves of a study, and an overview of all.

Which studies a panel of the overview shows follows from their settings: those
that differ from the main one, the first with rates of its own, in one respect
only. A method has one colour in all pictures.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
import functools
from typing import Any

import matplotlib
from matplotlib import figure, lines, ticker
import numpy as np

from experiments import comparison, metrics, outcomes, report, settings

_OVERVIEW = 'overview.png'
# Strong colours first; each group has its own kind of line.
_LINES = [
  *((color, '-') for color in matplotlib.colormaps['tab10'].colors),
  *((color, '--') for color in matplotlib.colormaps['tab20b'].colors[::4]),
  *((color, '-.') for color in matplotlib.colormaps['tab20b'].colors[2::4]),
  *((color, ':') for color in matplotlib.colormaps['tab20'].colors[1::2]),
]
_MARKERS = 'osD^v<>PXp'

_Styles = Mapping[str, dict[str, Any]]
_Rows = Mapping[str, comparison.Row]  # by method
_Table = Mapping[settings.Setting, _Rows]
_Panel = Callable[[Any, _Styles], None]  # draws into axes

# The label, the fields in which settings differ, and the place of a setting.
_AXES = (
  ('rounds', ('steps', 'seen'), lambda s: s.steps // s.sync_every),
  (
    'local steps a round, at equal {unit}',
    ('sync_every',),
    lambda s: s.sync_every,
  ),
  ('workers, at equal {unit}', ('workers', 'steps'), lambda s: s.workers),
  ('workers, with equal batches', ('workers', 'seen'), lambda s: s.workers),
)
_FAULTS = ('presence', 'adversaries')


def draw(results: outcomes.Results) -> None:
  """Draws what is known into the directory of the results.

  A study with rates of its own gets its curves, in STUDY.png; a sweep of more
  than one study gets an overview.

  Args:
    results: what is known.
  """
  styles = _styles(results)
  for study in results.sweep.values():
    if study.rates_of is None:
      _draw_curves(results, study, styles)
  if len(results.sweep) > 1:
    _draw_overview(results, styles)


def _styles(results: outcomes.Results) -> _Styles:
  times = collections.Counter(
    method for study in results.sweep.values() for method in study.methods
  )
  # Who is in many panels gets a strong colour.
  ranks = [method for method, _ in times.most_common()]
  styles = {}
  for method in times:
    rank = ranks.index(method)
    color, line = _LINES[rank % len(_LINES)]
    marker = _MARKERS[rank % len(_MARKERS)]
    styles[method] = {'color': color, 'linestyle': line, 'marker': marker}
  return styles


# The curves of a study.


def _draw_curves(
  results: outcomes.Results, study: settings.Study, styles: _Styles
) -> None:
  """Loss against tokens and against bits: means over seeds, and their range."""
  found = {
    row.method: row
    for row in comparison.rows(results, study)
    if row.error_rate is not None
  }
  if not found:
    return
  canvas = figure.Figure(figsize=(13, 6), layout='constrained')
  left, right = canvas.subplots(1, 2, sharey=True)
  highest = 0.0
  for method, row in found.items():
    seen, bits, losses = _curve(results, study, method)
    highest = max(highest, losses.mean(0)[0])
    style = styles[method] | {'marker': ''}
    for axes, x in [(left, seen[0]), (right, bits[0])]:
      label = f'{method} ({row.error_rate:.3f})'
      axes.plot(x, losses.mean(0), label=label, **style)
      axes.fill_between(
        x, losses.min(0), losses.max(0), color=style['color'], alpha=0.2
      )
  ends = results.best(study, next(iter(found))).values()
  some = next(end.summary for end in ends if end.summary is not None)
  for axes in (left, right):
    report.draw_baselines(axes, some)
    axes.grid(alpha=0.3)
  # What is above the unigram tells nothing, unless methods end there.
  losses = [row.error_rate for row in found.values()]
  top = max(min([highest, *some.baselines.values()]), *losses)
  margin = 0.05 * (top - min(losses))
  left.set_ylim(min(losses) - margin, top + 2 * margin)
  left.set(xlabel=some.unit, ylabel=_error(some.unit))
  left.xaxis.set_major_formatter(ticker.EngFormatter())
  right.set(xlabel='bits sent per parameter, by each worker')
  if any(row.bits_per_parameter for row in found.values()):
    right.set_xscale('log')
  seeds = max(row.seeds for row in found.values())
  canvas.suptitle(
    f'{some.workers} workers, {some.sync_every} local steps a round,'
    f' {seeds} seed{"s" if seeds > 1 else ""}'
  )
  canvas.legend(
    *left.get_legend_handles_labels(), loc='outside right upper', fontsize=9
  )
  canvas.savefig(results.workdir / f'{study.name}.png', dpi=120)


def _curve(
  results: outcomes.Results, study: settings.Study, method: str
) -> np.ndarray:
  """Returns units, bits and error rates of runs, `[3, seeds, points]`."""
  runs = []
  for run, end in results.best(study, method).items():
    if end.summary is not None:
      s = end.summary
      points = [
        (point[s.unit], point['bits'], report.error_rate(point))
        for point in metrics.read(results.folder(run))
        if 'validation_loss' in point and point['step'] < s.steps
      ]
      # The last one is that of the table, on all held-out data.
      runs.append([*points, (s.seen, s.bits * s.steps, s.error_rate)])
  return np.moveaxis(np.array(runs), -1, 0)


# The overview of all studies.


def _draw_overview(results: outcomes.Results, styles: _Styles) -> None:
  """Draws a panel for each question that there are runs for."""
  table = {}
  for study in results.sweep.values():
    if found := comparison.rows(results, study):
      # Of several studies in one setting the first one is shown.
      table.setdefault(study.setting(), {row.method: row for row in found})
  own = [study for study in results.sweep.values() if study.rates_of is None]
  panels = list(_panels(table, own[0].setting()))
  if not panels:
    return
  columns = min(3, len(panels))
  depth = -(-len(panels) // columns)
  canvas = figure.Figure(
    figsize=(4.8 * columns + 3.2, 4.2 * depth), layout='constrained'
  )
  grid = list(canvas.subplots(depth, columns, squeeze=False).flat)
  shown = set()
  for axes, panel in zip(grid, panels, strict=False):
    panel(axes, styles)
    axes.grid(alpha=0.3)
    shown.update(axes.get_legend_handles_labels()[1])
  for axes in grid[len(panels) :]:
    axes.remove()
  # In a panel of points alone, no lines would be in the legend.
  handles = [
    lines.Line2D([], [], label=method, **style)
    for method, style in styles.items()
    if method in shown
  ]
  canvas.legend(handles=handles, loc='outside right upper', fontsize=9)
  canvas.supylabel(_error(own[0].setting().unit))
  canvas.savefig(results.workdir / _OVERVIEW, dpi=120)


def _panels(table: _Table, main: settings.Setting) -> Iterator[_Panel]:
  """Yields the panels that have something to show."""
  if any(row.bits_per_parameter for row in table.get(main, {}).values()):
    yield functools.partial(_draw_bits, table[main])
  for label, fields, place in _AXES:
    alike = {
      place(setting): rows
      for setting, rows in table.items()
      if _without(setting, fields) == _without(main, fields)
    }
    times = collections.Counter(m for rows in alike.values() for m in rows)
    if max(times.values(), default=0) > 1:
      yield functools.partial(_draw_line, label.format(unit=main.unit), alike)
  faulty = [setting for setting in table if _faulty(setting)]
  if faulty:
    alike = {
      setting: rows
      for setting, rows in table.items()
      if _without(setting, _FAULTS) == _without(faulty[0], _FAULTS)
    }
    yield functools.partial(_draw_faults, alike)


def _draw_bits(rows: _Rows, axes: Any, styles: _Styles) -> None:
  for method, row in rows.items():
    if row.bits_per_parameter_and_step:
      style = styles[method] | {'linestyle': 'none'}
      _plot(axes, [(row.bits_per_parameter_and_step, row)], method, style)
  axes.set_xscale('log')
  axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.set(xlabel='bits sent per parameter and local step')


def _draw_line(
  label: str, alike: Mapping[int, _Rows], axes: Any, styles: _Styles
) -> None:
  for method, style in styles.items():
    points = [
      (x, alike[x][method]) for x in sorted(alike) if method in alike[x]
    ]
    if len(points) > 1:
      _plot(axes, points, method, style)
  axes.set_xscale('log')
  axes.set_xticks(sorted(alike), [f'{x:g}' for x in sorted(alike)])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.set(xlabel=label)


def _draw_faults(
  alike: Mapping[settings.Setting, _Rows], axes: Any, styles: _Styles
) -> None:
  """A column for each kind of fault; the methods beside each other in it."""
  columns = sorted(alike, key=lambda s: (s.adversaries, -s.presence))
  methods = [
    method
    for method in styles
    if any(method in rows for s, rows in alike.items() if _faulty(s))
  ]
  for i, method in enumerate(methods):
    shift = 0.5 * ((i + 0.5) / len(methods) - 0.5)
    points = [
      (x + shift, alike[setting][method])
      for x, setting in enumerate(columns)
      if method in alike[setting]
    ]
    _plot(axes, points, method, styles[method] | {'linestyle': 'none'})
  names = [
    ', '.join(
      [f'{s.presence:.0%} present'] * (s.presence < 1)
      + [f'{s.adversaries} negate'] * bool(s.adversaries)
    )
    or 'no faults'
    for s in columns
  ]
  axes.set_xticks(range(len(columns)), names)
  axes.set(xlabel=f'faults among {columns[0].workers} workers')


def _plot(
  axes: Any,
  points: Iterable[tuple[float, comparison.Row]],
  label: str,
  style: Mapping[str, Any],
) -> None:
  """Draws losses and their spread, and a cross on top where runs diverged."""
  good = [(x, row) for x, row in points if row.error_rate is not None]
  axes.errorbar(
    [x for x, _ in good],
    [row.error_rate for _, row in good],
    [row.error_spread for _, row in good],
    label=label,
    capsize=2,
    markersize=5,
    linewidth=1.2,
    **style,
  )
  axes.plot(
    [x for x, row in points if row.diverged],
    [0.97 for _, row in points if row.diverged],
    transform=axes.get_xaxis_transform(),
    **dict(style) | {'marker': 'x', 'linestyle': 'none'},
  )


def _error(unit: str) -> str:
  """What runs are ranked by."""
  if unit == 'images':
    return 'share of held-out images that is mistaken'
  return f'validation loss [nats per {unit.removesuffix("s")}]'


def _without(
  setting: settings.Setting, fields: Iterable[str]
) -> settings.Setting:
  return setting._replace(**dict.fromkeys(fields))


def _faulty(setting: settings.Setting) -> bool:
  return setting.presence < 1 or setting.adversaries > 0
