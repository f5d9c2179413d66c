"""What happens to a worker's own gradient before anything is sent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import arguments, collectives, trees


class LionMomentumState(NamedTuple):
  """State of :func:`lion_momentum`."""

  mu: optax.Updates


def lion_momentum(
  b1: jax.typing.ArrayLike = 0.9,
  b2: jax.typing.ArrayLike = 0.99,
  mu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformation:
  r"""Lion's direction before the sign is taken.

  .. math::
    u_t = \beta_1 m_t + (1 - \beta_1) g_t \\
    m_{t+1} = \beta_2 m_t + (1 - \beta_2) g_t

  With ``optax.scale_by_sign`` after it, this is ``optax.scale_by_lion``; with
  ``aggregate_by_majority_vote`` after it, the sign is left to the vote.

  Args:
    b1: weight of the momentum in the direction, from 0 to 1.
    b2: decay rate of the momentum, from 0 to 1.
    mu_dtype: floating dtype of the momentum, of 16 bits or more; None: that of
      the parameters.

  Returns:
    the transformation.

  Raises:
    ValueError: ``b1`` or ``b2`` is not from 0 to 1, or ``mu_dtype`` is not
      floating or below 16 bits.
    TypeError: ``b1`` or ``b2`` is no number.

  Example:
    >>> import jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.lion_momentum(b1=0.5, b2=0.5)
    >>> updates, state = tx.update(jnp.array(4.0), tx.init(jnp.array(0.0)))
    >>> updates, state = tx.update(jnp.array(0.0), state)
    >>> updates, state.mu
    (Array(1., dtype=float32), Array(1., dtype=float32))

  References:
    Chen et al., `Symbolic Discovery of Optimization Algorithms
    <https://arxiv.org/abs/2302.06675>`_, 2023
  """
  who = 'lion_momentum'
  arguments.require_within(who, 'b1', b1, 0, 1)
  arguments.require_within(who, 'b2', b2, 0, 1)
  arguments.require_floating(who, 'mu_dtype', mu_dtype)

  def init_fn(params):
    return LionMomentumState(mu=optax.tree.zeros_like(params, dtype=mu_dtype))

  def update_fn(updates, state, params=None):
    del params
    collectives.require_own_like(updates, state.mu, who, 'momentum')

    def direction(g, m):
      return b1 * m + (1 - b1) * g if trees.is_inexact(g) else g

    def momentum(g, m):
      return (
        (b2 * m + (1 - b2) * g).astype(m.dtype) if trees.is_inexact(g) else m
      )

    mu = jax.tree.map(momentum, updates, state.mu)
    directions = jax.tree.map(direction, updates, state.mu)
    return directions, LionMomentumState(mu=mu)

  return optax.GradientTransformation(init_fn, update_fn)


class IgnoreNonFiniteState(NamedTuple):
  """State of :func:`ignore_non_finite`."""

  ignored: jax.Array  # shape=(), dtype=jnp.int32


def ignore_non_finite() -> optax.GradientTransformation:
  """Lets a gradient with any NaN or Inf count as zero, and counts how often.

  Each worker decides for its own gradient and goes on to take part in the
  exchange, so that nobody waits. (``optax.apply_if_finite`` would skip the
  exchange on one worker; around a transformation that communicates it is
  refused.) Put it first in the chain.

  Returns:
    the transformation; ``state.ignored`` is this worker's count.

  Example:
    >>> import jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.ignore_non_finite()
    >>> state = tx.init(jnp.zeros(2))
    >>> updates, state = tx.update(jnp.array([1.0, jnp.nan]), state)
    >>> updates, state.ignored
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
  """

  def init_fn(params):
    del params
    return IgnoreNonFiniteState(ignored=jnp.zeros([], jnp.int32))

  def update_fn(updates, state, params=None):
    del params
    finite = jnp.array(True)
    for leaf in filter(trees.is_inexact, jax.tree.leaves(updates)):
      finite &= jnp.all(jnp.isfinite(leaf))

    def keep(leaf):
      return jnp.where(finite, leaf, 0) if trees.is_inexact(leaf) else leaf

    ignored = jnp.where(
      finite, state.ignored, optax.safe_increment(state.ignored)
    )
    return jax.tree.map(keep, updates), IgnoreNonFiniteState(ignored=ignored)

  return optax.GradientTransformation(init_fn, update_fn)
