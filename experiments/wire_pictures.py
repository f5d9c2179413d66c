"""The picture of a wire: what was measured, and the model far beyond it."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

from matplotlib import figure, lines, ticker
import numpy as np

from experiments import exchanges, network, wire_results

_COLORS = dict(
  zip(
    exchanges.METHODS,
    ('black', 'tab:gray', 'tab:brown', 'tab:orange', 'tab:green', 'tab:purple')
    + ('tab:red',),
    strict=True,
  )
)
_MARKERS = dict(zip(exchanges.METHODS, 'osD^vP*', strict=True))
_FASTEST = 1e11  # bits per second
_UNLIMITED = 1e12  # where that is drawn
_MOST_WORKERS = 10_000
_WORKERS = 4  # in the panels that have rates below them, if measured
_RATE = 1e8  # bits per second, of the panel that has workers, if measured


def draw(
  rows: Sequence[wire_results.Row],
  parameters: int,
  computing: Mapping[str, float],
  path: str | os.PathLike,
) -> None:
  """Draws time against rate, speed against rate, and time against workers.

  Args:
    rows: what was measured.
    parameters: that were exchanged.
    computing: seconds for encoding and decoding them, by exchange.
    path: of the picture.
  """
  plain = [
    row
    for row in rows
    if row.name in exchanges.METHODS and row.leaves == 1 and not _late(row)
  ]
  if not plain:
    return
  counts = {row.processes for row in plain}
  rates = {_rate(row) for row in plain}
  n = min(counts, key=lambda count: abs(count - _WORKERS))
  rate = min(rates, key=lambda rate: abs(np.log(rate / _RATE)))
  canvas = figure.Figure(figsize=(15, 5.6), layout='constrained')
  one, two, three = canvas.subplots(1, 3)
  several = [row for row in plain if row.processes == n]
  _draw_seconds(one, several, parameters, computing, n)
  _draw_speed(two, several, n)
  alike = [row for row in plain if _rate(row) == rate]
  _draw_workers(three, alike, parameters, computing, rate)
  names = [name for name in exchanges.METHODS if name in computing]
  keys = [
    lines.Line2D(
      [],
      [],
      color=_COLORS[name],
      marker=_MARKERS[name],
      linewidth=1,
      label=exchanges.EXCHANGES[name].label,
    )
    for name in names
  ]
  keys += [
    lines.Line2D([], [], color='0.3', linewidth=1, label='model'),
    lines.Line2D([], [], color='0.3', marker='o', ls='', label='measured'),
  ]
  canvas.legend(handles=keys, loc='outside lower center', ncols=len(keys))
  canvas.savefig(path, dpi=100)


def _draw_seconds(
  axes: Any,
  rows: Sequence[wire_results.Row],
  parameters: int,
  computing: Mapping[str, float],
  n: int,
) -> None:
  rates = np.geomspace(min(_rate(row) for row in rows), _FASTEST)
  for name, seconds in computing.items():
    model = [
      wire_results.model_seconds(name, n, rate, parameters, seconds)
      for rate in rates
    ]
    axes.plot(rates, model, color=_COLORS[name], linewidth=1)
  _points(axes, rows, _rate, lambda row: row.seconds)
  _with_rates(axes, rows)
  axes.set(
    title=f'{n} workers, {parameters / 1e6:.1f} million parameters',
    ylabel='seconds per exchange',
    yscale='log',
  )


def _draw_speed(axes: Any, rows: Sequence[wire_results.Row], n: int) -> None:
  counts = sorted({steps for row in rows for steps in row.steps})
  styles = dict(zip(counts, ('-', '--', ':', '-.'), strict=False))
  for steps, style in styles.items():
    _points(
      axes,
      rows,
      _rate,
      lambda row, steps=steps: row.steps[steps] / row.ceiling[steps],
      linestyle=style,
      linewidth=1,
    )
  _with_rates(axes, rows)
  keys = [
    lines.Line2D([], [], color='0.3', linestyle=style, label=f'every {steps}')
    for steps, style in styles.items()
  ]
  axes.legend(handles=keys, title='local steps', loc='lower right')
  axes.set(
    title=f'{n} workers, as measured',
    ylabel='speed, of that without communication',
    ylim=(0, 1.03),
  )
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))


def _draw_workers(
  axes: Any,
  rows: Sequence[wire_results.Row],
  parameters: int,
  computing: Mapping[str, float],
  rate: float,
) -> None:
  counts = np.unique(np.geomspace(2, _MOST_WORKERS, 60).astype(int))
  for name, seconds in computing.items():
    model = [
      wire_results.model_seconds(name, int(n), rate, parameters, seconds)
      for n in counts
    ]
    axes.plot(counts, model, color=_COLORS[name], linewidth=1)
  _points(axes, rows, lambda row: row.processes, lambda row: row.seconds)
  axes.set(
    title=f'links of {ticker.EngFormatter()(rate)}bit/s',
    xlabel='workers',
    ylabel='seconds per exchange',
    xscale='log',
    yscale='log',
  )
  ticks = [2, 4, 8, 32, 100, 1000, _MOST_WORKERS]
  axes.set_xticks(ticks, [f'{n:,}' for n in ticks])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.grid(alpha=0.3)


def _points(axes: Any, rows, x, y, linestyle='', **style) -> None:
  """Draws a row as a point at `x` and `y` of it; those of a name are joined."""
  for name in dict.fromkeys(row.name for row in rows):
    own = sorted((row for row in rows if row.name == name), key=x)
    axes.plot(
      [x(row) for row in own],
      [y(row) for row in own],
      color=_COLORS[name],
      marker=_MARKERS[name],
      linestyle=linestyle,
      **style,
    )


def _with_rates(axes: Any, rows: Sequence[wire_results.Row]) -> None:
  ticks = [10.0**k for k in range(7, 12)]
  names = [f'{ticker.EngFormatter(sep="")(rate)}' for rate in ticks]
  if any(_rate(row) == _UNLIMITED for row in rows):
    ticks, names = [*ticks, _UNLIMITED], [*names, 'un-\nlimited']
  axes.set_xscale('log')
  axes.set_xticks(ticks, names)
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.set(xlabel='rate of every link, bits per second')
  axes.grid(alpha=0.3)


def _rate(row: wire_results.Row) -> float:
  return min(network.parse(row.link).bits_per_second, _UNLIMITED)


def _late(row: wire_results.Row) -> bool:
  return network.parse(row.link).latency_seconds > 0
