"""What the wire loses is not lost: kept, and added the next time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import aggregator, arguments, collectives, trees


class WithErrorFeedbackState(NamedTuple):
  """State of :func:`with_error_feedback`."""

  residual: optax.Updates  # of each worker
  aggregator: optax.OptState


def with_error_feedback(
  aggregate: aggregator.Aggregator,
) -> optax.GradientTransformationExtraArgs:
  r"""Adds to a worker's update what earlier messages of it did not say.

  With :math:`C(p)` what the others can know of :math:`p` from its message:

  .. math::
    p^i_t = u^i_t + e^i_t \\
    \Delta_t = \text{aggregate}(p^1_t, \dots, p^n_t) \\
    e^i_{t+1} = p^i_t - C(p^i_t)

  For ``aggregate_by_top_k``, :math:`C` keeps what was sent. For votes, which
  send a sign, it is the multiple of the sign that is nearest to :math:`p`, the
  mean magnitude of the leaf. For ``aggregate_by_mean`` it is the rounding to
  ``wire_dtype``. An absent worker sends nothing, and keeps all.

  :math:`e` has the dtype of the parameters, :math:`p` (with what is sent of it)
  the wider one of :math:`u` and :math:`e`. In f32 next to nothing is lost, in
  bf16 what is below 1/256 of :math:`e`.

  A residual that is NaN stays so: against gradients that are not finite, put
  :func:`ignore_non_finite` before.

  Args:
    aggregate: an ``aggregate_by_*``.

  Returns:
    the transformation, to be used in its place.

  Raises:
    TypeError: ``aggregate`` is not an ``aggregate_by_*``.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.with_error_feedback(sm.aggregate_by_top_k('workers', 0.5))
    >>> def step(update, state):
    ...   return tx.update(update, state)
    >>> run = jax.vmap(step, (0, None), (None, 0), axis_name='workers')
    >>> updates = jnp.array([[1.0, 0.75]])
    >>> sent, state = run(updates, tx.init(updates[0]))
    >>> sent, state.residual
    (Array([1., 0.], dtype=float32), Array([[0.  , 0.75]], dtype=float32))

  References:
    Karimireddy et al., `Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes <https://arxiv.org/abs/1901.09847>`_, 2019
  """
  _require_aggregator(aggregate, 'with_error_feedback')

  def init_fn(params):
    return WithErrorFeedbackState(
      residual=optax.tree.zeros_like(params),
      aggregator=aggregate.init(params),
    )

  def update_fn(updates, state, params=None, **extra_args):
    collectives.require_own_like(
      updates, state.residual, 'with_error_feedback', 'residual'
    )
    total = _add(updates, state.residual)
    result, sent, inner = aggregate.exchange(
      total, state.aggregator, params, **extra_args
    )
    residual = _unsaid(total, sent(), state.residual)
    return result, WithErrorFeedbackState(residual, inner)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class WithMomentumCorrectionState(NamedTuple):
  """State of :func:`with_momentum_correction`."""

  velocity: optax.Updates  # of each worker
  residual: optax.Updates  # of each worker
  aggregator: optax.OptState


def with_momentum_correction(
  aggregate: aggregator.Aggregator, momentum: jax.typing.ArrayLike = 0.9
) -> optax.GradientTransformationExtraArgs:
  r"""Error feedback for momentum: what is kept are velocities.

  .. math::
    u^i \leftarrow \mu u^i + g^i \\
    v^i \leftarrow v^i + u^i \\
    \Delta = \text{aggregate}(v^1, \dots, v^n)

  and where an element of :math:`v^i` has been sent, :math:`v^i` loses what was
  sent and :math:`u^i` is set to 0 (momentum factor masking: a stale velocity
  would go on in a direction that is old). After it comes plain SGD.

  Args:
    aggregate: an ``aggregate_by_*`` that sends some elements, such as
      :func:`aggregate_by_top_k`.
    momentum: :math:`\mu`, from 0 to 1.

  Returns:
    the transformation.

  Raises:
    ValueError: ``momentum`` is not from 0 to 1.
    TypeError: ``aggregate`` is not an ``aggregate_by_*``, or ``momentum`` no
      number.

  Example:
    >>> import optax
    >>> import signmomentum as sm
    >>> tx = optax.chain(
    ...   sm.with_momentum_correction(sm.aggregate_by_top_k('workers', 0.01)),
    ...   optax.scale_by_learning_rate(0.1))

  References:
    Lin et al., `Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training <https://arxiv.org/abs/1712.01887>`_, 2017
  """
  who = 'with_momentum_correction'
  _require_aggregator(aggregate, who)
  arguments.require_within(who, 'momentum', momentum, 0, 1)

  def init_fn(params):
    return WithMomentumCorrectionState(
      velocity=optax.tree.zeros_like(params),
      residual=optax.tree.zeros_like(params),
      aggregator=aggregate.init(params),
    )

  def update_fn(updates, state, params=None, **extra_args):
    collectives.require_own_like(updates, state.residual, who, 'residual')
    velocity = jax.tree.map(
      lambda u, g: (
        (momentum * u + g).astype(u.dtype) if trees.is_inexact(g) else u
      ),
      state.velocity,
      updates,
    )
    # integer gradients pass through, as everywhere
    total = jax.tree.map(
      lambda g, v, u: v + u if trees.is_inexact(g) else g,
      updates,
      state.residual,
      velocity,
    )
    result, sent, inner = aggregate.exchange(
      total, state.aggregator, params, **extra_args
    )
    message = sent()
    velocity = jax.tree.map(
      lambda u, s: jnp.where(s == 0, u, 0) if trees.is_inexact(s) else u,
      velocity,
      message,
    )
    residual = _unsaid(total, message, state.residual)
    return result, WithMomentumCorrectionState(velocity, residual, inner)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _unsaid(total, message, residual):
  """What a message did not say; the old residual gives dtypes."""
  return jax.tree.map(
    lambda p, s, e: (p - s).astype(e.dtype) if trees.is_inexact(p) else e,
    total,
    message,
    residual,
  )


def _add(updates, residual):
  # not in the dtype of the updates: what is kept is exact only if this is
  return jax.tree.map(
    lambda u, e: u + e if trees.is_inexact(u) else u,
    updates,
    residual,
  )


def _require_aggregator(aggregate, who: str) -> None:
  if not isinstance(aggregate, aggregator.Aggregator):
    raise TypeError(
      f'{who}: give it an aggregate_by_* itself, such as'
      " signmomentum.aggregate_by_majority_vote('workers'), not a chain or"
      f' another transformation: {type(aggregate).__name__} does not tell what'
      ' it sent.'
    )
