"""What a method must know of a run, and parts that methods share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from experiments import errors

AXIS = 'workers'


class Plan(NamedTuple):
  """What a method must know of the run.

  Attributes:
    num_steps: local steps of the whole run, where schedules end.
    sync_every: local steps in a round.
    decay_mask: which parameters decay, as in `optax.add_decayed_weights`.
    seed: of the coins for zeros and ties.
  """

  num_steps: int
  sync_every: int
  decay_mask: Callable[[optax.Params], Any]
  seed: int


def schedule(
  plan: Plan, learning_rate: float, warmup_steps: int, final_fraction: float
) -> optax.Schedule:
  """A linear warm-up from 0 to `learning_rate`, then a cosine to a fraction.

  Raises:
    UserError: if the warm-up takes the whole run.
  """
  if not 0 <= warmup_steps < plan.num_steps:
    raise errors.UserError(
      f'warmup_steps={warmup_steps} must be from 0 to below'
      f' num_steps={plan.num_steps}.'
    )
  return optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=learning_rate,
    warmup_steps=warmup_steps,
    decay_steps=plan.num_steps,
    end_value=final_fraction * learning_rate,
  )


def adamw(
  plan: Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  clip: float,
  warmup_steps: int,
  final_fraction: float,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """AdamW behind a clip, and its schedule, the unit of some outer steps."""
  rate = schedule(plan, learning_rate, warmup_steps, final_fraction)
  local = optax.chain(
    optax.clip_by_global_norm(clip),
    optax.adamw(rate, b1, b2, weight_decay=weight_decay, mask=plan.decay_mask),
  )
  return local, rate


def lion_step(
  plan: Plan,
  learning_rate: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> tuple[optax.GradientTransformation, ...]:
  """The end of Lion: decay and rate."""
  rate = schedule(plan, learning_rate, warmup_steps, final_fraction)
  return (
    optax.add_decayed_weights(weight_decay, plan.decay_mask),
    optax.scale_by_learning_rate(rate),
  )
