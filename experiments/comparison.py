"""Several methods at equal tokens: one table, one picture.

Each method and seed is an ordinary run, in `METHOD/seed_N` of the directory.
What is finished is not run again.
"""

from collections.abc import Callable, Iterable, Sequence
import csv
import dataclasses
import json
import os
import pathlib
import statistics
from typing import Any

import matplotlib
from matplotlib import figure, ticker
import ml_collections
import numpy as np

from experiments import errors, loop, metrics, provenance, report

_CSV, _MARKDOWN = 'comparison.csv', 'comparison.md'
_JSON, _PICTURE = 'comparison.json', 'comparison.png'


@dataclasses.dataclass(frozen=True)
class Row:
  """A method: means over seeds, and the spread (standard deviation)."""

  method: str
  seeds: int
  validation_loss: float
  spread: float | None  # None for a single seed
  validation_bits_per_byte: float
  bits_per_parameter_and_step: float
  bits_per_parameter: float  # of the whole run
  tokens: int
  seconds: float


def run(
  load: Callable[[str, int], ml_collections.ConfigDict],
  methods: Sequence[str],
  seeds: Sequence[int],
  workdir: str | os.PathLike,
  workers: str = 'simulated',
) -> list[Row] | None:
  """Trains what is not trained yet, and compares.

  Args:
    load: returns the config of a method and a seed.
    methods: names of methods.
    seeds: of the runs of each method.
    workdir: the directory of the comparison.
    workers: a key of `executors.EXECUTORS`.

  Returns:
    the rows of the table, the best first; None if a run was stopped.

  Raises:
    UserError: for a wrong config, before anything is trained.
  """
  configs = {(m, s): load(m, s) for m in methods for s in seeds}
  for config in configs.values():
    loop.optimizer(config)
  workdir = pathlib.Path(workdir)
  summaries = {}
  for (method, seed), config in configs.items():
    print(f'{method}, seed {seed}: run {len(summaries) + 1} of {len(configs)}')
    summary = loop.train(config, _folder(workdir, method, seed), workers)
    if summary is None:
      return None
    summaries[method, seed] = summary
  rows = _rows(summaries.values())
  _write(rows, summaries, workdir)
  _draw(rows, summaries, workdir)
  return rows


def markdown(rows: Iterable[Row]) -> str:
  """The table in Markdown."""
  lines = [
    '| method | seeds | validation, nats/token | bits/byte | bits sent per'
    ' parameter and step | in all | tokens | seconds |',
    '| --- | --: | --: | --: | --: | --: | --: | --: |',
  ]
  for row in rows:
    spread = '' if row.spread is None else f' ± {row.spread:.4f}'
    lines.append(
      f'| {row.method} | {row.seeds} | {row.validation_loss:.4f}{spread}'
      f' | {row.validation_bits_per_byte:.4f}'
      f' | {row.bits_per_parameter_and_step:.3f}'
      f' | {row.bits_per_parameter:,.0f} | {row.tokens:,}'
      f' | {row.seconds:,.0f} |'
    )
  return '\n'.join(lines) + '\n'


def _folder(workdir: pathlib.Path, method: str, seed: int) -> pathlib.Path:
  return workdir / method / f'seed_{seed}'


def _rows(summaries: Iterable[report.Summary]) -> list[Row]:
  by_method: dict[str, list[report.Summary]] = {}
  for summary in summaries:
    by_method.setdefault(summary.method, []).append(summary)
  tokens = {summary.tokens for runs in by_method.values() for summary in runs}
  if len(tokens) > 1:
    raise errors.UserError(
      f'These runs saw different numbers of tokens, {sorted(tokens)}: they'
      ' cannot be compared. Use a config with equal num_steps.'
    )

  def mean(runs: list[report.Summary], field: str) -> float:
    return statistics.fmean(getattr(run, field) for run in runs)

  rows = [
    Row(
      method=method,
      seeds=len(runs),
      validation_loss=mean(runs, 'validation_loss'),
      spread=statistics.stdev(run.validation_loss for run in runs)
      if len(runs) > 1
      else None,
      validation_bits_per_byte=mean(runs, 'validation_bits_per_byte'),
      bits_per_parameter_and_step=mean(runs, 'bits'),
      bits_per_parameter=mean(runs, 'bits') * runs[0].steps,
      tokens=runs[0].tokens,
      seconds=mean(runs, 'seconds'),
    )
    for method, runs in by_method.items()
  ]
  return sorted(rows, key=lambda row: row.validation_loss)


