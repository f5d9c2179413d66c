"""What all ``aggregate_by_*`` are: transformations that tell what they sent."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from signmomentum import collectives


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
  """Refuses a ``present`` that is not of one worker."""
  if present is not None and jnp.ndim(present):
    raise ValueError(
      f'{who}: present must be a scalar, whether this one worker is there, not'
      f' of shape {jnp.shape(present)}.'
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


def hold_if_nobody_present(
  tx: optax.GradientTransformation, axis_name: collectives.AxisName
) -> optax.GradientTransformationExtraArgs:
  """Makes a step without any worker a step that changes nothing at all.

  Aggregation returns zero when nobody is present, but decay, momentum and
  schedules of a chain would still move. Only where ``present`` is given does
  this cost anything: the sum of one scalar over workers.

  Args:
    tx: a transformation with an ``aggregate_by_*`` inside.
    axis_name: the axis of the workers.

  Returns:
    the transformation.
  """
  tx = optax.with_extra_args_support(tx)

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    new = tx.update(updates, state, params, present=present, **extra_args)
    if present is None:
      return new
    held = optax.tree.zeros_like(new[0]), state
    anyone = somebody(present, axis_name)
    return jax.tree.map(functools.partial(jnp.where, anyone), new, held)

  return optax.GradientTransformationExtraArgs(tx.init, update_fn)
