"""Links between workers: how long sending takes, and when sending less pays.

The model of an exchange has three terms, one after the other:

  seconds = overhead + bits / rate + hops * latency

`overhead` is the computing that the exchange takes on a machine, encoding and
decoding, and has to be measured. `bits` are what a worker sends; it receives as
many at the same time. `hops` are messages of which each waits for the one
before. Computation that goes on meanwhile, the framing of a protocol, and links
that workers share are not in the model.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Link:
  """What joins a worker to the others.

  Attributes:
    bits_per_second: what a worker can send, and receive at the same time; inf
      for a link on which only latency takes time.
    latency_seconds: from the sending of a bit by one worker to its arrival at
      another, one way.

  Raises:
    ValueError: A rate that is not above 0, or a latency that is not a finite
      number from 0.

  Example:
    >>> from signmomentum import wire
    >>> wire.Link(100e6, latency_seconds=0.02)
    Link(bits_per_second=100000000.0, latency_seconds=0.02)
  """

  bits_per_second: float
  latency_seconds: float = 0.0

  def __post_init__(self):
    if not self.bits_per_second > 0:
      raise ValueError(
        f'Link: bits_per_second={self.bits_per_second} must be above 0'
        ' (math.inf: sending takes no time).'
      )
    if not 0 <= self.latency_seconds < math.inf:
      raise ValueError(
        f'Link: latency_seconds={self.latency_seconds} must be a finite number'
        ' from 0.'
      )


# Hops of a reduction or a gathering; an all-reduce is one of each.
ALGORITHMS: Mapping[str, Callable[[int], int]] = {
  'ring': lambda n: n - 1,
  'tree': lambda n: math.ceil(math.log2(n)),
  'direct': lambda n: min(1, n - 1),
}
_GATHERING = {'all-reduce': 2, 'all-gather': 1, 'reduce-scatter': 1}


def hops(kind: str, workers: int, algorithm: str = 'ring') -> int:
  """Messages of a collective of which each waits for the one before.

  ================== ========== ================== ==========
  kind               `'ring'`   `'tree'`           `'direct'`
  ================== ========== ================== ==========
  all-reduce         2 (n-1)    2 ceil(log2 n)     2
  all-gather         n-1        ceil(log2 n)       1
  reduce-scatter     n-1        ceil(log2 n)       1
  all others         1          1                  1
  ================== ========== ================== ==========

  One worker alone has none.

  Args:
    kind: As in `wire.Collective`.
    workers: How many take part.
    algorithm: A key of `ALGORITHMS`.

  Raises:
    ValueError: An unknown algorithm.
  """
  if algorithm not in ALGORITHMS:
    raise ValueError(
      f'algorithm={algorithm!r} must be one of {", ".join(ALGORITHMS)}.'
    )
  if kind in _GATHERING:
    return _GATHERING[kind] * ALGORITHMS[algorithm](workers)
  return min(1, workers - 1)


def break_even(
  bits: float,
  overhead_seconds: float,
  baseline_bits: float,
  baseline_overhead_seconds: float = 0.0,
) -> float:
  """The rate of a link below which a method is faster than the baseline.

  From `overhead + bits / rate`, on both sides:

    rate = (baseline_bits - bits) / (overhead - baseline_overhead)

  Args:
    bits: What a worker sends in an exchange of the method.
    overhead_seconds: What an exchange of the method takes apart from that: the
      measured encoding and decoding, and with latency its hops, which is
      `wire.exchange_seconds(compiled, wire.Link(math.inf, latency))`.
    baseline_bits: The same of what it is compared with, as the full-precision
      mean.
    baseline_overhead_seconds: Likewise.

  Returns:
    Bits per second; inf if the method is faster on every link, 0 if on none.

  Raises:
    ValueError: A number that is negative or not finite; or a method that sends
      more and has less overhead: it is faster above a rate, not below one.

  Example:
    A vote sends 1.5 bits for each of 10 million parameters where the mean sends
    48, and takes 10 ms more of computing.

    >>> from signmomentum import wire
    >>> rate = wire.break_even(1.5e7, 0.012, 48e7, 0.002)
    >>> f'{rate / 1e9:.1f} Gbit/s'
    '46.5 Gbit/s'
  """
  given = (bits, overhead_seconds, baseline_bits, baseline_overhead_seconds)
  if not all(0 <= number < math.inf for number in given):
    raise ValueError(f'break_even: {given} must be finite numbers from 0.')
  saved = baseline_bits - bits
  spent = overhead_seconds - baseline_overhead_seconds
  if saved < 0 and spent < 0:
    raise ValueError(
      'break_even: the method sends more than the baseline and has less'
      ' overhead, so that it is the faster one above a rate. Exchange the two.'
    )
  if spent > 0:
    return max(0.0, saved / spent)
  return math.inf if saved > 0 or spent < 0 else 0.0
