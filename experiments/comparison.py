"""What comes out of a sweep: for each study a table, and all of it as JSON."""

from collections.abc import Callable, Sequence
import dataclasses
import json
import statistics
from typing import Any

from experiments import outcomes, outputs, provenance, report, settings

_JSON, _MARKDOWN = 'results.json', 'results.md'
# Columns of the measures that there are, and of what every run has.
_COLUMNS = {
  'validation_loss': ('validation, nats', '.4f'),
  'validation_bits_per_byte': ('bits/byte', '.4f'),
  'top_1': ('top-1', '.2%'),
  'top_5': ('top-5', '.2%'),
}
_FACTS = (
  'learning rate',
  'bits sent per parameter and step',
  'in all',
  'seconds',
  'notes',
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A method in a study: means over the seeds at its best rate.

  Attributes:
    method: its name.
    rate: the best learning rate, of those that are known.
    settled: whether all rates that are to be tried have been.
    at_edge: whether it is the lowest or the highest that was tried.
    seeds: how many have been run, those that diverged included.
    diverged: how many of them did; they are not in the means.
    measures: by name; empty if all diverged.
    spreads: their standard deviations over seeds; empty below two.
    bits_per_parameter_and_step: sent by each worker.
    bits_per_parameter: of the whole run.
    seconds: of a run.
  """

  method: str
  rate: float
  settled: bool
  at_edge: bool
  seeds: int
  diverged: int
  measures: dict[str, float]
  spreads: dict[str, float]
  bits_per_parameter_and_step: float | None
  bits_per_parameter: float | None
  seconds: float | None

  @property
  def error_rate(self) -> float | None:
    """By which methods are ranked, None if all runs diverged."""
    return report.error_rate(self.measures) if self.measures else None

  @property
  def error_spread(self) -> float:
    """Its standard deviation over seeds, 0 below two."""
    name = 'top_1' if 'top_1' in self.measures else 'validation_loss'
    return self.spreads.get(name, 0.0)


def rows(results: outcomes.Results, study: settings.Study) -> list[Row]:
  """The rows of a study, the best first; methods without a run have none."""
  found = [
    _row(method, results.choice(study, method), known)
    for method in study.methods
    if (known := list(results.best(study, method).values()))
  ]

  def rank(row):  # a method that diverges at all is behind those that do not
    return row.diverged, row.error_rate or 0.0

  return sorted(found, key=rank)


def markdown(results: outcomes.Results) -> str:
  """The tables of all studies that have runs."""
  tables = [
    f'{_heading(study)}\n\n{_table(found)}'
    for study in results.sweep.values()
    if (found := rows(results, study))
  ]
  return '\n'.join(tables)


def write(results: outcomes.Results) -> None:
  """Writes tables and JSON into the directory of the results.

  Where no run has ended there is nothing to tell: what is there, stays.
  """
  text = markdown(results)
  if not text:
    return
  everything = {
    'studies': [_record(results, study) for study in results.sweep.values()]
  }
  outputs.directory(results.workdir)
  outputs.write(results.workdir / _MARKDOWN, text)
  outputs.write(
    results.workdir / _JSON, json.dumps(everything, indent=1) + '\n'
  )


def _row(
  method: str, choice: settings.Choice, known: list[outcomes.Outcome]
) -> Row:
  good = [end.summary for end in known if end.summary is not None]

  def mean(field):
    return statistics.fmean(getattr(s, field) for s in good) if good else None

  bits = mean('bits')
  return Row(
    method=method,
    rate=choice.best,
    settled=choice.settled,
    at_edge=choice.at_edge,
    seeds=len(known),
    diverged=len(known) - len(good),
    measures=_each(good, statistics.fmean) if good else {},
    spreads=_each(good, statistics.stdev) if len(good) > 1 else {},
    bits_per_parameter_and_step=bits,
    bits_per_parameter=bits * good[0].steps if good else None,
    seconds=mean('seconds'),
  )


def _each(
  summaries: list[report.Summary], summary_of: Callable[[list[float]], float]
) -> dict[str, float]:
  return {
    name: summary_of([s.measures[name].value for s in summaries])
    for name in summaries[0].measures
  }


def _heading(study: settings.Study) -> str:
  s = study.setting()
  facts = [
    f'{s.workers} worker{"s" if s.workers > 1 else ""}',
    f'{s.sync_every} local steps a round',
    f'{s.steps:,} steps',
    f'{s.seen:,} {s.unit}',
  ]
  if s.presence < 1:
    facts.append(f'each worker present with probability {s.presence:g}')
  if s.adversaries:
    facts.append(f'adversaries among the workers: {s.adversaries}')
  if study.tuned:
    facts.append('rates tuned')
  if study.rates_of is not None:
    facts.append(f'rates of the study {study.rates_of}')
  return f'### {study.name}\n\n{", ".join(facts)}.'


def _table(found: Sequence[Row]) -> str:
  shown = [
    (name, *column)
    for name, column in _COLUMNS.items()
    if any(name in row.measures for row in found)
  ]
  titles = ['method', 'seeds', *(title for _, title, _ in shown), *_FACTS]
  aligned = ['---', *['--:'] * (len(titles) - 2), '---']
  lines = [f'| {" | ".join(titles)} |', f'| {" | ".join(aligned)} |']
  for row in found:
    results = [_result(row, name, spec) for name, _, spec in shown]
    cells = [row.method, row.seeds, *results, *_numbers(row), _notes(row)]
    lines.append(f'| {" | ".join(map(str, cells))} |')
  return '\n'.join(lines) + '\n'


def _result(row: Row, name: str, spec: str) -> str:
  if name not in row.measures:
    return 'diverged'
  spread = row.spreads.get(name)
  error = '' if spread is None else f' ± {format(spread, spec)}'
  return format(row.measures[name], spec) + error


def _numbers(row: Row) -> list[str]:
  return [
    format(value, spec) if value is not None else '–'
    for value, spec in [
      (row.rate, 'g'),
      (row.bits_per_parameter_and_step, '.3f'),
      (row.bits_per_parameter, ',.0f'),
      (row.seconds, ',.0f'),
    ]
  ]


def _notes(row: Row) -> str:
  notes = []
  if row.diverged:
    notes.append(f'{row.diverged} of {row.seeds} diverged')
  if row.at_edge:
    notes.append('best rate at the edge of the grid')
  if not row.settled:
    notes.append('tuning not finished')
  return ', '.join(notes)


def _record(results: outcomes.Results, study: settings.Study) -> dict[str, Any]:
  """All that is known of a study, for JSON."""
  runs = {
    run: outcome
    for method in study.methods
    for run in results.runs(study, method, study.seeds)
    if (outcome := results.outcome(run)) is not None
  }
  return {
    **dataclasses.asdict(study),
    'setting': study.setting()._asdict(),
    'rows': [dataclasses.asdict(row) for row in rows(results, study)],
    'runs': [
      {
        **run._asdict(),
        'diverged': outcome.diverged,
        'summary': outcome.summary and dataclasses.asdict(outcome.summary),
        'versions': provenance.recorded(results.folder(run)),
      }
      for run, outcome in runs.items()
    ],
  }
