"""TernGrad's message: for each element -1, 0 or 1, for each leaf a scale."""

import jax
import jax.numpy as jnp

from signmomentum import (
  aggregator,
  arguments,
  collectives,
  draws,
  trees,
  votes,
)


def aggregate_by_ternary_mean(
  axis_name: collectives.AxisName,
  clip_factor: float | None = 2.5,
  seed: int = 0,
) -> aggregator.Aggregator:
  r"""Mean of randomly ternarized updates: 2 bits up for each element.

  With :math:`\tilde u_i` the update of worker :math:`i`, cut off at
  :math:`\pm c` times the root mean square of its leaf:

  .. math::
    s = \max_i \max_j |\tilde u_{ij}| \\
    b_{ij} = \text{sign}(\tilde u_{ij}) \text{ with probability }
      |\tilde u_{ij}| / s, \text{ else } 0 \\
    \Delta = \frac{s}{n} \sum_{i=1}^n b_i

  which is right in expectation, but for what is cut off. All workers share
  :math:`s`, one number for each leaf, so that sums of :math:`b_i` travel back
  in ``ceil(log2(2 n + 1))`` bits.

  A number that is not finite makes its leaf NaN, on all workers; so does one
  above ``2**126`` in f32. (What is below the normal numbers may count as 0.)

  The paper cuts off at multiples of the standard deviation about the mean;
  about zero is as good for gradients, and right for a leaf of one element.

  Args:
    axis_name: the axis of the workers.
    clip_factor: :math:`c`; None: nothing is cut off.
    seed: of the draws, a function of seed, step, worker and the leaf's path.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``clip_factor`` is not above 0 and finite, or ``seed`` is not
      from 0 to below 2**32; in ``update``: the updates are the same on every
      worker already (see :func:`as_local`).
    TypeError: ``clip_factor`` is no number, or ``seed`` not an int.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_ternary_mean('workers')
    >>> def mean(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> jax.vmap(mean, axis_name='workers', out_axes=None)(
    ...   jnp.array([[2.0, 0.0], [-2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    ... )
    Array([1., 0.], dtype=float32)

  References:
    Wen et al., `TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning <https://arxiv.org/abs/1705.07878>`_, 2017
  """
  who = 'aggregate_by_ternary_mean'
  if clip_factor is not None:
    arguments.require_positive(who, 'clip_factor', clip_factor)
  arguments.require_seed(who, seed)
  mean_of_signs = votes.aggregate_by_sign_mean(axis_name, zeros='exact')

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)
    here = [aggregator.if_present(leaf, present) for leaf in leaves]
    if clip_factor is not None:
      here = [_clipped(leaf, clip_factor) for leaf in here]
    scales = _scales(here, axis_name)
    worker = collectives.worker_index(axis_name)
    keys = draws.leaf_keys(
      draws.key(seed, state.count, worker), trees.paths(updates)
    )
    ternary = [
      draws.randomized_sign(key, leaf, scale, 'three_point')
      for key, leaf, scale in zip(keys, here, scales, strict=True)
    ]
    mean, new_state = mean_of_signs.update(ternary, state, present=present)

    def scaled(signs):
      return rebuild(
        [
          (sign * scale).astype(leaf.dtype)
          for sign, leaf, scale in zip(signs, leaves, scales, strict=True)
        ]
      )

    return scaled(mean), lambda: scaled(ternary), new_state

  return aggregator.make(mean_of_signs.init, exchange)


def _clipped(leaf: jax.Array, factor: float) -> jax.Array:
  if not leaf.size:
    return leaf
  wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
  # In units of the largest, since squares of numbers can leave the range of
  # these; the inverse of the unit, by which XLA on CPU multiplies, must not.
  tiny = float(jnp.finfo(wide.dtype).tiny)
  unit = jnp.clip(jnp.max(jnp.abs(wide)), tiny, 1 / tiny)
  scaled = wide / unit
  most = factor * jnp.sqrt(jnp.mean(scaled * scaled)) * unit
  return jnp.clip(wide, -most, most).astype(leaf.dtype)


def _scales(
  leaves: list[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """The largest magnitude of each leaf on any worker, in one message.

  NaN where somebody has a number that is not finite, or so large that its
  inverse, by which XLA on CPU multiplies to divide by it, is flushed to 0.
  (Some backends drop NaN from a maximum: it travels as infinity.)
  """
  if not leaves:
    return []
  wide = jnp.result_type(jnp.float32, *leaves)

  def largest(leaf):
    most = jnp.max(jnp.abs(leaf), initial=0.0)
    return jnp.where(jnp.all(jnp.isfinite(leaf)), most, jnp.inf).astype(wide)

  own = jnp.stack([largest(leaf) for leaf in leaves])
  most = collectives.maximum(own, axis_name)
  largest_of_all = 1 / float(jnp.finfo(wide).tiny)
  return list(jnp.where(most <= largest_of_all, most, jnp.nan))
