"""A part of every leaf for each worker: means of parts, and parts joined."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from signmomentum import collectives, trees


def rows(leaf: jax.Array, n: int) -> jax.Array:
  """A row of a leaf for each of n workers; zeros fill up the last one.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import parts
    >>> parts.rows(jnp.arange(3), 2)
    Array([[0, 1],
           [2, 0]], dtype=int32)
  """
  width = -(-leaf.size // n)
  flat = trees.gathered(leaf).reshape(-1)
  flat = jnp.pad(flat, (0, n * width - leaf.size))
  return flat.reshape(n, width)


def whole(rows_NxW: jax.Array, like: jax.Array) -> jax.Array:
  """The leaf of some rows, in the shape of another."""
  flat = rows_NxW.reshape(-1)[: like.size]
  return trees.sharded_like(flat.reshape(like.shape), like)


def mean(
  rows_NxW: list[jax.Array],
  number: int | jax.Array,
  axis_name: collectives.AxisName,
) -> list[jax.Array]:
  """The mean over workers of this worker's row of each leaf.

  It is rounded once: the sum is in f32 at least.
  """

  def joint(message):
    # A sum of what has arrived is the same on every backend, and what some of
    # them make of a reduce-scatter is an all-reduce.
    arrived = collectives.exchange(message, axis_name)
    wide = jnp.promote_types(message.dtype, jnp.float32)
    total = jnp.sum(arrived.astype(wide), axis=0)
    return (total / jnp.asarray(number, wide)).astype(message.dtype)

  return _by_dtype(joint, rows_NxW)


def join(
  parts: list[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """The rows ``[n, width]`` of which each worker has one."""
  return _by_dtype(lambda x: collectives.gather(x, axis_name), parts)


def apart(joint: jax.Array, widths: list[int]) -> list[jax.Array]:
  """What lies side by side in the last axis, apart.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import parts
    >>> parts.apart(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
  """
  return jnp.split(joint, np.cumsum(widths)[:-1], axis=-1)


def _by_dtype(fn: Callable, arrays: list[jax.Array]) -> list[jax.Array]:
  """Applies a function to all arrays of a dtype at once, side by side."""
  results: dict[int, jax.Array] = {}
  for dtype in dict.fromkeys(array.dtype for array in arrays):
    places = [i for i, array in enumerate(arrays) if array.dtype == dtype]
    widths = [arrays[i].shape[-1] for i in places]
    joint = fn(jnp.concatenate([arrays[i] for i in places], axis=-1))
    results |= zip(places, apart(joint, widths), strict=True)
  return [results[i] for i in range(len(arrays))]
