"""One-bit votes: a worker's signs, their count, and what comes back, packed.

A *grid* is an array of words ``[k, 128]``: 32 elements to a word (see
``bits``), where the 128 elements at one bit of one row are a *block*. A packed
message is a few grids (:class:`Grids`), with masks by block and by worker.

What a vote does with a zero is decided once, by ``zeros``:

========= ======================================= =====================
zeros     a zero element                          bits per element, up
========= ======================================= =====================
'block'   abstains if its block is zero here,     1 + 1/128
          else gets this worker's coin
'exact'   abstains                                2
'coin'    gets this worker's coin                 1
========= ======================================= =====================

Who abstains is not counted. A NaN has no sign: it counts as zero.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from signmomentum import bits, kernels

ZEROS = ('block', 'exact', 'coin')
BLOCK = 128  # elements in a block, and words in a row of a grid


class Grids(NamedTuple):
  """A packed message, with a leading axis where it is of many workers.

  Votes are ``elements = (positive,)`` or, if zeros are exact,
  ``(positive, nonzero)``; ``blocks = (not all zero,)`` if zeros are by block;
  ``whole = (present,)`` if workers may be absent. Counts of votes have the
  bit planes of the count in the place of each.
  """

  elements: bits.Planes  # of shape [k, l]
  blocks: bits.Planes = ()  # [k, 1]
  whole: bits.Planes = ()  # [1, 1]

  def mask(self) -> bits.Planes:
    """The finest statement of who takes part; empty: everyone does."""
    return self.elements[1:] or self.blocks or self.whole


class Tally(NamedTuple):
  """What :func:`decode` turns to numbers: ``weight * planes - offset``.

  The offset is an int where it is the same everywhere, else planes.
  """

  weight: int
  planes: bits.Planes
  offset: bits.Planes | int


def cast(
  positive: jax.Array,
  nonzero: jax.Array,
  zeros: str,
  key: jax.Array,
  present: jax.Array | None = None,
) -> Grids:
  """One worker's votes.

  Args:
    positive: grid: where an element is above zero.
    nonzero: grid: where an element is above or below zero.
    zeros: one of ``ZEROS``.
    key: random key of this worker and step, for the coins.
    present: whether this worker takes part, a boolean scalar; None: it does,
      and so do all others.

  Returns:
    the votes.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from signmomentum import signs
    >>> word = jnp.array([[0b01]], jnp.uint32)
    >>> signs.cast(word, word | 2, 'exact', jax.random.key(0)).elements
    (Array([[1]], dtype=uint32), Array([[3]], dtype=uint32))
  """
  here = () if present is None else (bits.mask(present).reshape(1, 1),)
  for flag in here:
    nonzero = nonzero & flag
  if zeros == 'exact':
    return Grids((positive, nonzero), (), here)
  blocks = (bits.any_lane(nonzero),) if zeros == 'block' else ()
  undecided = ~nonzero
  for some in blocks:
    undecided &= some  # the others abstain
  return Grids((_toss(positive, undecided, key),), blocks, here)


def majority(votes: Grids, key: jax.Array) -> Grids:
  """Sign of the sum of the signs of those who take part.

  Args:
    votes: votes of N workers, with a leading axis. A tie is zero where zeros
      are exact, else a coin.
    key: random key for the coins of ties.

  Returns:
    the result, in the form of one worker's votes.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from signmomentum import signs
    >>> ballots = jnp.array([[[0b01]], [[0b11]], [[0b00]]], jnp.uint32)
    >>> signs.majority(signs.Grids((ballots,)), jax.random.key(0)).elements
    (Array([[1]], dtype=uint32),)
  """
  voters, plus = _count(votes)
  # plus wins where 2 * plus > voters; doubling is a shift of the planes
  plus, tie = bits.compare((jnp.zeros_like(plus[0]), *plus), voters)
  whole = tuple(_any(bits.count(flags)) for flags in votes.whole)
  if len(votes.elements) == 2:
    return Grids((plus, ~tie), (), whole)
  if votes.mask() or votes.elements[0].shape[0] % 2 == 0:  # else no ties
    plus = _toss(plus, tie & _any(voters), key)
  return Grids((plus,), (_any(voters),) if votes.blocks else (), whole)


def total(votes: Grids) -> Grids:
  """Sum of signs over workers, in as few planes as its range needs.

  Args:
    votes: votes of N workers, with a leading axis.

  Returns:
    ``ceil(log2(n + 1))`` planes of the count of plus, and those of the count of
    who takes part; if zeros are exact, ``ceil(log2(2n + 1))`` planes of the sum
    of ``1 + sign``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import signs
    >>> ballots = jnp.array([[[0b01]], [[0b11]], [[0b00]]], jnp.uint32)
    >>> signs.total(signs.Grids((ballots,))).elements  # 2 plus, 1 plus
    (Array([[2]], dtype=uint32), Array([[1]], dtype=uint32))
  """
  whole = bits.count(votes.whole[0]) if votes.whole else ()
  if len(votes.elements) == 2:
    # 1 + sign is 0, 1 or 2: two bits a worker, and their sum needs one plane
    # more than a count of plus; counts of plus and of minus would need twice.
    positive, nonzero = votes.elements
    twice = jnp.concatenate([positive & nonzero, positive | ~nonzero])
    return Grids(bits.count(twice), (), whole)
  voters, plus = _count(votes)
  return Grids(plus, voters if votes.blocks else (), whole)


def majority_tally(result: Grids) -> Tally:
  """A majority as numbers: ``2 * plus - taking part``, which is -1, 0 or 1.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import signs
    >>> result = signs.Grids((jnp.array([[0b01]], jnp.uint32),))
    >>> signs.majority_tally(result).offset
    1
  """
  return Tally(2, result.elements[:1], result.mask() or 1)


def mean_tally(
  counts: Grids, n: int, zeros: str
) -> tuple[Tally, int | jax.Array]:
  """A count as numbers, and what they are to be divided by.

  Args:
    counts: from :func:`total`.
    n: number of workers.
    zeros: what was given to :func:`cast`.

  Returns:
    the sum of signs, and the number of workers present (1 if nobody is).

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import signs
    >>> counts = signs.Grids((jnp.array([[0b01]], jnp.uint32),))
    >>> signs.mean_tally(counts, 1, 'coin')[1]
    1
  """
  divisor = n
  if counts.whole:
    # a plane of a count by worker is all ones or all zeros: its first bit
    bit = [(plane[0, 0] & 1).astype(jnp.int32) for plane in counts.whole]
    divisor = jnp.maximum(sum(b << j for j, b in enumerate(bit)), 1)
  if zeros == 'exact':
    return Tally(1, counts.elements, n), divisor
  return Tally(2, counts.elements, counts.blocks or counts.whole or n), divisor


def decode(
  tally: Tally,
  divisor: int | jax.Array,
  dtype: jax.typing.DTypeLike,
  rows: int | None = None,
) -> jax.Array:
  """Unpacks a sum of signs to numbers.

  Args:
    tally: planes of words ``[g, c]``; those of the offset may have one column
      for each 128, and one row for all.
    divisor: of the sum, an integer scalar.
    dtype: floating dtype of the result, which is rounded once.
    rows: how many rows to keep; None: all.

  Returns:
    numbers of shape ``[32 * g, c]``, or fewer rows.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import signs
    >>> sign = signs.Tally(2, (jnp.array([[0b1]], jnp.uint32),), 1)
    >>> signs.decode(sign, 2, jnp.float32)[:2, 0]
    Array([ 0.5, -0.5], dtype=float32)
  """
  value = _value(tally)
  if rows not in (None, value.shape[0]):
    value = kernels.written_down(value, 'tpu', dtype=_narrow(tally))[:rows]
  return _divided(value, divisor, dtype)


def decode_vector(
  tally: Tally, divisor: int | jax.Array, dtype: jax.typing.DTypeLike
) -> jax.Array:
  """What `decode` returns, as one vector."""
  value = kernels.written_down(_value(tally), 'cpu', dtype=_narrow(tally))
  return _divided(value.reshape(-1), divisor, dtype)


def _value(tally: Tally) -> jax.Array:
  """The sum of signs."""
  shape = tally.planes[0].shape
  value = tally.weight * _integer(tally.planes)
  if isinstance(tally.offset, int):
    return value - tally.offset
  return value - _integer(
    tuple(_spread(plane, shape) for plane in tally.offset)
  )


def _narrow(tally: Tally) -> jnp.dtype:
  """The narrowest integers that hold the sum."""
  most = tally.weight << len(tally.planes)
  dtypes = jnp.int8, jnp.int16, jnp.int32
  return next(t for t in dtypes if most <= jnp.iinfo(t).max)


def _divided(
  value: jax.Array, divisor: int | jax.Array, dtype: jax.typing.DTypeLike
) -> jax.Array:
  if isinstance(divisor, int) and divisor == 1:
    return value.astype(dtype)
  # bf16 holds integers only to 256
  wide = jnp.promote_types(dtype, jnp.float32)
  return (value.astype(wide) / jnp.asarray(divisor, wide)).astype(dtype)


def _toss(words: jax.Array, undecided: jax.Array, key: jax.Array) -> jax.Array:
  """Sets bits that are undecided, which are not set, by fair coins.

  To draw them costs more than the rest of a vote, and mostly there is nothing
  to decide: gradients are seldom zero, and an odd number of voters has no ties.
  """
  return jax.lax.cond(
    jnp.any(undecided != 0),
    lambda: words | (undecided & jax.random.bits(key, words.shape, jnp.uint32)),
    lambda: words,
  )


def _count(votes: Grids) -> tuple[bits.Planes, bits.Planes]:
  """How many take part, and how many of them are for plus."""
  positive, mask = votes.elements[0], votes.mask()
  if not mask:
    return bits.constant(positive.shape[0]), bits.count(positive)
  return bits.count(mask[0]), bits.count(positive & mask[0])


def _any(count: bits.Planes) -> jax.Array:
  some = count[0]
  for plane in count[1:]:
    some |= plane
  return some


def _integer(planes: bits.Planes) -> jax.Array:
  weighted = [
    bits.unpack(plane).astype(jnp.int32) << j for j, plane in enumerate(planes)
  ]
  return sum(weighted[1:], start=weighted[0])


def _spread(words_GxB: jax.Array, shape: tuple[int, int]) -> jax.Array:
  """Repeats words that stand for a block to one word a column."""
  rows, blocks = words_GxB.shape
  repeated = jnp.broadcast_to(
    words_GxB[:, :, None], (rows, blocks, shape[1] // blocks)
  )
  return jnp.broadcast_to(repeated.reshape(rows, shape[1]), shape)
