"""Methods of local steps, by AdamW, after which workers talk once a round.

`**inner` are the fields of AdamW (`plans.adamw`), `**outer` those and the ones
of sign momentum (`distributed_sign_momentum`).
"""

from typing import Any

import optax

from experiments import plans
import signmomentum as sm


def local_adamw(plan: plans.Plan, **inner: Any) -> optax.GradientTransformation:
  """Plain averaging of the workers' parameters."""
  local, _ = plans.adamw(plan, **inner)
  return _averaged(plan, local, sm.lookahead(1.0))


def slowmo(
  plan: plans.Plan,
  outer_learning_rate: float,
  outer_momentum: float,
  **inner: Any,
) -> optax.GradientTransformation:
  """SlowMo."""
  local, rate = plans.adamw(plan, **inner)
  outer = sm.slowmo(outer_learning_rate, outer_momentum)
  return _averaged(plan, local, outer, rate)


def signed_slowmo(
  plan: plans.Plan,
  outer_learning_rate: float,
  outer_momentum: float,
  **inner: Any,
) -> optax.GradientTransformation:
  """SlowMo with the sign of its momentum as its step."""
  local, rate = plans.adamw(plan, **inner)
  outer = sm.signed_slowmo(outer_learning_rate, outer_momentum)
  return _averaged(plan, local, outer, rate)


def lookahead(
  plan: plans.Plan, outer_learning_rate: float, **inner: Any
) -> optax.GradientTransformation:
  """Lookahead: part of the way to the workers' mean."""
  local, _ = plans.adamw(plan, **inner)
  return _averaged(plan, local, sm.lookahead(outer_learning_rate))


def diloco(
  plan: plans.Plan,
  outer_learning_rate: float,
  outer_momentum: float,
  **inner: Any,
) -> optax.GradientTransformation:
  """DiLoCo: Nesterov momentum outside."""
  local, _ = plans.adamw(plan, **inner)
  return sm.diloco(
    local, plan.sync_every, plans.AXIS, outer_learning_rate, outer_momentum
  )


def distributed_sign_momentum(
  aggregation: str,
  error_feedback: bool,
  bits: int | None,
  plan: plans.Plan,
  outer_learning_rate: float,
  outer_b1: float,
  outer_b2: float,
  outer_weight_decay: float,
  **inner: Any,
) -> optax.GradientTransformation:
  """Sign momentum outside; with a vote, each worker keeps its own."""
  local, rate = plans.adamw(plan, **inner)
  return sm.distributed_sign_momentum(
    local,
    rate,
    plan.sync_every,
    plans.AXIS,
    outer_learning_rate,
    outer_b1,
    outer_b2,
    outer_weight_decay,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
    error_feedback=error_feedback,
    bits=bits,
  )


def distributed_sign_momentum_quantized(
  plan: plans.Plan, bits: int, **outer: Any
) -> optax.GradientTransformation:
  """Sharded, with displacements in 8, 4 or 2 bits: with 4, 4 + 1 a round."""
  return distributed_sign_momentum('sharded_mean', False, bits, plan, **outer)


def _averaged(
  plan: plans.Plan,
  local: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  rate: optax.Schedule | None = None,
) -> optax.GradientTransformation:
  mean = sm.aggregate_by_mean(plans.AXIS)
  return sm.local_steps(
    local, optax.chain(mean, outer), plan.sync_every, plans.AXIS, rate
  )
