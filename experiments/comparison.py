"""What comes out of a sweep: for each study a table, and all of it as JSON."""

from collections.abc import Iterable
import dataclasses
import json
import statistics
from typing import Any

from experiments import outcomes, provenance, settings

_JSON, _MARKDOWN = 'results.json', 'results.md'


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
    validation_loss: in nats per token; None if all diverged.
    spread: its standard deviation over seeds, None below two.
    validation_bits_per_byte: the same loss.
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
  validation_loss: float | None
  spread: float | None
  validation_bits_per_byte: float | None
  bits_per_parameter_and_step: float | None
  bits_per_parameter: float | None
  seconds: float | None


def rows(results: outcomes.Results, study: settings.Study) -> list[Row]:
  """The rows of a study, the best first; methods without a run have none."""
  found = [
    _row(method, results.choice(study, method), known)
    for method in study.methods
    if (known := list(results.best(study, method).values()))
  ]

  def rank(row):  # a method that diverges at all is behind those that do not
    return row.diverged, row.validation_loss or 0.0

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
  """Writes tables and JSON into the directory of the results."""
  everything = {
    'studies': [_record(results, study) for study in results.sweep.values()]
  }
  results.workdir.mkdir(parents=True, exist_ok=True)
  (results.workdir / _MARKDOWN).write_text(markdown(results), encoding='utf-8')
  (results.workdir / _JSON).write_text(json.dumps(everything, indent=1) + '\n')


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
    validation_loss=mean('validation_loss'),
    spread=statistics.stdev(s.validation_loss for s in good)
    if len(good) > 1
    else None,
    validation_bits_per_byte=mean('validation_bits_per_byte'),
    bits_per_parameter_and_step=bits,
    bits_per_parameter=bits * good[0].steps if good else None,
    seconds=mean('seconds'),
  )


def _heading(study: settings.Study) -> str:
  s = study.setting()
  facts = [
    f'{s.workers} worker{"s" if s.workers > 1 else ""}',
    f'{s.sync_every} local steps a round',
    f'{s.steps:,} steps',
    f'{s.tokens:,} tokens',
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


def _table(found: Iterable[Row]) -> str:
  lines = [
    '| method | seeds | validation, nats/token | bits/byte | learning rate'
    ' | bits sent per parameter and step | in all | seconds | notes |',
    '| --- | --: | --: | --: | --: | --: | --: | --: | --- |',
  ]
  for row in found:
    cells = [row.method, row.seeds, _loss(row), *_numbers(row), _notes(row)]
    lines.append(f'| {" | ".join(map(str, cells))} |')
  return '\n'.join(lines) + '\n'


def _loss(row: Row) -> str:
  if row.validation_loss is None:
    return 'diverged'
  spread = '' if row.spread is None else f' ± {row.spread:.4f}'
  return f'{row.validation_loss:.4f}{spread}'


def _numbers(row: Row) -> list[str]:
  return [
    format(value, spec) if value is not None else '–'
    for value, spec in [
      (row.validation_bits_per_byte, '.4f'),
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
