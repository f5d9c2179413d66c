"""An outer rule of which every worker does its share, and holds its share."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from signmomentum import (
  aggregator,
  arguments,
  bits,
  collectives,
  signs,
  trees,
)

_GATHERS = ('signs', 'full')


def shard_over_workers(
  tx: optax.GradientTransformation,
  axis_name: collectives.AxisName,
  gather: str = 'signs',
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an outer rule on the mean update, each worker on a part of it.

  Every worker owns :math:`1/n` of the elements of every leaf, and
  :math:`1/n` of the state of ``tx``:

  1. workers send each owner its part of their updates, and the owner takes the
     mean: ``32 (n - 1) / n`` bits for each parameter;
  2. the owner runs ``tx`` on its part;
  3. the results go to everybody: as they are, for another ``32 (n - 1) / n``
     bits (``gather='full'``), or their signs, for ``(n - 1) / n`` bits
     (``gather='signs'``).

  The result is that of ``optax.chain(aggregate_by_mean(axis_name), tx)``, or
  the sign of it. (The mean of bf16 or f16 updates is rounded once here, and at
  every addition there.) Zeros are exact: one more bit for 128 elements says
  where all are zero; if there are others, which all workers then know, a second
  bit for each element follows in this step.

  Paper A's outer step, for 33 instead of 64 bits and a shard of the momentum::

    optax.chain(
      sm.shard_over_workers(sm.lion_momentum(0.95, 0.98), 'workers'),
      optax.add_decayed_weights(0.1),
      optax.scale_by_learning_rate(1.0),
    )

  ``tx`` sees parameters and updates as vectors of a part of each leaf, so it
  must treat every element by itself: no norms, no factors, no masks by shape.

  ``init`` must know the workers too. ``Workers.init`` sees to it; elsewhere
  call it where the axis is bound, inside ``shard_map`` or ``vmap``.

  Args:
    tx: an elementwise optimizer.
    axis_name: the axis of the workers.
    gather: ``'signs'`` or ``'full'``.

  Returns:
    the transformation, which aggregates: it takes the place of
    ``aggregate_by_mean`` and what follows. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``gather`` is unknown; in ``update``: the updates are the same
      on every worker already (see :func:`as_local`).
    NameError: ``init`` or ``update`` runs where there is no such axis.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.shard_over_workers(sm.lion_momentum(), 'workers')
    >>> def sign_of_mean(update):
    ...   return tx.update(update, tx.init(update), update)[0]
    >>> jax.vmap(sign_of_mean, axis_name='workers', out_axes=None)(
    ...   jnp.array([[1.0, 0.0, 5.0], [1.0, 0.0, -6.0]])
    ... )
    Array([ 1.,  0., -1.], dtype=float32)

  References:
    Rajbhandari et al., `ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models <https://arxiv.org/abs/1910.02054>`_, 2019
  """
  who = 'shard_over_workers'
  arguments.require_one_of(who, 'gather', gather, _GATHERS)
  tx = optax.with_extra_args_support(tx)

  def own_parts(tree):
    """This worker's part of each floating leaf of a tree that all share."""
    leaves, rebuild = trees.split(tree)
    n = collectives.worker_count(axis_name)
    worker = collectives.worker_index(axis_name)
    return rebuild([_rows(leaf, n)[worker] for leaf in leaves])

  def init_fn(params):
    try:
      return tx.init(own_parts(params))
    except NameError as error:
      error.add_note(
        f'shard_over_workers: init must know how many workers share the state.'
        f' Use signmomentum.Workers, or call init where the axis {axis_name!r}'
        ' is bound, inside shard_map.'
      )
      raise

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)
    n = collectives.worker_count(axis_name)
    number = aggregator.number_present(present, axis_name)
    here = [aggregator.if_present(leaf, present) for leaf in leaves]
    means = _mean_parts([_rows(leaf, n) for leaf in here], number, axis_name)
    steps, new_state = tx.update(
      rebuild(means),
      state,
      None if params is None else own_parts(params),
      present=present,
      **extra_args,
    )
    parts, rebuild_steps = trees.split(steps)
    join = _join_signs if gather == 'signs' else _join
    whole = [
      rows.reshape(-1)[: leaf.size].reshape(leaf.shape)
      for rows, leaf in zip(join(parts, axis_name), leaves, strict=True)
    ]
    return rebuild_steps(whole), new_state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _rows(leaf: jax.Array, n: int) -> jax.Array:
  """A row of a leaf for each of n workers; zeros fill up the last one."""
  width = -(-leaf.size // n)
  flat = jnp.pad(leaf.reshape(-1), (0, n * width - leaf.size))
  return flat.reshape(n, width)


def _mean_parts(
  rows: list[jax.Array],
  number: int | jax.Array,
  axis_name: collectives.AxisName,
) -> list[jax.Array]:
  """The mean over workers of this worker's row of each leaf."""

  def mean(message):
    # A sum of what has arrived is the same on every backend, and what some of
    # them make of a reduce-scatter is an all-reduce.
    arrived = collectives.exchange(message, axis_name)
    wide = jnp.promote_types(message.dtype, jnp.float32)
    total = jnp.sum(arrived.astype(wide), axis=0)
    return (total / jnp.asarray(number, wide)).astype(message.dtype)

  return _by_dtype(mean, rows)


def _join(
  parts: list[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """The rows ``[n, width]`` of which each worker has one."""
  return _by_dtype(lambda x: collectives.gather(x, axis_name), parts)


def _by_dtype(fn, arrays: list[jax.Array]) -> list[jax.Array]:
  """Applies a function to all arrays of a dtype at once, side by side."""
  results: dict[int, jax.Array] = {}
  for dtype in dict.fromkeys(array.dtype for array in arrays):
    places = [i for i, array in enumerate(arrays) if array.dtype == dtype]
    widths = [arrays[i].shape[-1] for i in places]
    joint = fn(jnp.concatenate([arrays[i] for i in places], axis=-1))
    results |= zip(places, _split(joint, widths), strict=True)
  return [results[i] for i in range(len(arrays))]


def _join_signs(
  parts: list[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """The same of their signs, packed on the way."""
  # Blocks of zeros should not straddle leaves: first those that fill blocks.
  order = sorted(
    range(len(parts)), key=lambda i: parts[i].size % signs.BLOCK != 0
  )
  sizes = [parts[i].size for i in order]
  size = sum(sizes)
  if not size:
    n = collectives.worker_count(axis_name)
    return [jnp.zeros((n, 0), part.dtype) for part in parts]
  columns = min(signs.BLOCK, math.ceil(size / bits.WORD))
  sign = jnp.concatenate([jnp.sign(parts[i]).astype(jnp.int8) for i in order])
  # what fills up counts as not zero, like most of what is there
  fill = -size % (bits.WORD * columns)
  grid = jnp.pad(sign, (0, fill), constant_values=1).reshape(-1, columns)
  positive, nonzero = bits.pack(grid > 0), bits.pack(grid != 0)
  some = bits.any_lane(nonzero)
  regular = jnp.all(nonzero == some)
  irregular = collectives.total(1 - regular.astype(jnp.int32), axis_name)
  first = collectives.gather(
    jnp.concatenate([positive, some], axis=1), axis_name
  )
  mask = jnp.broadcast_to(first[..., columns:], first[..., :columns].shape)
  mask = jax.lax.cond(
    irregular > 0,
    lambda: collectives.gather(nonzero, axis_name),
    lambda: mask,
  )

  def decode(positive, mask):
    tally = signs.Tally(2, (positive,), (mask,))
    return signs.decode(tally, 1, jnp.int8).reshape(-1)

  rows = jax.vmap(decode)(first[..., :columns], mask)
  whole = dict(zip(order, _split(rows[:, :size], sizes), strict=True))
  return [whole[i].astype(part.dtype) for i, part in enumerate(parts)]


def _split(joint: jax.Array, widths: list[int]) -> list[jax.Array]:
  """What lies side by side in the last axis, apart."""
  return jnp.split(joint, np.cumsum(widths)[:-1], axis=-1)
