"""A part of every leaf for each worker: means of parts, and parts joined.

The parts of large matrices are matrices. Rows of as many columns travel as one
message, and need not be moved before; everything else is one vector.
"""

from collections.abc import Callable, Sequence
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from signmomentum import collectives, trees

_LANES = 128
_HEIGHTS = (32, 8, 1)  # rows that fill words, or tiles of a TPU, if possible
_FILL = 64  # of which one row may be filled up
_UNROLL = 32  # messages that are added up one by one


def of(leaf: jax.Array, n: int) -> jax.Array:
  """Parts of a leaf, one for each of n workers; zeros fill up the last.

  Rows that fill lanes stay whole where n workers can share them almost equally.
  All other leaves are vectors.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import parts
    >>> parts.of(jnp.arange(3), 2)
    Array([[0, 1],
           [2, 0]], dtype=int32)
    >>> parts.of(jnp.ones((2, 16, 128)), 8).shape
    (8, 4, 128)
  """
  height, columns = _shape(leaf, n)
  rows = leaf.size // math.prod(columns)
  flat = trees.gathered(leaf).reshape(rows, *columns)
  fill = [(0, n * height - rows)] + [(0, 0)] * len(columns)
  return jnp.pad(flat, fill).reshape(n, height, *columns)


def whole(parts: jax.Array, like: jax.Array) -> jax.Array:
  """The leaf of which these are the parts, in the shape of another."""
  columns = parts.shape[2:]
  flat = parts.reshape(-1, *columns)[: like.size // math.prod(columns)]
  return trees.sharded_like(flat.reshape(like.shape), like)


def mean(
  parts: list[jax.Array],
  number: int | jax.Array,
  axis_name: collectives.AxisName,
) -> list[jax.Array]:
  """The mean over workers of this worker's part of each leaf.

  It is rounded once: the sum is in f32 at least.
  """

  def joint(message):
    # A sum of what has arrived is the same on every backend, and what some of
    # them make of a reduce-scatter is an all-reduce.
    arrived = collectives.exchange(message, axis_name)
    wide = jnp.promote_types(message.dtype, jnp.float32)
    total = _sum(arrived.astype(wide))
    return (total / jnp.asarray(number, wide)).astype(message.dtype)

  return _by_kind(joint, parts, [part.shape[1:] for part in parts])


def join(
  own: list[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """The parts of all workers, ``[n, ...]``, of which each has its own."""
  return _by_kind(
    lambda message: collectives.gather(message, axis_name),
    own,
    [part.shape for part in own],
  )


def apart(joint: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
  """What lies side by side in the last axis, apart.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import parts
    >>> parts.apart(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
  """
  return jnp.split(joint, np.cumsum(widths)[:-1], axis=-1)


def _sum(messages: jax.Array) -> jax.Array:
  """The sum over the first axis, in its order."""
  if len(messages) > _UNROLL:
    return jnp.sum(messages, axis=0)
  # XLA for CPU takes ten times as long for a reduction of so few
  return functools.reduce(jnp.add, messages)


def _shape(leaf: jax.Array, n: int) -> tuple[int, tuple[int, ...]]:
  """The first axis of a part, and those after it."""
  if leaf.ndim > 1 and leaf.size and leaf.shape[-1] % _LANES == 0:
    rows = leaf.size // leaf.shape[-1]
    for multiple in _HEIGHTS:
      height = -(-rows // (n * multiple)) * multiple
      if _FILL * (n * height - rows) <= rows:
        return height, leaf.shape[-1:]
  return -(-leaf.size // n), ()


def _by_kind(
  fn: Callable[[jax.Array], jax.Array],
  arrays: list[jax.Array],
  shapes: list[tuple[int, ...]],
) -> list[jax.Array]:
  """Applies a function to all arrays of a dtype and a width at once.

  Args:
    fn: may do to the axes before those of a part what it wants.
    arrays: parts, with axes before that all have in common.
    shapes: of the parts.

  Returns:
    the parts in what it returns.
  """
  kinds: dict[tuple, list[int]] = {}
  for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
    kinds.setdefault((array.dtype, shape[1:]), []).append(i)
  results: dict[int, jax.Array] = {}
  for (_, columns), places in kinds.items():
    axis = -1 - len(columns)
    message = jnp.concatenate([arrays[i] for i in places], axis)
    ends = np.cumsum([shapes[i][0] for i in places])[:-1]
    results |= zip(places, jnp.split(fn(message), ends, axis), strict=True)
  return [results[i] for i in range(len(arrays))]
