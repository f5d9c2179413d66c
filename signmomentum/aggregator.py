"""What all ``aggregate_by_*`` are: transformations that tell what they sent."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from signmomentum import collectives, trees


class Aggregator(optax.GradientTransformationExtraArgs):
  """An optax transformation from workers' updates to what all agree on.

  Attributes:
    exchange: like ``update``, but returns three things: the updates that all
      agree on; a function without arguments, for what the others can know of
      this worker's updates (its message, decoded, as a tree of updates; of a
      sign, with the mean magnitude of its leaf); and the new state.
  """

  exchange: Callable[..., tuple[Any, Callable[[], Any], Any]]


def make(init: Callable, exchange: Callable) -> Aggregator:
  """An aggregator, from its two functions."""

  def update(updates, state, params=None, **extra_args):
    result, _, new_state = exchange(updates, state, params, **extra_args)
    return result, new_state

  aggregator = Aggregator(init, update)
  aggregator.exchange = exchange
  return aggregator


def require_scalar(present: jax.typing.ArrayLike | None, who: str) -> None:
  """Refuses a ``present`` that is not a bool of one worker."""
  if present is None:
    return
  if jnp.ndim(present):
    raise ValueError(
      f'{who}: present must be a scalar, whether this one worker is there, not'
      f' of shape {jnp.shape(present)}.'
    )
  # means would take a number for a weight, and votes for a flag
  dtype = jnp.result_type(present)
  if not jnp.issubdtype(dtype, jnp.bool_):
    raise TypeError(
      f'{who}: present must be a bool, whether this worker is there, not of'
      f' dtype {dtype}. If it is a count or a weight, pass present > 0.'
    )


def if_present(
  leaf: jax.Array, present: jax.typing.ArrayLike | None
) -> jax.Array:
  """The leaf, or zeros of an absent worker."""
  # where, not a product: an absent worker may hold anything, also NaN
  return leaf if present is None else jnp.where(present, leaf, 0)


def number_present(
  present: jax.typing.ArrayLike | None, axis_name: collectives.AxisName
) -> int | jax.Array:
  """How many workers a mean is over: those present, but at least 1."""
  if present is None:
    return collectives.worker_count(axis_name)
  here = jnp.asarray(present).astype(jnp.int32)
  return jnp.maximum(collectives.total(here, axis_name), 1)


def somebody(
  present: jax.typing.ArrayLike, axis_name: collectives.AxisName
) -> jax.Array:
  """Whether any worker is present; the same on all of them."""
  flag = jnp.asarray(present).astype(jnp.int32)
  return collectives.total(flag, axis_name) > 0


def on_floats(
  tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  """Leaves alone what is not floating: it has no gradient, and does not decay.

  Its update is 0, whatever comes for it: from ``jax.grad`` that is ``float0``,
  which ``optax.apply_updates`` refuses.

  Args:
    tx: any transformation.

  Returns:
    the transformation. Its state is that of ``tx``, in an
    ``optax.MaskedState`` if there are such leaves. (Without parameters in
    ``update``, what comes for them passes through.)

  Example:
    >>> import jax.numpy as jnp, optax
    >>> from signmomentum import aggregator
    >>> tx = aggregator.on_floats(optax.add_decayed_weights(1.0))
    >>> params = {'step': jnp.int32(3), 'w': jnp.ones(2)}
    >>> zero = {'step': jnp.int32(0), 'w': jnp.zeros(2)}
    >>> tx.update(zero, tx.init(params), params)[0]
    {'step': Array(0, dtype=int32), 'w': Array([1., 1.], dtype=float32)}
  """

  def masked(tree):
    floating = jax.tree.map(trees.is_inexact, tree)
    if all(jax.tree.leaves(floating)):
      return optax.with_extra_args_support(tx)
    return optax.masked(tx, floating)

  def init_fn(params):
    return masked(params).init(params)

  def update_fn(updates, state, params=None, **extra_args):
    known = updates if params is None else params
    updates, state = masked(known).update(updates, state, params, **extra_args)
    if params is not None:
      updates = jax.tree.map(_still, updates, params)
    return updates, state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _still(update, param):
  return update if trees.is_inexact(param) else jnp.zeros_like(param)


def hold_if_nobody_present(
  tx: optax.GradientTransformation, axis_name: collectives.AxisName
) -> optax.GradientTransformationExtraArgs:
  """Makes a step without any worker a step that changes nothing at all.

  Leaves that are not floating are left alone in any step, see `on_floats`.

  Aggregation returns zero when nobody is present, but decay, momentum and
  schedules of a chain would still move. Only where ``present`` is given does
  this cost anything: the sum of one scalar over workers.

  Args:
    tx: a transformation with an ``aggregate_by_*`` inside.
    axis_name: the axis of the workers.

  Returns:
    the transformation.
  """
  tx = on_floats(tx)

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    new = tx.update(updates, state, params, present=present, **extra_args)
    if present is None:
      return new
    held = optax.tree.zeros_like(new[0]), state
    anyone = somebody(present, axis_name)
    return jax.tree.map(functools.partial(jnp.where, anyone), new, held)

  return optax.GradientTransformationExtraArgs(tx.init, update_fn)
