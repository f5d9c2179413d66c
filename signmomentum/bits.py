"""Arithmetic on bits that stay packed, 32 to a ``uint32`` word.

Packing reads groups of 32 consecutive *rows* (the second axis from the end):
bit ``b`` of word ``(g, c)`` is element ``(32 * g + b, c)``. A row of an array
thus stays along the lanes of the vector unit, in memory order, on every
backend, and nothing has to be moved before it is packed.

Counting is bit-sliced: the number of set bits at each position, over many
words, is held as *planes*, a tuple of words in which plane ``j`` has weight
``2 ** j``. Full adders on whole words count 32 positions at once, and the
planes are themselves the shortest form in which a count can travel.

Array names carry their shapes: G groups, C columns, N voters.
"""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from signmomentum import kernels

Planes = tuple[jax.Array, ...]

WORD = 32  # bits in a word
_UNROLL = 32  # voters that one unrolled adder tree takes; a scan takes the rest


def pack(bits_RxC: jax.Array) -> jax.Array:
  """Packs groups of 32 rows of booleans into words.

  Args:
    bits_RxC: booleans of shape ``[..., 32 * g, c]``.

  Returns:
    ``uint32`` words of shape ``[..., g, c]``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> rows = jnp.arange(32)[:, None] < jnp.array([0, 1, 3])
    >>> bits.pack(rows)
    Array([[0, 1, 7]], dtype=uint32)
  """
  *lead, rows, columns = bits_RxC.shape
  if rows % WORD:
    raise ValueError(f'pack: {rows} rows do not fill words of {WORD} bits.')
  bits = bits_RxC.reshape(*lead, rows // WORD, WORD, columns)
  return jnp.sum(
    bits.astype(jnp.uint32) << _shifts(bits.ndim), axis=-2, dtype=jnp.uint32
  )


def pack_signs(
  values_RxC: jax.Array, groups: int
) -> tuple[jax.Array, jax.Array]:
  """Packs where values are above zero, and where they are above or below.

  Both at once, so that the values are read, or computed, once.

  Args:
    values_RxC: numbers of shape ``[r, c]``; a NaN is neither above nor below.
    groups: how many groups of 32 rows to pack; rows after them are left out.

  Returns:
    two arrays of words ``[groups, c]``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> values = jnp.zeros((33, 1)).at[:3, 0].set(jnp.array([1.0, 0.0, -1.0]))
    >>> bits.pack_signs(values, groups=1)
    (Array([[1]], dtype=uint32), Array([[5]], dtype=uint32))
  """
  if values_RxC.shape[0] < WORD * groups:
    raise ValueError(
      f'pack_signs: {values_RxC.shape[0]} rows are not {groups} groups of'
      f' {WORD}.'
    )
  # nothing depends on a value smoothly, and a kernel has no derivative
  values_RxC = jax.lax.stop_gradient(values_RxC)
  anywhere = functools.partial(_pack_signs, groups=groups)
  if not kernels.is_on_one_device():
    return anywhere(values_RxC)
  return jax.lax.platform_dependent(
    values_RxC,
    tpu=functools.partial(kernels.pack_signs, groups=groups),
    default=anywhere,
  )


def _pack_signs(
  values_RxC: jax.Array, groups: int
) -> tuple[jax.Array, jax.Array]:
  # 16 rows make half a word of each kind. Together they are one reduction, of
  # which XLA makes a fast loop on a CPU, unlike of one with two results. No two
  # have a bit in common: it is a sum, which devices can do together if the rows
  # are spread over them, and an `or` they can't.
  half, low = WORD // 2, np.uint32(0xFFFF)
  values = values_RxC[: WORD * groups].reshape(2 * groups, half, -1)
  above, below = values > 0, values < 0
  both = above.astype(jnp.uint32) | (above | below).astype(jnp.uint32) << half
  halves = jnp.sum(both << _shifts(3)[:, :half], axis=1, dtype=jnp.uint32)
  halves = halves.reshape(groups, 2, -1)
  first, second = halves[:, 0], halves[:, 1]
  positive = (first & low) | (second << half)
  nonzero = (first >> half) | (second & ~low)
  return positive, nonzero


def unpack(words_GxC: jax.Array) -> jax.Array:
  """The inverse of :func:`pack`, as ``uint32`` zeros and ones.

  Args:
    words_GxC: words of shape ``[..., g, c]``.

  Returns:
    zeros and ones of shape ``[..., 32 * g, c]``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> bits.unpack(jnp.array([[5]], jnp.uint32))[:4, 0]
    Array([1, 0, 1, 0], dtype=uint32)
  """
  *lead, groups, columns = words_GxC.shape
  words = words_GxC[..., None, :]
  ones = (words >> _shifts(words.ndim)) & np.uint32(1)
  return ones.reshape(*lead, WORD * groups, columns)


def count(words_NxC: jax.Array) -> Planes:
  """Counts the set bits of N words at each of the 32 positions.

  Args:
    words_NxC: words of shape ``[n, ...]``, ``n >= 1``.

  Returns:
    ``n.bit_length()`` planes of shape ``[...]``, least significant first.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> bits.count(jnp.array([0b11, 0b01, 0b01], jnp.uint32))
    (Array(3, dtype=uint32), Array(1, dtype=uint32))
  """
  n = words_NxC.shape[0]
  if n <= _UNROLL:
    return _adder_tree(list(words_NxC))[: n.bit_length()]
  # One adder tree in the program however many voters there are: blocks of
  # voters are counted in a scan and added up. The first block starts the
  # carry, so that under shard_map it has the type that the scan gives back.
  blocks = -(-n // _UNROLL)
  padding = [(0, blocks * _UNROLL - n)] + [(0, 0)] * (words_NxC.ndim - 1)
  words = jnp.pad(words_NxC, padding)
  words = words.reshape(blocks, _UNROLL, *words_NxC.shape[1:])
  first = _adder_tree(list(words[0]))
  zero = jnp.zeros_like(first[0])
  first += (zero,) * (n.bit_length() - len(first))

  def step(total: Planes, block: jax.Array) -> tuple[Planes, None]:
    return add(total, _adder_tree(list(block)))[: n.bit_length()], None

  total, _ = jax.lax.scan(step, first, words[1:])
  return total


def add(a: Planes, b: Planes) -> Planes:
  """Adds two bit-sliced counts; the result has one plane more.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> one = (jnp.uint32(1),)
    >>> bits.add(one, one)
    (Array(0, dtype=uint32), Array(1, dtype=uint32))
  """
  total, carry = [], None
  for j in range(max(len(a), len(b))):
    addends = [p[j] for p in (a, b) if j < len(p)]
    addends += [] if carry is None else [carry]
    plane, carry = _adder(addends)
    total.append(plane)
  return (*total, jnp.zeros_like(total[0]) if carry is None else carry)


def compare(a: Planes, b: Planes) -> tuple[jax.Array, jax.Array]:
  """Compares two bit-sliced counts position by position.

  Args:
    a: planes, least significant first.
    b: planes whose shapes broadcast against ``a``'s.

  Returns:
    words of the positions where ``a > b``, and of those where ``a == b``.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> greater, equal = bits.compare((jnp.uint32(0b10),), (jnp.uint32(0),))
    >>> int(greater), int(equal) == 2**32 - 3
    (2, True)
  """
  shape = jnp.broadcast_shapes(a[0].shape, b[0].shape)
  zero = jnp.zeros(shape, jnp.uint32)
  greater, equal = zero, ~zero
  for j in reversed(range(max(len(a), len(b)))):
    x = a[j] if j < len(a) else zero
    y = b[j] if j < len(b) else zero
    greater |= equal & x & ~y
    equal &= ~(x ^ y)
  return greater, equal


def constant(value: int) -> Planes:
  """Planes of a count that is the same at every position.

  Example:
    >>> from signmomentum import bits
    >>> bits.constant(2)
    (Array(0, dtype=uint32), Array(4294967295, dtype=uint32))
  """
  planes = [value >> j & 1 for j in range(max(value.bit_length(), 1))]
  return tuple(mask(jnp.asarray(bool(bit))) for bit in planes)


def mask(flag: jax.Array) -> jax.Array:
  """A word of ones where a boolean holds, else of zeros.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> bits.mask(jnp.array([True, False]))
    Array([4294967295,          0], dtype=uint32)
  """
  return jnp.where(flag, np.uint32(0xFFFFFFFF), np.uint32(0))


def any_lane(words_GxC: jax.Array) -> jax.Array:
  """Ors the words along the last axis, which is kept with size 1.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import bits
    >>> bits.any_lane(jnp.array([[1, 4], [0, 0]], jnp.uint32))
    Array([[5],
           [0]], dtype=uint32)
  """
  if kernels.is_on_one_device():
    ored = jax.lax.reduce(
      words_GxC, np.uint32(0), jax.lax.bitwise_or, (words_GxC.ndim - 1,)
    )
    return ored[..., None]
  # By halves: devices that hold some lanes each can't reduce by `or` together.
  while (columns := words_GxC.shape[-1]) > 1:
    half = -(-columns // 2)  # of an odd number, both have the one in the middle
    words_GxC = words_GxC[..., :half] | words_GxC[..., columns - half :]
  return words_GxC


def _shifts(ndim: int) -> np.ndarray:
  shape = (1,) * (ndim - 2) + (WORD, 1)
  return np.arange(WORD, dtype=np.uint32).reshape(shape)


def _adder(addends: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array | None]:
  """Sum and carry of one to three words."""
  if len(addends) == 1:
    return addends[0], None
  if len(addends) == 2:
    a, b = addends
    return a ^ b, a & b
  a, b, c = addends
  either = a ^ b
  return either ^ c, (a & b) | (either & c)


def _adder_tree(words: list[jax.Array]) -> Planes:
  """Counts words by carry-save adders: about five operations a word."""
  planes, column = [], words
  while column:
    carries = []
    while len(column) > 1:
      plane, carry = _adder(column[:3])
      column = [*column[3:], plane]
      carries.append(carry)
    planes.append(column[0])
    column = carries
  return tuple(planes)
