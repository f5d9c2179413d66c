"""Methods whose workers talk at every step.

`**inner` are the fields of AdamW (`plans.adamw`), `**step` those of the step
that follows a vote (`plans.lion_step`).
"""

from typing import Any

import optax

from experiments import plans
import signmomentum as sm

# The mean of gradients, every step.


def adamw(plan: plans.Plan, **inner: Any) -> optax.GradientTransformation:
  """AdamW on the mean gradient, whose norm is clipped."""
  local, _ = plans.adamw(plan, **inner)
  return optax.chain(sm.aggregate_by_mean(plans.AXIS), local)


def adamw_quantized(
  plan: plans.Plan, bits: int, **inner: Any
) -> optax.GradientTransformation:
  """The same on gradients and a mean in 8, 4 or 2 bits."""
  local, _ = plans.adamw(plan, **inner)
  mean = sm.aggregate_by_quantized_mean(plans.AXIS, bits, seed=plan.seed)
  return optax.chain(mean, local)


def lion(
  plan: plans.Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Lion on the mean gradient."""
  rate = plans.schedule(plan, learning_rate, warmup_steps, final_fraction)
  return optax.chain(
    sm.aggregate_by_mean(plans.AXIS),
    optax.lion(rate, b1, b2, weight_decay=weight_decay, mask=plan.decay_mask),
  )


# Signs, every step.


def distributed_lion(
  aggregation: str,
  plan: plans.Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo or Avg."""
  return sm.distributed_lion(
    plans.schedule(plan, learning_rate, warmup_steps, final_fraction),
    b1,
    b2,
    weight_decay,
    plans.AXIS,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


def distributed_signum(
  aggregation: str,
  plan: plans.Plan,
  learning_rate: float,
  b1: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Signum with a vote."""
  return sm.distributed_signum(
    plans.schedule(plan, learning_rate, warmup_steps, final_fraction),
    b1,
    weight_decay,
    plans.AXIS,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


def distributed_lion_stochastic(
  plan: plans.Plan, bound: float, b1: float, b2: float, **step: Any
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo, in which a worker's sign is a random one.

  What is beyond the bound counts as the bound.
  """
  sign = sm.scale_by_randomized_sign(
    bound, plan.seed, axis_name=plans.AXIS, out_of_range='clip'
  )
  return optax.chain(
    sm.lion_momentum(b1, b2),
    sign,
    sm.aggregate_by_majority_vote(plans.AXIS, seed=plan.seed),
    *plans.lion_step(plan, **step),
  )


def distributed_lion_averaged(
  plan: plans.Plan, b1: float, b2: float, **step: Any
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo, whose momenta are averaged once a round."""
  momentum = sm.lion_momentum(b1, b2)
  return optax.chain(
    sm.with_state_averaging(momentum, plan.sync_every, plans.AXIS),
    sm.aggregate_by_majority_vote(plans.AXIS, seed=plan.seed),
    *plans.lion_step(plan, **step),
  )


# SGD on compressed gradients, every step.


def terngrad(
  plan: plans.Plan,
  learning_rate: float,
  momentum: float,
  weight_decay: float,
  clip_factor: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """TernGrad."""
  return sm.terngrad(
    plans.schedule(plan, learning_rate, warmup_steps, final_fraction),
    momentum,
    weight_decay,
    plans.AXIS,
    clip_factor,
    plan.decay_mask,
    plan.seed,
  )


def graddrop(
  plan: plans.Plan,
  learning_rate: float,
  density: float,
  momentum: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Gradient dropping."""
  return sm.graddrop(
    plans.schedule(plan, learning_rate, warmup_steps, final_fraction),
    density,
    momentum,
    weight_decay,
    plans.AXIS,
    plan.decay_mask,
  )


def deep_gradient_compression(
  plan: plans.Plan,
  learning_rate: float,
  density: float,
  density_warmup_steps: int,
  momentum: float,
  clip: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Deep Gradient Compression."""
  return sm.deep_gradient_compression(
    plans.schedule(plan, learning_rate, warmup_steps, final_fraction),
    density,
    momentum,
    weight_decay,
    plans.AXIS,
    clip,
    density_warmup_steps,
    plan.decay_mask,
  )