def _write(
  rows: list[Row],
  summaries: dict[tuple[str, int], report.Summary],
  workdir: pathlib.Path,
) -> None:
  records = [dataclasses.asdict(row) for row in rows]
  with (workdir / _CSV).open('w', newline='', encoding='utf-8') as file:
    writer = csv.DictWriter(file, records[0])
    writer.writeheader()
    writer.writerows(records)
  (workdir / _MARKDOWN).write_text(markdown(rows), encoding='utf-8')
  everything = {
    'rows': records,
    'runs': [
      dataclasses.asdict(summary)
      | {'versions': provenance.recorded(_folder(workdir, *key))}
      for key, summary in summaries.items()
    ],
  }
  (workdir / _JSON).write_text(json.dumps(everything, indent=2) + '\n')


def _draw(
  rows: list[Row],
  summaries: dict[tuple[str, int], report.Summary],
  workdir: pathlib.Path,
) -> None:
  canvas = figure.Figure(figsize=(13, 6), layout='constrained')
  left, right = canvas.subplots(1, 2, sharey=True)
  # Two shades of a colour beside each other: a dashed line tells them apart.
  colors = matplotlib.colormaps['tab20'].colors
  highest = 0.0
  for i, row in enumerate(rows):
    folders = [
      _folder(workdir, method, seed)
      for method, seed in summaries
      if method == row.method
    ]
    curve = _curve(folders)
    highest = max(highest, float(curve['validation_loss'].mean(0)[0]))
    for axes, x in [(left, 'tokens'), (right, 'bits')]:
      _draw_curve(
        axes,
        curve[x][0],
        curve['validation_loss'],
        color=colors[i % 20],
        linestyle=('-', '--')[i % 2],
        label=f'{row.method} ({row.validation_loss:.3f})',
      )
  some = next(iter(summaries.values()))
  for axes in (left, right):
    report.draw_baselines(axes, some)
    axes.grid(alpha=0.3)
  # What is above the unigram tells nothing, unless methods end there.
  top = max(min(highest, some.unigram_loss), rows[-1].validation_loss)
  left.set_ylim(rows[0].validation_loss - 0.05, top + 0.1)
  left.set(xlabel='tokens', ylabel='validation loss [nats per token]')
  left.xaxis.set_major_formatter(ticker.EngFormatter())
  right.set(xlabel='bits sent per parameter, by each worker')
  if any(row.bits_per_parameter for row in rows):
    right.set_xscale('log')
  canvas.suptitle(
    f'{some.workers} workers, {some.sync_every} local steps a round,'
    f' {rows[0].seeds} seed{"s" if rows[0].seeds > 1 else ""}'
  )
  canvas.legend(
    *left.get_legend_handles_labels(), loc='outside right upper', fontsize=9
  )
  canvas.savefig(workdir / _PICTURE, dpi=120)


def _curve(folders: list[pathlib.Path]) -> dict[str, np.ndarray]:
  """Returns tokens, bits and validation losses, `[seeds, points]` each."""
  points = [
    [record for record in metrics.read(folder) if 'validation_loss' in record]
    for folder in folders
  ]
  return {
    name: np.array([[record[name] for record in run] for run in points])
    for name in ('tokens', 'bits', 'validation_loss')
  }


def _draw_curve(axes, x: np.ndarray, losses: np.ndarray, **style: Any) -> None:
  """Draws the mean over seeds, and their range as a band."""
  axes.plot(x, losses.mean(0), **style)
  if len(losses) > 1:
    axes.fill_between(
      x, losses.min(0), losses.max(0), color=style['color'], alpha=0.2
    )
