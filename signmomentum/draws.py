"""Random draws that are the same on every backend and under every executor.

The default generator may draw differently under ``vmap`` and on devices: all
draws here use Threefry. Keys are made of a seed, a step count and, where each
worker must draw for itself, its index; never of a device or process.
"""

from collections.abc import Sequence
import zlib

import jax
import jax.numpy as jnp
import numpy as np


def key(seed: int, *folded: jax.typing.ArrayLike) -> jax.Array:
  """A key of a seed and of whatever else a draw shall depend on.

  Example:
    >>> from signmomentum import draws
    >>> bool(draws.key(0, 1, 2) == draws.key(0, 1, 2))
    True
    >>> bool(draws.key(0, 1, 2) == draws.key(0, 2, 1))
    False
  """
  made = jax.random.key(seed, impl='threefry2x32')
  for data in folded:
    made = jax.random.fold_in(made, data)
  return made


def leaf_keys(key: jax.Array, paths: Sequence[str]) -> list[jax.Array]:
  """A key for each leaf, by its path.

  What a leaf draws does not depend on which others are there: it stays the same
  if ``optax.masked`` or ``optax.partition`` hides some.

  Example:
    >>> from signmomentum import draws
    >>> one, _ = draws.leaf_keys(draws.key(0), ["['w']", "['b']"])
    >>> bool(one == draws.leaf_keys(draws.key(0), ["['w']"])[0])
    True
  """
  # The path of a tree that is one leaf is empty, and its checksum would be 0:
  # the first key that a split gives, which votes take.
  numbers = [zlib.crc32(path.encode() or b'leaf') for path in paths]
  return [jax.random.fold_in(key, number) for number in numbers]


def happens(
  key: jax.Array, probability: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Draws an event for each element, and a fair coin beside it.

  One 32-bit word gives both. A probability is met to within ``2**-31``, also
  where it is far below the resolution of a uniform float. (Beyond ``2**32``
  elements of one array, words come again.)

  Args:
    key: random key.
    probability: of each event, floating, from 0 to 1.

  Returns:
    booleans: where the event happens, and where the coin shows heads.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from signmomentum import draws
    >>> events, coins = draws.happens(draws.key(0), jnp.array([0.0, 1.0]))
    >>> events
    Array([False,  True], dtype=bool)
  """
  threshold = (probability * 2.0**31).astype(jnp.uint32)
  place = jnp.zeros_like(threshold)  # to lie as it does, if in pieces
  stride = 1
  for axis in reversed(range(place.ndim)):
    here = jax.lax.broadcasted_iota(jnp.uint32, place.shape, axis)
    place += here * np.uint32(stride % 2**32)
    stride *= place.shape[axis]
  (word,) = words(key, place, 1)
  return word >> np.uint32(1) < threshold, (word & np.uint32(1)) == 1


def randomized_sign(
  key: jax.Array, value: jax.Array, bound: jax.typing.ArrayLike, support: str
) -> jax.Array:
  """A sign whose expectation is ``value / bound``.

  Args:
    key: random key.
    value: floating, within ``[-bound, bound]``. NaN gives NaN.
    bound: positive, or 0 where all values are 0.
    support: ``'two_point'``, -1 and 1, or ``'three_point'``, with 0. What is
      exactly 0 stays 0 with either.

  Returns:
    the signs, in the dtype of ``value``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import draws
    >>> value = jnp.array([2.0, -2.0, 0.0])
    >>> draws.randomized_sign(draws.key(0), value, 2.0, 'three_point')
    Array([ 1., -1.,  0.], dtype=float32)
  """
  wide = value.astype(jnp.promote_types(value.dtype, jnp.float32))
  bound = jnp.asarray(bound, wide.dtype)
  probability = jnp.abs(wide) / jnp.where(bound > 0, bound, 1)
  counts, heads = happens(key, jnp.nan_to_num(probability))
  # two-point: with the probability |v| / B the sign itself, else a coin
  otherwise = jnp.where(heads, 1, -1) if support == 'two_point' else 0
  signs = jnp.where(counts | (wide == 0), jnp.sign(wide), otherwise)
  return jnp.where(jnp.isnan(wide), wide, signs).astype(value.dtype)


def words(key: jax.Array, counter: jax.Array, number: int) -> list[jax.Array]:
  """Draws a few words of 32 random bits for each value of a counter.

  Threefry-2x32 with all 20 rounds, as in ``jax.random.bits``, but written out
  element by element: the compiler fuses it with what the words are for, where
  it would else fill memory with them. On CPU that is four to eight times as
  fast.

  Args:
    key: random key.
    counter: uint32, one value for each place.
    number: words for each place.

  Returns:
    arrays like ``counter``.

  References:
    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import draws
    >>> draws.words(draws.key(0), jnp.zeros(1, jnp.uint32), 2)
    [Array([1797259609], dtype=uint32), Array([2579123966], dtype=uint32)]
  """
  first, second = jax.random.key_data(key)
  keys = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
  drawn = []
  for block in range(-(-number // 2)):
    a = counter + keys[0]
    b = np.uint32(block) + jnp.broadcast_to(keys[1], counter.shape)
    for turn in range(5):
      for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
        a += b
        b = b << np.uint32(distance) | b >> np.uint32(32 - distance)
        b ^= a
      a += keys[(turn + 1) % 3]
      b += keys[(turn + 2) % 3] + np.uint32(turn + 1)
    drawn += [a, b]
  return drawn[:number]
