"""Sparse messages: the largest elements, as indices and values."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from signmomentum import aggregator, arguments, collectives, trees


class AggregateByTopKState(NamedTuple):
  """State of :func:`aggregate_by_top_k`."""

  count: jax.Array  # steps; shape=(), dtype=jnp.int32


def aggregate_by_top_k(
  axis_name: collectives.AxisName,
  density: float,
  warmup: Sequence[tuple[int, float]] = (),
) -> aggregator.Aggregator:
  r"""Mean of each worker's largest elements: indices and values to all others.

  .. math::
    \Delta = \frac{1}{n} \sum_{i=1}^n u_i \odot
      [\,|u_{ij}| \text{ is among the largest } k \text{ of its leaf}\,]

  with :math:`k` = ``ceil(density * size)`` for each leaf. A worker's message
  for the whole tree, of ``32 + 32`` bits for each element sent (an index, a
  value in its own dtype), goes to every other worker in one ``all_gather``:
  ``64 * density * (n - 1)`` bits for each parameter.

  What is not sent is lost, unless :func:`with_error_feedback` keeps it.

  Args:
    axis_name: the axis of the workers.
    density: share of the elements of a leaf that is sent, above 0, at most 1.
    warmup: pairs of a number of steps and a density, to begin with, one after
      the other.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: a density is not above 0 and at most 1, or a number of steps is
      below 1; in ``update``: the updates are the same on every worker already
      (see :func:`as_local`).
    TypeError: a density is an array, or a number of steps not an int.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_top_k('workers', density=0.25)
    >>> def mean(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> jax.vmap(mean, axis_name='workers', out_axes=None)(
    ...   jnp.array([[1.0, -4.0, 2.0, 0.0], [3.0, 2.0, 2.0, 1.0]])
    ... )
    Array([ 1.5, -2. ,  0. ,  0. ], dtype=float32)

  References:
    Aji and Heafield, `Sparse Communication for Distributed Gradient Descent
    <https://arxiv.org/abs/1704.05021>`_, 2017
  """
  who = 'aggregate_by_top_k'
  for share in (density, *(share for _, share in warmup)):
    arguments.require_static(who, 'density', share)
    if not 0 < share <= 1:
      raise ValueError(
        f'{who}: a density must be above 0 and at most 1, not {share}.'
      )
  for steps, _ in warmup:
    arguments.require_int(who, 'the steps of a warmup', steps, least=1)
  ends = np.cumsum([steps for steps, _ in warmup], dtype=np.int32)
  densities = [*(share for _, share in warmup), density]

  def init_fn(params):
    del params
    return AggregateByTopKState(count=jnp.zeros([], jnp.int32))

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)
    here = [aggregator.if_present(leaf, present) for leaf in leaves]
    number = aggregator.number_present(present, axis_name)
    stages = [
      functools.partial(_exchange, density=share, axis_name=axis_name)
      for share in densities
    ]
    # The count is the same on all workers: they all take the same branch.
    stage = jnp.sum(state.count >= ends, dtype=jnp.int32)
    totals, own = jax.lax.switch(stage, stages, here)
    means = [
      (total / jnp.asarray(number, total.dtype)).astype(leaf.dtype)
      for total, leaf in zip(totals, leaves, strict=True)
    ]
    new_state = AggregateByTopKState(count=optax.safe_increment(state.count))
    return rebuild(means), lambda: rebuild(own), new_state

  return aggregator.make(init_fn, exchange)


def _exchange(
  leaves: list[jax.Array], density: float, axis_name: collectives.AxisName
) -> tuple[list[jax.Array], list[jax.Array]]:
  """Sums of what all sent, in f32 at least, and what this worker sent."""
  flat = [trees.gathered(leaf).reshape(-1) for leaf in leaves]
  chosen = [_largest(vector, density) for vector in flat]
  message = [_bytes(part) for pair in chosen for part in pair]
  if not message:
    return [], []
  everyones = collectives.gather(jnp.concatenate(message), axis_name)

  def add(totals, received):
    """Adds one worker's elements: no index is there twice, so that the order
    of additions, and with it the last bit, is the same on all workers."""
    results, start = [], 0
    for total, pair in zip(totals, chosen, strict=True):
      parts = []
      for like in pair:
        end = start + like.size * like.dtype.itemsize
        parts.append(_from_bytes(received[start:end], like.dtype))
        start = end
      indices, values = parts
      results.append(
        total.at[indices].add(
          values.astype(total.dtype), unique_indices=True, mode='drop'
        )
      )
    return results, None

  zeros = [
    jnp.zeros(v.size, jnp.promote_types(v.dtype, jnp.float32)) for v in flat
  ]
  totals, _ = jax.lax.scan(add, zeros, everyones)
  own = [
    jnp.zeros_like(vector).at[indices].set(values, unique_indices=True)
    for vector, (indices, values) in zip(flat, chosen, strict=True)
  ]
  return tuple(
    [
      trees.sharded_like(x.reshape(leaf.shape), leaf)
      for x, leaf in zip(group, leaves, strict=True)
    ]
    for group in (totals, own)
  )


def _largest(vector: jax.Array, density: float) -> tuple[jax.Array, jax.Array]:
  """Indices and values of the largest magnitudes."""
  # not 0.07 * 100 = 7.000000000000001: that is not 8 elements
  k = int(np.ceil(round(density * vector.size, 6)))
  k = max(k, min(1, vector.size))
  _, indices = jax.lax.top_k(jnp.abs(vector), k)
  return indices, vector[indices]


def _bytes(array: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(array, jnp.uint8).reshape(-1)


def _from_bytes(message: jax.Array, dtype) -> jax.Array:
  parts = message.reshape(-1, np.dtype(dtype).itemsize)
  return jax.lax.bitcast_convert_type(parts, dtype)
