"""An outer rule of which every worker does its share, and holds its share."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import (
  aggregator,
  arguments,
  collectives,
  levels,
  part_signs,
  parts,
  quantized,
  trees,
)

_GATHERS = ('signs', 'full')


class ShardOverWorkersState(NamedTuple):
  """State of :func:`shard_over_workers` where messages are drawn."""

  count: jax.Array  # steps; shape=(), dtype=jnp.int32
  inner: optax.OptState


def shard_over_workers(
  tx: optax.GradientTransformation,
  axis_name: collectives.AxisName,
  gather: str = 'signs',
  bits: int | None = None,
  block_size: int = 128,
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an outer rule on the mean update, each worker on a part of it.

  Every worker owns :math:`1/n` of the elements of every leaf, and
  :math:`1/n` of the state of ``tx``:

  1. workers send each owner its part of their updates, and the owner takes the
     mean: ``32 (n - 1) / n`` bits for each parameter, or with ``bits`` only
     ``(bits + 16 / block_size) (n - 1) / n``;
  2. the owner runs ``tx`` on its part;
  3. the results go to everybody: as they are, for another ``32 (n - 1) / n``
     bits (``gather='full'``), or their signs, for ``(n - 1) / n`` bits
     (``gather='signs'``).

  The result is that of ``optax.chain(aggregate_by_mean(axis_name), tx)``, or
  the sign of it. Zeros are exact, and NaN stays NaN: one more bit for 128
  elements says where all are zero; if there are others, which all workers then
  know, a second bit for each element follows in this step.

  Paper A's outer step, for 33 instead of 64 bits and a shard of the momentum::

    optax.chain(
      sm.shard_over_workers(sm.lion_momentum(0.95, 0.98), 'workers'),
      optax.add_decayed_weights(0.1),
      optax.scale_by_learning_rate(1.0),
    )

  With ``bits`` each update is rounded at random to so few, as on the first hop
  of :func:`aggregate_by_quantized_mean`; the mean, right in expectation, is not
  rounded again. With ``bits=4`` the same outer step is for 5 bits in all.

  ``tx`` sees a part of each parameter and update, some of its rows or a vector,
  so it must treat every element by itself: no norms, no factors, no masks by
  shape.

  ``init`` must know the workers too. ``Workers.init`` sees to it; elsewhere
  call it where the axis is bound, inside ``shard_map`` or ``vmap``.

  Args:
    tx: an elementwise optimizer.
    axis_name: the axis of the workers.
    gather: ``'signs'`` or ``'full'``.
    bits: 8, 4 or 2, of an element on its way to its owner; None: all it has.
    block_size: with ``bits``, elements that share a scale.
    seed: with ``bits``, of the draws.

  Returns:
    the transformation, which aggregates: it takes the place of
    ``aggregate_by_mean`` and what follows. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``gather`` or ``bits`` is unknown, ``block_size`` below 1 or
      ``seed`` not from 0 to below 2**32; in ``update``: the updates are the
      same on every worker already (see :func:`as_local`).
    TypeError: ``bits``, ``block_size`` or ``seed`` is not an int.
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
  arguments.require_seed(who, seed)
  quantized.require_block_size(who, block_size)
  form = None if bits is None else quantized.make_format(who, bits, block_size)
  tx = optax.with_extra_args_support(tx)

  def own_parts(tree):
    """This worker's part of each floating leaf of a tree that all share."""
    leaves, rebuild = trees.split(tree)
    n = collectives.worker_count(axis_name)
    worker = collectives.worker_index(axis_name)
    return rebuild([parts.of(leaf, n)[worker] for leaf in leaves])

  def init_fn(params):
    try:
      inner = tx.init(own_parts(params))
    except NameError as error:
      error.add_note(
        f'shard_over_workers: init must know how many workers share the state.'
        f' Use signmomentum.Workers, or call init where the axis {axis_name!r}'
        ' is bound, inside shard_map.'
      )
      raise
    if form is None:
      return inner
    return ShardOverWorkersState(jnp.zeros([], jnp.int32), inner)

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)
    n = collectives.worker_count(axis_name)
    divided = [
      parts.of(aggregator.if_present(leaf, present), n) for leaf in leaves
    ]
    if form is None:
      number = aggregator.number_present(present, axis_name)
      means, inner = parts.mean(divided, number, axis_name), state
    else:
      key, _ = quantized.keys(seed, state.count, axis_name)
      means = _mean_of_levels(form, divided, key, present, axis_name)
      inner = state.inner
    # a state that the compiler spreads as it likes would not stay where it was
    means = [collectives.everywhere(mean, axis_name) for mean in means]
    steps, inner = tx.update(
      rebuild(means),
      inner,
      None if params is None else own_parts(params),
      present=present,
      **extra_args,
    )
    own, rebuild_steps = trees.split(steps)
    if gather == 'signs':
      whole = part_signs.whole(own, axis_name, leaves)
    else:
      joined = parts.join(own, axis_name)
      whole = list(map(parts.whole, joined, leaves))
    if form is None:
      return rebuild_steps(whole), inner
    count = optax.safe_increment(state.count)
    return rebuild_steps(whole), ShardOverWorkersState(count, inner)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _mean_of_levels(
  form: levels.Format,
  divided: list[jax.Array],
  key: jax.Array,
  present: jax.typing.ArrayLike | None,
  axis_name: collectives.AxisName,
) -> list[jax.Array]:
  """The mean of this worker's part of each leaf, of levels that are sent."""
  n = collectives.worker_count(axis_name)
  rows_NxW = [part.reshape(n, -1) for part in divided]
  widths = [row.shape[1] for row in rows_NxW]
  if not sum(widths):
    return [part[0] for part in divided]
  dtype = jnp.result_type(jnp.float32, *rows_NxW)
  fill = functools.partial(_filled, dtype=dtype)
  joint = jnp.concatenate([fill(row, form.block_size) for row in rows_NxW], 1)
  blocks = fill(joint, form.group * form.block_size)
  blocks = blocks.reshape(-1, form.group, form.block_size)
  said = jax.tree.map(
    lambda x: x.reshape(n, -1, x.shape[1]), form.encode(blocks, key)
  )
  mean = quantized.mean_of_share(form, said, dtype, present, axis_name)
  filled = [-(-width // form.block_size) * form.block_size for width in widths]
  means = parts.apart(mean.reshape(-1)[: sum(filled)], filled)
  return [
    own[:width].reshape(part.shape[1:]).astype(part.dtype)
    for own, width, part in zip(means, widths, divided, strict=True)
  ]


def _filled(rows_NxW: jax.Array, multiple: int, dtype: jnp.dtype) -> jax.Array:
  fill = -rows_NxW.shape[1] % multiple
  return jnp.pad(rows_NxW.astype(dtype), ((0, 0), (0, fill)))
