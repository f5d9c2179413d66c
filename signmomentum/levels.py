"""Numbers in a few bits: small integers, packed, and a scale for each block.

A *block* is a row of numbers that share a scale ``s``; each travels as a whole
number of scales, its *level*, from ``-(2**(bits-1) - 1)`` to the same above 0.
A *group* is as many blocks as levels fit into a word of 32 bits: level ``k`` of
word ``(g, b)`` is element ``b`` of block ``k`` of group ``g``, so that a block
stays along the lanes of the vector unit (as in ``bits``).

Array names carry their shapes: G groups, K blocks in a group, B numbers in a
block, N messages.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from signmomentum import draws

_WORD = 32  # bits
_SHARE = 4  # elements that share a random word, each with a rotation of it
_NAN = np.uint16(0x7FC0)  # in bfloat16
# 2**126 in bfloat16: to divide by more, XLA on CPU multiplies by an inverse
# that has been flushed to 0.
_LARGEST = np.uint16(0x7E80)


class Levels(NamedTuple):
  """Packed numbers, with a leading axis where they are of many messages."""

  words: jax.Array  # uint32 [G, B]
  scales: jax.Array  # bfloat16, as uint16 [G, K]


@dataclasses.dataclass(frozen=True)
class Format:
  """How numbers are written.

  Attributes:
    bits: of a level, a divisor of 8 above 1.
    block_size: numbers that share a scale.
  """

  bits: int
  block_size: int

  @property
  def group(self) -> int:
    """Blocks in a group, K."""
    return _WORD // self.bits

  @property
  def most(self) -> int:
    """The largest level."""
    return 2 ** (self.bits - 1) - 1

  def encode(
    self, blocks_GxKxB: jax.Array, key: jax.Array, first: int = 0
  ) -> Levels:
    """Rounds to one of the two levels next to a number, at random.

    The mean of all that may come out is the number itself, to within ``2**-32``
    of a level and a rounding error of its dtype. A multiple of the scale is
    not changed, 0 included. The scale is the largest magnitude over ``most``,
    rounded up, so that nothing is cut off.

    Args:
      blocks_GxKxB: f32 or f64. A block with a number that is not finite, or so
        large that its scale would be above ``2**126``, or a sum no place in the
        dtype, becomes NaN.
      key: random key.
      first: which group is the first one, of all that are drawn for.

    Returns:
      the levels.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from signmomentum import levels
      >>> form = levels.Format(bits=8, block_size=3)
      >>> values = jnp.zeros((1, 4, 3)).at[0, 1].set(jnp.array([-127, 3, 0.0]))
      >>> form.decode(form.encode(values, jax.random.key(0)))[0, 1]
      Array([-127.,    3.,    0.], dtype=float32)
    """
    most = _largest(blocks_GxKxB)
    scales = _scale(most, self.most)
    unit = _number(scales)
    # of a block of zeros every level is 0, whatever it is divided by
    unit = jnp.where(unit == 0, 1, unit).astype(blocks_GxKxB.dtype)
    shape = blocks_GxKxB.shape[0], self.block_size
    counter = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) + np.uint32(first)
    counter *= np.uint32(self.block_size)
    counter += jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    chance = draws.words(key, counter, self.group // _SHARE)
    words = jnp.zeros(shape, jnp.uint32)
    # Written out for each place in a word: all of it is then one pass over the
    # numbers, and the random words of a group are made once and never stored.
    for k in range(self.group):
      value = blocks_GxKxB[:, k]
      # The quotient may be above by a rounding error.
      size = jnp.minimum(jnp.abs(value) / unit[:, k, None], self.most)
      whole = jnp.floor(size)  # size - whole is exact
      threshold = ((size - whole) * 2.0**_WORD).astype(jnp.uint32)
      thrown = _rotated(chance[k // _SHARE], 8 * (k % _SHARE))
      level = whole.astype(jnp.int32) + (thrown < threshold)
      level = jnp.where(value < 0, -level, level).astype(jnp.uint32)
      level &= np.uint32(2**self.bits - 1)
      words |= level << np.uint32(self.bits * k)
    return Levels(words, scales)

  def decode(self, levels: Levels, dtype=jnp.float32) -> jax.Array:
    """The numbers ``[..., G, K, B]``: products that are exact in f32.

    A finite one that is too large for the dtype is the largest there is.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    lead = (1,) * (levels.words.ndim - 1)
    shifts = _WORD - self.bits * np.arange(1, self.group + 1, dtype=np.uint32)
    # to the upper end, and down again with the sign
    shifts = shifts.astype(np.uint32).reshape(*lead, self.group, 1)
    raised = levels.words[..., None, :] << shifts
    level = raised.astype(jnp.int32) >> np.int32(_WORD - self.bits)
    scales = _number(levels.scales)[..., None].astype(wide)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(level.astype(wide) * scales, -limit, limit).astype(dtype)

  def write(self, levels: Levels) -> jax.Array:
    """Messages of words ``[N, ...]``, of levels with that leading axis."""
    number = levels.words.shape[0]
    pairs = levels.scales.reshape(number, -1, 2)
    scales = jax.lax.bitcast_convert_type(pairs, jnp.uint32)
    return jnp.concatenate([levels.words.reshape(number, -1), scales], axis=1)

  def read(self, messages: jax.Array) -> Levels:
    """The inverse of :meth:`write`."""
    number, length = messages.shape
    groups = length // (self.block_size + self.group // 2)
    words, scales = jnp.split(messages, [groups * self.block_size], axis=1)
    pairs = jax.lax.bitcast_convert_type(scales, jnp.uint16)
    return Levels(
      words.reshape(number, groups, self.block_size),
      pairs.reshape(number, groups, self.group),
    )


def _largest(values: jax.Array) -> jax.Array:
  """The largest magnitude along the last axis; NaN if there is one.

  XLA on CPU drops NaN from a maximum, but not from a sum. Its reductions are
  much faster of what is in memory than of anything computed, as magnitudes are.
  """
  largest = jnp.maximum(jnp.max(values, axis=-1), -jnp.min(values, axis=-1))
  return jnp.where(jnp.isnan(jnp.sum(values, axis=-1)), jnp.nan, largest)


def _scale(most: jax.Array, levels: int) -> jax.Array:
  """The smallest bfloat16 whose levels reach the largest magnitude, as uint16.

  NaN where that is not finite or above 2**126; at least the smallest normal
  number, since quotients of less are flushed to 0 on some backends.
  """
  tiny = float(jnp.finfo(jnp.float32).tiny)
  quotient = jnp.maximum((most / levels).astype(jnp.float32), tiny)
  words = jax.lax.bitcast_convert_type(quotient, jnp.uint32)
  below = (words >> np.uint32(16)).astype(jnp.uint16)
  # The quotient is a rounding error off, more with compilers that multiply by
  # 1/levels. The product is exact.
  short = _number(below).astype(most.dtype) * levels < most
  scale = below + short
  finite = jnp.isfinite(most) & (scale <= _LARGEST)
  return jnp.where(most == 0, np.uint16(0), jnp.where(finite, scale, _NAN))


def _number(scales: jax.Array) -> jax.Array:
  """Scales in f32."""
  words = scales.astype(jnp.uint32) << np.uint32(16)
  return jax.lax.bitcast_convert_type(words, jnp.float32)


def _rotated(words: jax.Array, by: int) -> jax.Array:
  if not by:
    return words
  return words << np.uint32(by) | words >> np.uint32(_WORD - by)
