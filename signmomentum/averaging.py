"""Averaging what each worker keeps for itself, from time to time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import aggregator, arguments, collectives, trees


class WithStateAveragingState(NamedTuple):
  """State of :func:`with_state_averaging`."""

  count: jax.Array  # updates since the last average; shape=(), dtype=jnp.int32
  inner: optax.OptState


def with_state_averaging(
  tx: optax.GradientTransformation,
  average_every: int,
  axis_name: collectives.AxisName,
) -> optax.GradientTransformationExtraArgs:
  r"""Averages the state of a transformation over workers every few updates.

  Momenta that never meet drift apart: each follows its worker's data. After
  every :math:`k` updates

  .. math::
    m^i \leftarrow \frac{1}{n} \sum_{j=1}^n m^j

  for all floating leaves of the state, in full precision:
  ``64 / k * (n - 1) / n`` bits for each element of it and update. With
  :func:`lion_momentum` inside this is the selective synchronisation of momenta;
  with ``optax.partition``, of some leaves only. Inside ``local_steps`` it works
  in the inner optimizer as well as in the outer one, and gets its ``present``;
  ``sync`` there is of the local steps alone, and this goes by its count.

  Its ``update`` takes two extra arguments: ``sync``, a Python bool, says at
  trace time whether this update averages, None (default) goes by the count;
  of those who are not ``present`` the state is not taken, and they keep it.

  What is not finite in the state of one worker is so for all from the next
  average on: put :func:`ignore_non_finite` before.

  Args:
    tx: any transformation; gets all other extra arguments, and ``present``.
    average_every: updates between two averages, :math:`k`.
    axis_name: the axis of the workers.

  Returns:
    the transformation.

  Raises:
    ValueError: ``average_every`` is below 1.
    TypeError: ``average_every`` is not an int; in ``update``: ``sync`` is not a
      Python bool.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.with_state_averaging(
    ...   sm.lion_momentum(b1=0.5, b2=0.5), average_every=1, axis_name='workers'
    ... )
    >>> def momentum(gradient):
    ...   return tx.update(gradient, tx.init(gradient))[1].inner.mu
    >>> jax.vmap(momentum, axis_name='workers')(jnp.array([2.0, 6.0]))
    Array([2., 2.], dtype=float32)

  References:
    Ishikawa et al., `Lion Cub: Minimizing Communication Overhead in Distributed
    Lion <https://arxiv.org/abs/2411.16462>`_, 2024
  """
  who = 'with_state_averaging'
  arguments.require_int(who, 'average_every', average_every, least=1)
  tx = optax.with_extra_args_support(tx)

  def init_fn(params):
    return WithStateAveragingState(jnp.zeros([], jnp.int32), tx.init(params))

  def update_fn(
    updates, state, params=None, *, sync=None, present=None, **extra_args
  ):
    arguments.require_static_bool(who, 'sync', sync)
    aggregator.require_scalar(present, who)
    updates, inner = tx.update(
      updates, state.inner, params, present=present, **extra_args
    )
    count = state.count + 1

    def averaged():
      number = aggregator.number_present(present, axis_name)

      def average(leaf):
        if not _is_own(leaf, axis_name):
          return leaf
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        here = aggregator.if_present(leaf.astype(wide), present)
        mean = collectives.total(here, axis_name) / jnp.asarray(number, wide)
        mean = collectives.as_local(mean, axis_name).astype(leaf.dtype)
        return mean if present is None else jnp.where(present, mean, leaf)

      return jnp.zeros_like(count), jax.tree.map(average, inner)

    if sync is None:
      count, inner = jax.lax.cond(
        count >= average_every, averaged, lambda: (count, inner)
      )
    elif sync:
      count, inner = averaged()
    return updates, WithStateAveragingState(count, inner)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _is_own(leaf: jax.Array, axis_name: collectives.AxisName) -> bool:
  """Whether there is something to average: not what types say is shared."""
  if not trees.is_inexact(leaf):
    return False
  return not collectives.checked(axis_name) or collectives.differs(
    leaf, axis_name
  )
