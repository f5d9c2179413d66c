"""What was measured on a wire: rows, a table, and when compression pays."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import statistics
from typing import Any

from experiments import exchanges, network, wire_worker
from signmomentum import wire

BASELINE = 'fp32_mean'
_GAIN = 1.05  # less is no gain


@dataclasses.dataclass(frozen=True)
class Row:
  """One exchange among some processes on some link.

  Bits are sent by a worker for a parameter in an exchange.

  Attributes:
    name: a key of `exchanges.EXCHANGES`.
    leaves: of the tree.
    processes: workers.
    link: as `network.parse` reads it.
    seconds: of an exchange; the median of all exchanges and workers.
    transmission: seconds that the link takes for the bits of the compiled
      program, and for its hops.
    processor_seconds: that a worker computes, and handles messages.
    compiled_bits: by the text of the compiled program.
    payload_bits: by the interface, without what frames it.
    wire_bits: by the interface, with that and with acknowledgements.
    steps: local steps per second, by how many there are in a round.
    ceiling: the same without any exchange.
    collectives: kinds of those in the compiled program.
    raw: what each worker saw.
  """

  name: str
  leaves: int
  processes: int
  link: str
  seconds: float
  transmission: float
  processor_seconds: float
  compiled_bits: float
  payload_bits: float
  wire_bits: float
  steps: Mapping[int, float]
  ceiling: Mapping[int, float]
  collectives: Sequence[str]
  raw: Sequence[Mapping[str, Any]] = dataclasses.field(repr=False, default=())

  @property
  def place(self) -> tuple[str, int, int]:
    """What a row has in common with those that it is compared with."""
    return self.link, self.processes, self.leaves


def row(link: str, parameters: int, cells: Sequence[wire_worker.Cell]) -> Row:
  """Makes a row of what each worker saw of the same exchange."""
  first, limit = cells[0], network.parse(link)

  def mean(values):
    return statistics.fmean(values)

  def per_parameter(sent_bytes):
    return 8 * sent_bytes / parameters

  def medians(rates):
    return {
      int(steps): statistics.median(
        rate for cell in cells for rate in getattr(cell, rates)[steps]
      )
      for steps in getattr(first, rates)
    }

  wire_bytes = mean(cell.sent_bytes for cell in cells)
  headers = network.HEADERS * mean(cell.frames for cell in cells)
  return Row(
    name=first.name,
    leaves=first.leaves,
    processes=len(cells),
    link=link,
    seconds=statistics.median(s for cell in cells for s in cell.seconds),
    transmission=8 * first.compiled_bytes / limit.bits_per_second
    + first.hops * limit.latency_seconds,
    processor_seconds=mean(cell.processor_seconds for cell in cells),
    compiled_bits=per_parameter(first.compiled_bytes),
    payload_bits=per_parameter(wire_bytes - headers),
    wire_bits=per_parameter(wire_bytes),
    steps=medians('steps_per_second'),
    ceiling=medians('ceiling'),
    collectives=first.collectives,
    raw=[dataclasses.asdict(cell) for cell in cells],
  )


def table(rows: Sequence[Row]) -> str:
  """All rows, in columns; those that compare are together."""
  counts = sorted({steps for row in rows for steps in row.steps})
  lines = [
    f'{"":25}{"seconds":>10}{"pure":>8}{"times":>6}{"times as":>9}'
    f'{"bits":>9}{"payload":>9}{"on the":>9}'
    + ''.join(f'{"steps":>8}{"of the":>8}' for _ in counts),
    f'{"":25}{"/exchange":>10}{"trans.":>8}{"pure":>6}{"fast":>9}'
    f'{"compiled":>9}{"sent":>9}{"wire":>9}'
    + ''.join(f'{f"/s, {k}":>8}{"ceiling":>8}' for k in counts),
  ]
  for place in dict.fromkeys(row.place for row in rows):
    link, processes, leaves = place
    many = f', {leaves} leaves' if leaves > 1 else ''
    lines += ['', f'{processes} processes, {link}{many}']
    lines += [
      _line(row, baseline(rows, row), counts)
      for row in rows
      if row.place == place
    ]
  return '\n'.join(lines)


def baseline(rows: Sequence[Row], row: Row) -> Row | None:
  """The full-precision mean that a row is compared with, if it was measured."""
  for other in rows:
    if other.place == row.place and other.name == BASELINE:
      return other
  return None


def _line(row: Row, mean: Row | None, counts: Sequence[int]) -> str:
  limited = row.transmission > 0
  return (
    f'  {exchanges.EXCHANGES[row.name].label:23}'
    f'{row.seconds:10.4f}'
    + (f'{row.transmission:8.3f}' if limited else f'{"-":>8}')
    + (f'{row.seconds / row.transmission:6.2f}' if limited else f'{"-":>6}')
    + (f'{mean.seconds / row.seconds:9.2f}' if mean else f'{"-":>9}')
    + f'{row.compiled_bits:9.3f}{row.payload_bits:9.3f}{row.wire_bits:9.3f}'
    + ''.join(
      f'{row.steps[k]:8.2f}{row.steps[k] / row.ceiling[k]:8.1%}' for k in counts
    )
  )


def model_seconds(
  name: str, workers: int, rate: float, parameters: int, computing: float
) -> float:
  """What an exchange takes by the model: computing, then transmission.

  Args:
    name: a key of `exchanges.EXCHANGES`.
    workers: their number.
    rate: of every worker's link, in bits per second.
    parameters: exchanged.
    computing: seconds for encoding and decoding them, measured.
  """
  bits = exchanges.EXCHANGES[name].bits(workers) * parameters
  return computing + network.FRAMING * bits / rate


def break_even(
  name: str, workers: int, parameters: int, computing: Mapping[str, float]
) -> float:
  """The rate below which an exchange beats the full-precision mean.

  Args:
    name: a key of `exchanges.EXCHANGES`.
    workers: their number.
    parameters: exchanged.
    computing: seconds for encoding and decoding them, by name.
  """
  bits, mean_bits = (
    network.FRAMING * exchanges.EXCHANGES[n].bits(workers) * parameters
    for n in (name, BASELINE)
  )
  return wire.break_even(bits, computing[name], mean_bits, computing[BASELINE])


def verdict(
  rows: Sequence[Row], parameters: int, computing: Mapping[str, float]
) -> str:
  """In words: where compression does not pay, and below which rate it does."""
  lines = [
    'Where compression does not pay, as measured (a gain below'
    f' {_GAIN - 1:.0%} is none):'
  ]
  lines += list(_measured(rows)) or ['  nowhere among these.']
  if BASELINE in computing:
    lines.append(
      'By the model, with encoding and decoding as two workers do it that have'
      ' this machine to themselves, an exchange beats the float32 mean'
    )
    lines += list(_modelled(rows, parameters, computing))
  return '\n'.join(lines)


def _measured(rows: Sequence[Row]) -> Iterator[str]:
  for mean in rows:
    if mean.name != BASELINE:
      continue
    others = [
      row
      for row in rows
      if baseline(rows, row) is mean
      and row is not mean
      and row.name in exchanges.METHODS
    ]
    slow = [row for row in others if row.seconds * _GAIN > mean.seconds]
    parts = [f'an exchange is not shorter as {_labels(slow)}'] if slow else []
    for steps in mean.steps:
      vain = [
        row for row in others if row.steps[steps] < _GAIN * mean.steps[steps]
      ]
      if vain:
        parts.append(
          f'training with {steps} local step{"s" if steps > 1 else ""} is not'
          f' faster with {_labels(vain, others)}'
        )
    if parts:
      yield f'  {mean.processes} processes, {mean.link}: {"; ".join(parts)}.'


def _labels(rows: Sequence[Row], of: Sequence[Row] = ()) -> str:
  if len(rows) == len(of) > 1:
    return 'any of these'
  return ', '.join(exchanges.EXCHANGES[row.name].label for row in rows)


def _modelled(
  rows: Sequence[Row], parameters: int, computing: Mapping[str, float]
) -> Iterator[str]:
  counts = sorted({row.processes for row in rows})
  for name in computing:
    if name == BASELINE:
      continue
    rates = [break_even(name, n, parameters, computing) for n in counts]
    words = ', '.join(
      f'{_rate(rate)} with {n} workers'
      for n, rate in zip(counts, rates, strict=True)
    )
    yield f'  {exchanges.EXCHANGES[name].label}: {words}'
  yield (
    '  and the all-gather of votes on no link with more than 64 workers: it'
    ' sends n - 1 bits where the mean sends 64 (n - 1) / n.'
  )


def _rate(rate: float) -> str:
  if math.isinf(rate):
    return 'on every link'
  return f'below {rate / 1e9:.3g} Gbit/s' if rate else 'on no link'
