"""What a run leaves behind: a summary, a table and a picture."""

import dataclasses
import json
import os
import pathlib

from matplotlib import figure, ticker

from experiments import errors, metrics, traffic

_FILE = 'summary.json'
_PICTURE = 'curves.png'
_COLORS = {'unigram': '0.6', 'bigram': '0.3'}


@dataclasses.dataclass(frozen=True)
class Summary:
  """The result of a finished run.

  Losses are of the synchronised parameters on all validation text, in nats per
  token; `bits` are sent by one worker per parameter and local step.
  """

  method: str
  workers: int
  sync_every: int
  seed: int
  steps: int
  parameters: int
  tokens: int
  epochs: float
  validation_loss: float
  validation_bits_per_byte: float
  unigram_loss: float
  unigram_bits_per_byte: float
  bigram_loss: float
  bigram_bits_per_byte: float
  bits: float
  all_reduce_bits: float
  seconds: float
  tokens_per_second: float
  corpus: str
  corpus_sha256: str


def save(summary: Summary, workdir: str | os.PathLike) -> None:
  """Writes the summary; a run that has one is finished."""
  path = pathlib.Path(workdir) / _FILE
  partial = path.with_name(f'{_FILE}.partial')
  partial.write_text(json.dumps(dataclasses.asdict(summary), indent=2) + '\n')
  os.replace(partial, path)


def load(workdir: str | os.PathLike) -> Summary | None:
  """Returns the summary of a finished run, None of any other.

  Raises:
    UserError: if the file is not a summary.
  """
  path = pathlib.Path(workdir) / _FILE
  if not path.exists():
    return None
  try:
    return Summary(**json.loads(path.read_text()))
  except (ValueError, TypeError) as error:
    raise errors.UserError(
      f'{path} is not the summary of a run ({error}). Delete it and run the'
      ' same command to have it written again.'
    ) from error


def table(summary: Summary) -> str:
  """The summary for people."""
  s = summary
  sent = traffic.sent(s.bits, s.parameters, s.steps, s.seconds)
  rows = [
    ('validation loss', s.validation_loss, s.validation_bits_per_byte),
    ('  bigram baseline', s.bigram_loss, s.bigram_bits_per_byte),
    ('  unigram baseline', s.unigram_loss, s.unigram_bits_per_byte),
  ]
  losses = [
    f'{name:<28}{nats:8.4f} nats/token{bits:9.4f} bits/byte'
    for name, nats, bits in rows
  ]
  facts = [
    ('tokens', f'{s.tokens:,}', f'{s.epochs:.2f} epochs of {s.corpus}'),
    (
      'wall time',
      f'{s.seconds:,.1f} s',
      f'{s.tokens_per_second:,.0f} tokens/s',
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
    *losses,
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
    points = [(r['tokens'], r[name]) for r in records if name in r]
    style = {'alpha': 0.5, 'linewidth': 1} if name == 'train_loss' else {}
    axes.plot(*zip(*points, strict=True), label=label, **style)
  draw_baselines(axes, summary)
  axes.set(
    xlabel='tokens',
    ylabel='loss [nats per token]',
    title=f'{summary.method}, {summary.workers} workers,'
    f' {summary.sync_every} local steps a round',
  )
  axes.xaxis.set_major_formatter(ticker.EngFormatter())
  axes.grid(alpha=0.3)
  axes.legend()
  path = pathlib.Path(workdir) / _PICTURE
  canvas.savefig(path, dpi=120)
  return path


def draw_baselines(axes, summary: Summary) -> None:
  """Draws what counting achieves, as lines across."""
  for name, style in [('unigram', ':'), ('bigram', '--')]:
    loss = getattr(summary, f'{name}_loss')
    axes.axhline(
      loss, color=_COLORS[name], linestyle=style, label=f'{name} ({loss:.2f})'
    )


def _times(all_reduce: float, bits: float) -> str:
  if not all_reduce:
    return 'a single worker sends nothing'
  return f'every step: {all_reduce / bits:,.1f} times as much'
