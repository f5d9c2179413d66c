"""The published methods: each is a chain of parts, which shows what is sent.

Inside ``vmap``, ``pmap`` or ``shard_map`` over ``axis_name``, ``update`` takes
the gradient of one worker and returns updates for its parameters.
"""

import jax
import optax

from signmomentum import (
  aggregate,
  aggregator,
  arguments,
  collectives,
  feedback,
  momentum,
  outer,
  quantized,
  sharding,
  signs,
  votes,
)
from signmomentum.local_steps import local_steps

_VOTES = {
  'majority_vote': votes.aggregate_by_majority_vote,
  'sign_mean': votes.aggregate_by_sign_mean,
}
_AGGREGATIONS = ('majority_vote', 'mean', 'sharded_mean')


def distributed_lion(
  learning_rate: optax.ScalarOrSchedule,
  b1: jax.typing.ArrayLike = 0.9,
  b2: jax.typing.ArrayLike = 0.99,
  weight_decay: jax.typing.ArrayLike = 1e-3,
  axis_name: collectives.AxisName = 'workers',
  aggregation: str = 'majority_vote',
  mask: outer.Mask = None,
  mu_dtype: jax.typing.DTypeLike | None = None,
  zeros: str = 'block',
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Distributed Lion: every worker keeps its momentum and sends one bit.

  .. math::
    \delta^i_t = \text{sign}(\beta_1 m^i_t + (1 - \beta_1) g^i_t) \\
    m^i_{t+1} = \beta_2 m^i_t + (1 - \beta_2) g^i_t \\
    x_{t+1} = x_t - \epsilon (\Delta_t + \lambda x_t)

  where :math:`\Delta_t` is :math:`\text{sign}(\sum_i \delta^i_t)` by majority
  vote (MaVo) or :math:`\frac{1}{n} \sum_i \delta^i_t` (Avg). Parameters stay
  the same on all workers; the momentum is each worker's own. On one worker it
  is ``optax.lion``, up to the sign of zeros. The paper leaves zeros and ties on
  the wire open, see :func:`aggregate_by_majority_vote`.

  Args:
    learning_rate: :math:`\epsilon`, or its schedule; a third to a tenth of
      AdamW's.
    b1: :math:`\beta_1`, weight of the momentum in the direction.
    b2: :math:`\beta_2`, decay rate of the momentum.
    weight_decay: :math:`\lambda`, on the shared parameters, outside the vote;
      three to ten times AdamW's.
    axis_name: the axis of the workers.
    aggregation: ``'majority_vote'`` or ``'sign_mean'``.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.
    mu_dtype: dtype of the momentum; None: that of the parameters.
    zeros: what a zero sends, see :func:`aggregate_by_majority_vote`.
    seed: of the coins.

  Returns:
    the transformation. Its ``update`` takes ``present``; a step without any
    worker present changes nothing.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``b1`` or ``b2``
      is not from 0 to 1, or ``aggregation``, ``zeros``, ``mu_dtype`` or
      ``seed`` is not allowed.
    TypeError: one of them is no number.

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.distributed_lion(learning_rate=0.1, weight_decay=0.0)
    >>> def step(params, gradient):
    ...   updates, _ = tx.update(gradient, tx.init(params), params)
    ...   return optax.apply_updates(params, updates)
    >>> gradients = jnp.array([1.0, 1.0, -10.0])
    >>> jax.vmap(step, (None, 0), None, axis_name='workers')(1.0, gradients)
    Array(0.9, dtype=float32)

  References:
    Liu et al., `Communication Efficient Distributed Training with Distributed
    Lion <https://arxiv.org/abs/2404.00438>`_, 2024
  """
  who = 'distributed_lion'
  arguments.require_one_of(who, 'aggregation', aggregation, _VOTES)
  arguments.require_within(who, 'b1', b1, 0, 1)
  arguments.require_within(who, 'b2', b2, 0, 1)
  vote = _VOTES[aggregation]
  return aggregator.hold_if_nobody_present(
    optax.chain(
      momentum.lion_momentum(b1, b2, mu_dtype),
      vote(axis_name, zeros, seed),
      *outer.decayed_step(who, learning_rate, weight_decay, mask),
    ),
    axis_name,
  )


def distributed_signum(
  learning_rate: optax.ScalarOrSchedule,
  beta: jax.typing.ArrayLike = 0.99,
  weight_decay: jax.typing.ArrayLike = 0.0,
  axis_name: collectives.AxisName = 'workers',
  aggregation: str = 'majority_vote',
  mask: outer.Mask = None,
  mu_dtype: jax.typing.DTypeLike | None = None,
  zeros: str = 'block',
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Distributed Signum: workers send the sign of their momentum.

  .. math::
    m^i_{t+1} = \beta m^i_t + (1 - \beta) g^i_t \\
    x_{t+1} = x_t - \epsilon (\Delta_t + \lambda x_t)

  where :math:`\Delta_t` is the majority vote, or the mean, of
  :math:`\text{sign}(m^i_{t+1})`.

  Args:
    learning_rate: :math:`\epsilon`, or its schedule.
    beta: :math:`\beta`, decay rate of the momentum, as in ``optax.signum``.
    weight_decay: :math:`\lambda`, on the shared parameters, outside the vote.
    axis_name: the axis of the workers.
    aggregation: ``'majority_vote'`` or ``'sign_mean'``.
    mask: which leaves decay, as in ``optax.add_decayed_weights``.
    mu_dtype: dtype of the momentum; None: that of the parameters.
    zeros: what a zero sends, see :func:`aggregate_by_majority_vote`.
    seed: of the coins.

  Returns:
    the transformation. Its ``update`` takes ``present``; a step without any
    worker present changes nothing.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``beta`` is not
      from 0 to 1, or ``aggregation``, ``zeros``, ``mu_dtype`` or ``seed`` is
      not allowed.
    TypeError: one of them is no number.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.distributed_signum(learning_rate=0.1)
    >>> def update(gradient):
    ...   return tx.update(gradient, tx.init(gradient), gradient)[0]
    >>> gradients = jnp.array([1.0, 1.0, -10.0])
    >>> jax.vmap(update, out_axes=None, axis_name='workers')(gradients)
    Array(-0.1, dtype=float32)

  References:
    Bernstein et al., `signSGD with Majority Vote is Communication Efficient And
    Fault Tolerant <https://arxiv.org/abs/1810.05291>`_, 2018
  """
  who = 'distributed_signum'
  arguments.require_one_of(who, 'aggregation', aggregation, _VOTES)
  arguments.require_within(who, 'beta', beta, 0, 1)
  vote = _VOTES[aggregation]
  return aggregator.hold_if_nobody_present(
    optax.chain(
      momentum.lion_momentum(beta, beta, mu_dtype),
      vote(axis_name, zeros, seed),
      *outer.decayed_step(who, learning_rate, weight_decay, mask),
    ),
    axis_name,
  )


def distributed_sign_momentum(
  inner: optax.GradientTransformation,
  learning_rate: optax.ScalarOrSchedule,
  sync_every: int,
  axis_name: collectives.AxisName = 'workers',
  outer_learning_rate: optax.ScalarOrSchedule = 1.0,
  b1: jax.typing.ArrayLike = 0.95,
  b2: jax.typing.ArrayLike = 0.98,
  weight_decay: jax.typing.ArrayLike = 0.1,
  aggregation: str = 'mean',
  mask: outer.Mask = None,
  zeros: str = 'block',
  seed: int = 0,
  error_feedback: bool = False,
  bits: int | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Distributed Sign Momentum: local steps joined by a global sign step.

  Every worker makes :math:`\tau` steps of ``inner`` from :math:`x_{t,0}`. With
  :math:`g_t = \frac{1}{n} \sum_i (x_{t,0} - x^i_{t,\tau}) / \gamma_t`

  .. math::
    x_{t+1,0} = x_{t,0} - \eta \gamma_t \left( \text{sign}(\beta_1 m_t +
      (1 - \beta_1) g_t) + \lambda x_{t,0} \right) \\
    m_{t+1} = \beta_2 m_t + (1 - \beta_2) g_t

  With ``aggregation='sharded_mean'`` the same numbers, bit for bit, take 33
  instead of 64 bits for each parameter and round, and each worker holds
  :math:`1/n` of the outer momentum (see :func:`shard_over_workers`). With
  ``aggregation='majority_vote'`` the outer momentum is each worker's own and
  the signs are voted on: two bits for each parameter and round. With ``bits`` a
  mean is one of rounded numbers, right in expectation:
  ``aggregation='sharded_mean', bits=4`` takes five bits.

  Args:
    inner: any optimizer, such as ``optax.adamw(learning_rate)``.
    learning_rate: the inner optimizer's rate :math:`\gamma`, or its schedule;
      the outer step is in units of it.
    sync_every: local steps in a round, :math:`\tau`.
    axis_name: the axis of the workers.
    outer_learning_rate: :math:`\eta`, or its schedule over rounds.
    b1: :math:`\beta_1`, weight of the momentum in the direction.
    b2: :math:`\beta_2`, decay rate of the momentum.
    weight_decay: :math:`\lambda`, on the shared point :math:`x_{t,0}`.
    aggregation: ``'mean'`` (the paper), ``'sharded_mean'`` or
      ``'majority_vote'`` (one bit).
    mask: which leaves the outer step decays; None: all, as the authors' code.
    zeros: with the vote, what a zero sends, see
      :func:`aggregate_by_majority_vote`.
    seed: with the vote or with ``bits``, of the coins.
    error_feedback: with the vote, what it loses is added in the next round, see
      :func:`with_error_feedback`.
    bits: with a mean, 8, 4 or 2: what an element takes on the wire, both ways
      (see :func:`aggregate_by_quantized_mean`) or, of ``'sharded_mean'``, on
      its way to its owner; None: all it has.

  Returns:
    the transformation, see :func:`local_steps`.

  Raises:
    ValueError: a rate or the decay is below 0 or not finite, ``b1`` or ``b2``
      is not from 0 to 1, ``aggregation``, ``sync_every``, ``zeros``, ``seed``
      or ``bits`` is not allowed, ``error_feedback`` is without a vote, or
      ``bits`` with one.
    TypeError: one of them is no number, or ``error_feedback`` no bool.

  Example:
    >>> import optax
    >>> import signmomentum as sm
    >>> schedule = optax.cosine_decay_schedule(1e-3, decay_steps=1000)
    >>> tx = sm.distributed_sign_momentum(
    ...   optax.adamw(schedule), learning_rate=schedule, sync_every=12)

  References:
    Yu et al., `Distributed Sign Momentum with Local Steps for Training
    Transformers <https://arxiv.org/abs/2411.17866>`_, 2024
  """
  who = 'distributed_sign_momentum'
  arguments.require_rate(who, 'learning_rate', learning_rate)
  arguments.require_rate(who, 'outer_learning_rate', outer_learning_rate)
  arguments.require_within(who, 'b1', b1, 0, 1)
  arguments.require_within(who, 'b2', b2, 0, 1)
  arguments.require_one_of(who, 'aggregation', aggregation, _AGGREGATIONS)
  arguments.require_one_of(who, 'zeros', zeros, signs.ZEROS)
  arguments.require_seed(who, seed)
  arguments.require_bool(who, 'error_feedback', error_feedback)
  if error_feedback and aggregation != 'majority_vote':
    raise ValueError(
      f"{who}: error_feedback needs aggregation='majority_vote': a mean loses"
      ' nothing on the wire that could be fed back.'
    )
  if bits is not None and aggregation == 'majority_vote':
    raise ValueError(
      f"{who}: bits={bits} needs aggregation='mean' or 'sharded_mean': a vote"
      ' takes one bit.'
    )
  decayed = outer.decayed_step(who, outer_learning_rate, weight_decay, mask)
  if aggregation == 'mean':
    step = optax.chain(
      aggregate.aggregate_by_mean(axis_name)
      if bits is None
      else quantized.aggregate_by_quantized_mean(axis_name, bits, seed=seed),
      outer.sign_momentum(outer_learning_rate, b1, b2, weight_decay, mask),
    )
  elif aggregation == 'sharded_mean':
    sign = optax.scale_by_lion(b1, b2)
    sharded = sharding.shard_over_workers(sign, axis_name, bits=bits, seed=seed)
    step = optax.chain(sharded, *decayed)
  else:
    vote = votes.aggregate_by_majority_vote(axis_name, zeros, seed)
    step = optax.chain(
      momentum.lion_momentum(b1, b2),
      feedback.with_error_feedback(vote) if error_feedback else vote,
      *decayed,
    )
  return local_steps(inner, step, sync_every, axis_name, learning_rate)


def diloco(
  inner: optax.GradientTransformation,
  sync_every: int,
  axis_name: collectives.AxisName = 'workers',
  outer_learning_rate: optax.ScalarOrSchedule = 0.7,
  momentum: jax.typing.ArrayLike = 0.9,
) -> optax.GradientTransformationExtraArgs:
  r"""DiLoCo: local steps joined by SGD with Nesterov momentum.

  With :math:`\Delta_t = \frac{1}{n} \sum_i (x_{t,0} - x^i_{t,\tau})`, without a
  division by the local rate:

  .. math::
    b_{t+1} = \mu b_t + \Delta_t \\
    x_{t+1,0} = x_{t,0} - \alpha (\mu b_{t+1} + \Delta_t)

  Args:
    inner: any optimizer; the paper uses AdamW.
    sync_every: local steps in a round; the paper uses 500.
    axis_name: the axis of the workers.
    outer_learning_rate: :math:`\alpha`, or its schedule over rounds.
    momentum: :math:`\mu`.

  Returns:
    the transformation, see :func:`local_steps`.

  Raises:
    ValueError: ``sync_every`` is below 1, ``outer_learning_rate`` is below 0 or
      not finite, or ``momentum`` not from 0 to 1.
    TypeError: one of them is no number, or ``sync_every`` not an int.

  Example:
    >>> import optax
    >>> import signmomentum as sm
    >>> tx = sm.diloco(optax.adamw(4e-4), sync_every=500)

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023
  """
  who = 'diloco'
  arguments.require_rate(who, 'outer_learning_rate', outer_learning_rate)
  arguments.require_within(who, 'momentum', momentum, 0, 1)
  return local_steps(
    inner,
    optax.chain(
      aggregate.aggregate_by_mean(axis_name),
      outer.nesterov(outer_learning_rate, momentum),
    ),
    sync_every,
    axis_name,
  )
