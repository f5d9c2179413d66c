"""Outer rules: what a pseudo-gradient does to the shared point.

They are plain optimizers: an outer rule gets the aggregated displacement of a
round, *start minus end*, as its gradient, and the shared point as its
parameters. In ``local_steps`` with a local learning rate :math:`\\gamma` the
displacement comes divided by it and the update is multiplied by it, so that all
rates here are multiples of :math:`\\gamma` and :math:`g` sums up directions.

All of them raise ``ValueError`` if a rate or a decay is not finite or below 0,
or a momentum not from 0 to 1, and ``TypeError`` if one of them is no number.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

from signmomentum import arguments

Mask = Any | Callable[[optax.Params], Any] | None


def sign_momentum(
  learning_rate: optax.ScalarOrSchedule = 1.0,
  b1: jax.typing.ArrayLike = 0.95,
  b2: jax.typing.ArrayLike = 0.98,
  weight_decay: jax.typing.ArrayLike = 0.1,
  mask: Mask = None,
) -> optax.GradientTransformationExtraArgs:
  r"""The global sign-momentum step of Distributed Sign Momentum.

  For the pseudo-gradient :math:`g = (x_{t,0} - \bar x_{t,\tau}) / \gamma_t`:

  .. math::
    x_{t+1,0} = x_{t,0} - \eta \gamma_t \left( \text{sign}(\beta_1 m_t +
      (1 - \beta_1) g) + \lambda x_{t,0} \right) \\
    m_{t+1} = \beta_2 m_t + (1 - \beta_2) g

  that is Lion on the pseudo-gradient. The decay acts on the shared point, on
  all of it unless masked (as in the authors' code). sign(0) is 0.

  Args:
    learning_rate: :math:`\eta`, or a schedule of it over rounds.
    b1: :math:`\beta_1`, weight of the momentum in the direction.
    b2: :math:`\beta_2`, decay rate of the momentum.
    weight_decay: :math:`\lambda`. The authors' example uses 0.1, their code's
      default is 0.2.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.

  Returns:
    the transformation.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.sign_momentum(learning_rate=0.1, weight_decay=0.0)
    >>> anchor, workers_mean = jnp.array(1.0), jnp.array(0.8)
    >>> updates, _ = tx.update(anchor - workers_mean, tx.init(anchor), anchor)
    >>> optax.apply_updates(anchor, updates)
    Array(0.9, dtype=float32)

  References:
    Yu et al., `Distributed Sign Momentum with Local Steps for Training
    Transformers <https://arxiv.org/abs/2411.17866>`_, 2024
  """
  who = 'sign_momentum'
  arguments.require_rate(who, 'learning_rate', learning_rate)
  arguments.require_within(who, 'b1', b1, 0, 1)
  arguments.require_within(who, 'b2', b2, 0, 1)
  arguments.require_rate(who, 'weight_decay', weight_decay)
  return optax.lion(
    learning_rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask
  )


def slowmo(
  learning_rate: optax.ScalarOrSchedule = 1.0,
  momentum: jax.typing.ArrayLike = 0.5,
) -> optax.GradientTransformationExtraArgs:
  r"""The outer step of SlowMo.

  .. math::
    u_{t+1} = \beta u_t + g \\
    x_{t+1,0} = x_{t,0} - \alpha \gamma_t u_{t+1}

  With ``momentum=0`` and ``learning_rate=1`` it is plain local averaging.

  Args:
    learning_rate: :math:`\alpha`, or a schedule of it over rounds.
    momentum: :math:`\beta`.

  Returns:
    the transformation.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.slowmo(learning_rate=1.0, momentum=0.5)
    >>> anchor = jnp.array(1.0)
    >>> updates, _ = tx.update(anchor - 0.75, tx.init(anchor), anchor)
    >>> optax.apply_updates(anchor, updates)
    Array(0.75, dtype=float32)

  References:
    Wang et al., `SlowMo: Improving Communication-Efficient Distributed SGD with
    Slow Momentum <https://arxiv.org/abs/1910.00643>`_, 2019
  """
  arguments.require_rate('slowmo', 'learning_rate', learning_rate)
  arguments.require_within('slowmo', 'momentum', momentum, 0, 1)
  return optax.sgd(learning_rate, momentum=momentum)


def signed_slowmo(
  learning_rate: optax.ScalarOrSchedule = 1.0,
  momentum: jax.typing.ArrayLike = 0.95,
  weight_decay: jax.typing.ArrayLike = 0.0,
  mask: Mask = None,
) -> optax.GradientTransformationExtraArgs:
  r"""SlowMo whose step is the sign of its momentum.

  .. math::
    u_{t+1} = \beta u_t + g \\
    x_{t+1,0} = x_{t,0} - \alpha \gamma_t
      (\text{sign}(u_{t+1}) + \lambda x_{t,0})

  It equals :func:`sign_momentum` with ``b1 = b2 = momentum``.

  Args:
    learning_rate: :math:`\alpha`, or a schedule of it over rounds.
    momentum: :math:`\beta`.
    weight_decay: :math:`\lambda`.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.

  Returns:
    the transformation.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.signed_slowmo(learning_rate=0.1)
    >>> anchor = jnp.array(1.0)
    >>> updates, _ = tx.update(anchor - 0.75, tx.init(anchor), anchor)
    >>> optax.apply_updates(anchor, updates)
    Array(0.9, dtype=float32)

  References:
    Yu et al., `Distributed Sign Momentum with Local Steps for Training
    Transformers <https://arxiv.org/abs/2411.17866>`_, 2024
  """
  who = 'signed_slowmo'
  arguments.require_within(who, 'momentum', momentum, 0, 1)
  return optax.chain(
    optax.trace(decay=momentum),
    optax.scale_by_sign(),
    *decayed_step(who, learning_rate, weight_decay, mask),
  )


def lookahead(
  learning_rate: optax.ScalarOrSchedule = 0.5,
) -> optax.GradientTransformationExtraArgs:
  r"""The slow step of Lookahead: part of the way to where workers ended.

  .. math::
    x_{t+1,0} = x_{t,0} + \alpha (\bar x_{t,\tau} - x_{t,0})

  Args:
    learning_rate: :math:`\alpha`, or a schedule of it over rounds; 1 is plain
      local averaging.

  Returns:
    the transformation.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.lookahead(learning_rate=0.5)
    >>> anchor = jnp.array(1.0)
    >>> updates, _ = tx.update(anchor - 0.5, tx.init(anchor), anchor)
    >>> optax.apply_updates(anchor, updates)
    Array(0.75, dtype=float32)

  References:
    Zhang et al., `Lookahead Optimizer: k steps forward, 1 step back
    <https://arxiv.org/abs/1907.08610>`_, 2019
  """
  arguments.require_rate('lookahead', 'learning_rate', learning_rate)
  return optax.sgd(learning_rate)


def nesterov(
  learning_rate: optax.ScalarOrSchedule = 0.7,
  momentum: jax.typing.ArrayLike = 0.9,
) -> optax.GradientTransformationExtraArgs:
  r"""SGD with Nesterov momentum, the outer step of DiLoCo.

  For the displacement :math:`\Delta = x_{t,0} - \bar x_{t,\tau}`:

  .. math::
    b_{t+1} = \mu b_t + \Delta \\
    x_{t+1,0} = x_{t,0} - \alpha (\mu b_{t+1} + \Delta)

  Args:
    learning_rate: :math:`\alpha`, or a schedule of it over rounds.
    momentum: :math:`\mu`.

  Returns:
    the transformation.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.nesterov(learning_rate=0.5, momentum=0.5)
    >>> anchor = jnp.array(1.0)
    >>> updates, _ = tx.update(anchor - 0.0, tx.init(anchor), anchor)
    >>> optax.apply_updates(anchor, updates)
    Array(0.25, dtype=float32)

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023
  """
  arguments.require_rate('nesterov', 'learning_rate', learning_rate)
  arguments.require_within('nesterov', 'momentum', momentum, 0, 1)
  return optax.sgd(learning_rate, momentum=momentum, nesterov=True)


def decayed_step(
  who: str,
  learning_rate: optax.ScalarOrSchedule,
  weight_decay: jax.typing.ArrayLike,
  mask: Mask,
) -> tuple[optax.GradientTransformation, ...]:
  """The end of a chain: decoupled decay, then the learning rate; checked."""
  arguments.require_rate(who, 'learning_rate', learning_rate)
  arguments.require_rate(who, 'weight_decay', weight_decay)
  return (
    optax.add_decayed_weights(weight_decay, mask),
    optax.scale_by_learning_rate(learning_rate),
  )
