"""SGD on compressed gradients: the baselines of the Distributed Lion paper.

Each is a chain whose ``aggregate_by_*`` sends what its paper sends, two bits or
indices and values, and no dense array with zeros in it.
"""

import math

import jax
import optax

from signmomentum import (
  aggregator,
  arguments,
  collectives,
  feedback,
  outer,
  sparse,
  ternary,
)


def terngrad(
  learning_rate: optax.ScalarOrSchedule,
  momentum: jax.typing.ArrayLike = 0.9,
  weight_decay: jax.typing.ArrayLike = 0.0,
  axis_name: collectives.AxisName = 'workers',
  clip_factor: float | None = 2.5,
  mask: outer.Mask = None,
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""TernGrad: SGD with momentum on the mean of ternary gradients.

  .. math::
    \Delta_t = \frac{s_t}{n} \sum_i b^i_t \\
    m_{t+1} = \mu m_t + \Delta_t \\
    x_{t+1} = x_t - \epsilon (m_{t+1} + \lambda x_t)

  with the ternary :math:`b` and the scale :math:`s` of
  :func:`aggregate_by_ternary_mean`: 2 bits up and ``ceil(log2(2 n + 1))`` bits
  down for each element. The decay is decoupled, as in all methods here; the
  paper leaves it to the optimizer.

  Args:
    learning_rate: :math:`\epsilon`, or its schedule.
    momentum: :math:`\mu`, of the shared momentum.
    weight_decay: :math:`\lambda`, on the shared parameters.
    axis_name: the axis of the workers.
    clip_factor: where gradients are cut off, in root mean squares of a leaf;
      None: nowhere.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.
    seed: of the draws.

  Returns:
    the transformation. Its ``update`` takes ``present``; a step without any
    worker present changes nothing.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``momentum`` is
      not from 0 to 1, ``clip_factor`` not above 0 and finite, or ``seed`` not
      from 0 to below 2**32.
    TypeError: one of them is no number, or ``seed`` not an int.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.terngrad(learning_rate=0.5)
    >>> def update(gradient):
    ...   return tx.update(gradient, tx.init(gradient), gradient)[0]
    >>> gradients = jnp.array([2.0, 2.0, -2.0, 2.0])
    >>> jax.vmap(update, out_axes=None, axis_name='workers')(gradients)
    Array(-0.5, dtype=float32)

  References:
    Wen et al., `TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning <https://arxiv.org/abs/1705.07878>`_, 2017
  """
  arguments.require_within('terngrad', 'momentum', momentum, 0, 1)
  return aggregator.hold_if_nobody_present(
    optax.chain(
      ternary.aggregate_by_ternary_mean(axis_name, clip_factor, seed),
      optax.trace(momentum),
      *outer.decayed_step('terngrad', learning_rate, weight_decay, mask),
    ),
    axis_name,
  )


def graddrop(
  learning_rate: optax.ScalarOrSchedule,
  density: float = 0.01,
  momentum: jax.typing.ArrayLike = 0.0,
  weight_decay: jax.typing.ArrayLike = 0.0,
  axis_name: collectives.AxisName = 'workers',
  mask: outer.Mask = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Gradient dropping: SGD on the largest gradients, with error feedback.

  .. math::
    p^i_t = g^i_t + e^i_t \\
    \Delta_t = \frac{1}{n} \sum_i \text{top}_k(p^i_t) \\
    e^i_{t+1} = p^i_t - \text{top}_k(p^i_t) \\
    m_{t+1} = \mu m_t + \Delta_t \\
    x_{t+1} = x_t - \epsilon (m_{t+1} + \lambda x_t)

  The largest are found exactly and in each leaf by itself; the paper estimates
  one threshold for all from a sample.

  Args:
    learning_rate: :math:`\epsilon`, or its schedule.
    density: share of the elements of a leaf that is sent; the paper drops 99 %,
      the Distributed Lion paper 96 %.
    momentum: :math:`\mu`, of the shared momentum.
    weight_decay: :math:`\lambda`, on the shared parameters.
    axis_name: the axis of the workers.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.

  Returns:
    the transformation. Its ``update`` takes ``present``; a step without any
    worker present changes nothing.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``momentum`` is
      not from 0 to 1, or ``density`` not above 0 and at most 1.
    TypeError: one of them is no number, or ``density`` an array.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.graddrop(learning_rate=0.5, density=0.5)
    >>> def update(gradient):
    ...   return tx.update(gradient, tx.init(gradient), gradient)[0]
    >>> gradients = jnp.array([[4.0, 1.0], [2.0, -3.0]])
    >>> jax.vmap(update, out_axes=None, axis_name='workers')(gradients)
    Array([-1.  ,  0.75], dtype=float32)

  References:
    Aji and Heafield, `Sparse Communication for Distributed Gradient Descent
    <https://arxiv.org/abs/1704.05021>`_, 2017
  """
  arguments.require_within('graddrop', 'momentum', momentum, 0, 1)
  return aggregator.hold_if_nobody_present(
    optax.chain(
      feedback.with_error_feedback(
        sparse.aggregate_by_top_k(axis_name, density)
      ),
      optax.trace(momentum),
      *outer.decayed_step('graddrop', learning_rate, weight_decay, mask),
    ),
    axis_name,
  )


def deep_gradient_compression(
  learning_rate: optax.ScalarOrSchedule,
  density: float = 0.001,
  momentum: jax.typing.ArrayLike = 0.9,
  weight_decay: jax.typing.ArrayLike = 0.0,
  axis_name: collectives.AxisName = 'workers',
  max_norm: float | None = None,
  warmup_steps: int = 0,
  mask: outer.Mask = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Deep Gradient Compression: the largest velocities, and all corrections.

  Local clipping, momentum correction, momentum factor masking, and a warm-up of
  the density. With :math:`\hat g^i` the gradient of worker :math:`i`, clipped
  to the norm :math:`c / \sqrt n`:

  .. math::
    u^i \leftarrow \mu u^i + \hat g^i \\
    v^i \leftarrow v^i + u^i \\
    \Delta_t = \frac{1}{n} \sum_i \text{top}_k(v^i) \\
    v^i, u^i \leftarrow 0 \text{ where sent} \\
    x_{t+1} = x_t - \epsilon (\Delta_t + \lambda x_t)

  In the warm-up the density is 1/4, 1/16, 1/64, ... for equal times, as long as
  that is above ``density``. The largest are found exactly and in each leaf by
  itself (the paper samples), and the decay is decoupled (the paper's is part of
  the gradient).

  Args:
    learning_rate: :math:`\epsilon`, or its schedule.
    density: share of the elements of a leaf that is sent in the end; the paper
      has 0.001, the Distributed Lion paper 0.04.
    momentum: :math:`\mu`.
    weight_decay: :math:`\lambda`, on the shared parameters.
    axis_name: the axis of the workers.
    max_norm: :math:`c`, of the mean gradient; None: no clipping.
    warmup_steps: steps of the warm-up of the density.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.

  Returns:
    the transformation. Its ``update`` takes ``present``; a step without any
    worker present changes nothing.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``momentum`` is
      not from 0 to 1, ``density`` not above 0 and at most 1, ``max_norm`` not
      above 0 and finite, or ``warmup_steps`` below 0 or too few to visit each
      density.
    TypeError: one of them is no number, ``warmup_steps`` is not an int, or
      ``density`` an array.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.deep_gradient_compression(learning_rate=0.5, density=0.5)
    >>> def update(gradient):
    ...   return tx.update(gradient, tx.init(gradient), gradient)[0]
    >>> gradients = jnp.array([[4.0, 1.0], [2.0, -3.0]])
    >>> jax.vmap(update, out_axes=None, axis_name='workers')(gradients)
    Array([-1.  ,  0.75], dtype=float32)

  References:
    Lin et al., `Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training <https://arxiv.org/abs/1712.01887>`_, 2017
  """
  who = 'deep_gradient_compression'
  arguments.require_int(who, 'warmup_steps', warmup_steps, least=0)
  arguments.require_static(who, 'warmup_steps', warmup_steps)
  arguments.require_static(who, 'density', density)
  arguments.require_within(who, 'momentum', momentum, 0, 1)
  if max_norm is not None:
    arguments.require_positive(who, 'max_norm', max_norm)
  clip = [] if max_norm is None else [_clip_locally(max_norm, axis_name)]
  top_k = sparse.aggregate_by_top_k(
    axis_name, density, _warmup(who, density, warmup_steps)
  )
  return aggregator.hold_if_nobody_present(
    optax.chain(
      *clip,
      feedback.with_momentum_correction(top_k, momentum),
      *outer.decayed_step(who, learning_rate, weight_decay, mask),
    ),
    axis_name,
  )


def _warmup(
  who: str, density: float, steps: int
) -> tuple[tuple[int, float], ...]:
  """Equal times of the densities 1/4, 1/16, ... above the last one."""
  if not steps or not 0 < density < 0.25:
    return ()
  stages = math.ceil(math.log(density, 0.25)) - 1
  if steps < stages:
    raise ValueError(
      f'{who}: warmup_steps={steps} are too few for the {stages} densities'
      f' between 1 and {density}: give at least {stages}, or 0.'
    )
  ends = [steps * i // stages for i in range(stages + 1)]
  return tuple((ends[i] - ends[i - 1], 0.25**i) for i in range(1, stages + 1))


def _clip_locally(
  max_norm: float, axis_name: collectives.AxisName
) -> optax.GradientTransformation:
  """Clips to the part of a norm that is one worker's, if all are alike."""

  def update_fn(updates, state, params=None):
    own = max_norm * collectives.worker_count(axis_name) ** -0.5
    clip = optax.clip_by_global_norm(own)
    return clip.update(updates, state, params)

  return optax.GradientTransformation(optax.init_empty_state, update_fn)
