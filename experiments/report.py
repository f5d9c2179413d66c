"""What a run leaves behind: a summary, a table and a picture."""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib

from matplotlib import figure, ticker

from experiments import errors, memory, metrics, outputs, tasks, traffic

_FILE = 'summary.json'
_PICTURE = 'curves.png'
_GREY = '0.4'

# How measures are shown: a name, a unit and a factor.
_SHOWN = {
  'validation_loss': ('validation loss', 'nats', 1),
  'validation_bits_per_byte': ('  in bits per byte', '', 1),
  'validation_perplexity': ('  as perplexity', '', 1),
  'top_1': ('top-1 accuracy', '%', 100),
  'top_5': ('top-5 accuracy', '%', 100),
}


@dataclasses.dataclass(frozen=True)
class Summary:
  """The result of a finished run.

  Attributes:
    unit: what is counted, 'tokens' or 'images'.
    seen: how many all workers together have been trained on.
    measures: of the synchronised parameters on all held-out data, by name.
      Losses are in nats per token or image.
    baselines: losses to be beaten, by name.
    bits: sent by one worker per parameter and local step.
    peak_bytes: that a round needs on each device.
    source: name of the data.
    sha256: its checksum.
  """

  method: str
  workers: int
  sync_every: int
  seed: int
  steps: int
  parameters: int
  unit: str
  seen: int
  epochs: float
  measures: dict[str, tasks.Estimate]
  baselines: dict[str, float]
  bits: float
  all_reduce_bits: float
  peak_bytes: int
  seconds: float
  source: str
  sha256: str

  @property
  def validation_loss(self) -> float:
    """In nats per token or image."""
    return self.measures['validation_loss'].value

  @property
  def error_rate(self) -> float:
    """By which runs are ranked, see `error_rate`."""
    values = {name: found.value for name, found in self.measures.items()}
    return error_rate(values)


def error_rate(values: Mapping[str, float]) -> float:
  """By which runs are ranked: of images the share that is mistaken.

  Of text, it is the loss. Lower is better.

  Args:
    values: of measures, by name.
  """
  if 'top_1' in values:
    return 1 - values['top_1']
  return values['validation_loss']


def flat(measures: tasks.Measures) -> dict[str, float]:
  """Measures for a log: values by name, errors by NAME_error."""
  return {
    f'{name}{suffix}': number
    for name, estimate in measures.items()
    for suffix, number in zip(('', '_error'), estimate, strict=True)
  }


def headline(measures: tasks.Measures) -> str:
  """The most important of some measures, for a line."""
  words = [f'validation {measures["validation_loss"].value:.3f}']
  if 'top_1' in measures:
    words.append(f'top-1 {measures["top_1"].value:.1%}')
  return ', '.join(words)


def save(summary: Summary, workdir: str | os.PathLike) -> None:
  """Writes the summary; a run that has one is finished."""
  text = json.dumps(dataclasses.asdict(summary), indent=2) + '\n'
  outputs.write(pathlib.Path(workdir) / _FILE, text)


def load(workdir: str | os.PathLike) -> Summary | None:
  """Returns the summary of a finished run, None of any other.

  Raises:
    UserError: if the file is not a summary.
  """
  path = pathlib.Path(workdir) / _FILE
  if not path.exists():
    return None
  try:
    fields = json.loads(path.read_text())
    measures = {
      name: tasks.Estimate(*map(float, pair))
      for name, pair in fields.pop('measures').items()
    }
    [_SHOWN[name] for name in ('validation_loss', *measures)]
    return Summary(measures=measures, **fields)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise errors.UserError(
      f'{path} is not the summary of a run ({error}). Delete it and run the'
      ' same command to have it written again.'
    ) from error


def table(summary: Summary) -> str:
  """The summary for people."""
  s = summary
  sent = traffic.sent(s.bits, s.parameters, s.steps, s.seconds)
  names = sorted(s.measures, key=list(_SHOWN).index)
  results = [_result(name, s) for name in names]
  results += [
    f'{f"  {name} baseline":<22}{loss:14.4f} nats'
    for name, loss in s.baselines.items()
  ]
  facts = [
    (s.unit, f'{s.seen:,}', f'{s.epochs:.2f} epochs of {s.source}'),
    (
      'wall time',
      f'{s.seconds:,.1f} s',
      f'{s.seen / s.seconds:,.0f} {s.unit}/s',
    ),
    (
      'peak memory',
      memory.shown(s.peak_bytes),
      'of a round, on each device',
    ),
    (
      'bits sent',
      f'{s.bits:.3f}',
      'per parameter and local step, by each worker',
    ),
    (
      '  32-bit all-reduce',
      f'{s.all_reduce_bits:.3f}',
      _times(s.all_reduce_bits, s.bits),
    ),
    (
      '  in all',
      f'{sent["bits"]:,.0f}',
      f'per parameter; {sent["bytes_sent"] / 1e6:,.1f} MB by each worker',
    ),
    (
      '  on average',
      f'{sent["bits_per_second"] / 1e6:,.3f}',
      'Mbit/s by each worker, over the whole wall time',
    ),
  ]
  lines = [
    f'{s.method}: {s.parameters:,} parameters, {s.workers} workers,'
    f' {s.steps:,} local steps, {s.sync_every} a round, seed {s.seed}',
    *results,
    *(f'{name:<22}{value:>14} {note}' for name, value, note in facts),
  ]
  rule = '-' * max(map(len, lines))
  return '\n'.join([rule, lines[0], rule, *lines[1:], rule])


def draw(summary: Summary, workdir: str | os.PathLike) -> pathlib.Path:
  """Draws the curves of a run and returns the path of the picture."""
  records = metrics.read(workdir)
  canvas = figure.Figure(figsize=(8, 5), layout='constrained')
  axes = canvas.subplots()
  for name, label in [
    ('train_loss', 'training'),
    ('validation_loss', 'validation, synchronised parameters'),
  ]:
    points = [(r[summary.unit], r[name]) for r in records if name in r]
    if not points:
      continue
    style = {'alpha': 0.5, 'linewidth': 1} if name == 'train_loss' else {}
    axes.plot(*zip(*points, strict=True), label=label, **style)
  draw_baselines(axes, summary)
  axes.set(
    xlabel=summary.unit,
    ylabel=f'loss [nats per {summary.unit.removesuffix("s")}]',
    title=f'{summary.method}, {summary.workers} workers,'
    f' {summary.sync_every} local steps a round',
  )
  axes.xaxis.set_major_formatter(ticker.EngFormatter())
  axes.grid(alpha=0.3)
  if axes.get_legend_handles_labels()[0]:
    axes.legend()
  path = pathlib.Path(workdir) / _PICTURE
  canvas.savefig(path, dpi=120)
  return path


def draw_baselines(axes, summary: Summary) -> None:
  """Draws what is to be beaten, as lines across."""
  for (name, loss), style in zip(
    summary.baselines.items(), (':', '--'), strict=False
  ):
    axes.axhline(
      loss, color=_GREY, linestyle=style, label=f'{name} ({loss:.2f})'
    )


def _result(name: str, summary: Summary) -> str:
  value, error = summary.measures[name]
  shown, unit, factor = _SHOWN[name]
  unit = (
    f'{unit} per {summary.unit.removesuffix("s")}' if unit == 'nats' else unit
  )
  return (
    f'{shown:<22}{factor * value:14.4f} ± {factor * error:.4f} {unit}'.rstrip()
  )


def _times(all_reduce: float, bits: float) -> str:
  if not all_reduce:
    return 'a single worker sends nothing'
  return f'every step: {all_reduce / bits:,.1f} times as much'
