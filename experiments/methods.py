"""Methods by name: each is an optax transformation.

    what is sent   every step                       every round
    mean           adamw, lion                      local_adamw, slowmo,
                                                    signed_slowmo, lookahead,
                                                    diloco,
                                                    distributed_sign_momentum
    mean of signs  distributed_lion_sign_mean
    vote           distributed_lion_majority_vote,  distributed_sign_momentum
                   distributed_signum                 _one_bit

A constructor takes a `Plan`, what it must know of the run, and the fields of
`config.optimizer` as keyword arguments; `**inner` are those of AdamW, which
makes all local steps. Whatever decays, does so where `Plan.decay_mask` says.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
from typing import Any, NamedTuple

import optax

from experiments import errors
import signmomentum as sm

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


def build(
  name: str, fields: Mapping[str, Any], plan: Plan
) -> optax.GradientTransformationExtraArgs:
  """Returns the transformation of a method.

  Args:
    name: a key of `METHODS`.
    fields: `config.optimizer`, all that the method has to be told.
    plan: what it must know of the run.

  Raises:
    UserError: for an unknown method, or fields that are not just its own.
  """
  constructor = errors.lookup(METHODS, name, 'method')
  wanted = _fields(constructor)
  for field in fields:
    if field not in wanted:
      raise errors.unknown(f'field of the optimizer {name}', field, wanted)
  if missing := [field for field in wanted if field not in fields]:
    raise errors.UserError(
      f'The optimizer {name} lacks the fields {", ".join(missing)}.'
    )
  return optax.with_extra_args_support(constructor(plan, **fields))


def names(wanted: Sequence[str]) -> list[str]:
  """Returns the names of methods, all of them for `['all']`.

  Raises:
    UserError: for an unknown one; the message names the nearest.
  """
  if list(wanted) == ['all']:
    return list(METHODS)
  for name in wanted:
    errors.lookup(METHODS, name, 'method')
  return list(wanted)


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


# The mean of gradients, every step.


def adamw(plan: Plan, **inner: Any) -> optax.GradientTransformation:
  """AdamW on the mean gradient, whose norm is clipped."""
  local, _ = _adamw(plan, **inner)
  return optax.chain(sm.aggregate_by_mean(AXIS), local)


def lion(
  plan: Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Lion on the mean gradient."""
  rate = schedule(plan, learning_rate, warmup_steps, final_fraction)
  return optax.chain(
    sm.aggregate_by_mean(AXIS),
    optax.lion(rate, b1, b2, weight_decay=weight_decay, mask=plan.decay_mask),
  )


# Signs, every step.


def _distributed_lion(
  aggregation: str,
  plan: Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo or Avg."""
  return sm.distributed_lion(
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    b1,
    b2,
    weight_decay,
    AXIS,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


def distributed_signum(
  plan: Plan,
  learning_rate: float,
  b1: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Signum with a majority vote."""
  return sm.distributed_signum(
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    b1,
    weight_decay,
    AXIS,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


# Local steps of AdamW, and a word with the others every round.


def local_adamw(plan: Plan, **inner: Any) -> optax.GradientTransformation:
  """Plain averaging of the workers' parameters."""
  local, _ = _adamw(plan, **inner)
  return _averaged(plan, local, sm.lookahead(1.0))


def slowmo(
  plan: Plan, outer_learning_rate: float, outer_momentum: float, **inner: Any
) -> optax.GradientTransformation:
  """SlowMo."""
  local, rate = _adamw(plan, **inner)
  outer = sm.slowmo(outer_learning_rate, outer_momentum)
  return _averaged(plan, local, outer, rate)


def signed_slowmo(
  plan: Plan, outer_learning_rate: float, outer_momentum: float, **inner: Any
) -> optax.GradientTransformation:
  """SlowMo with the sign of its momentum as its step."""
  local, rate = _adamw(plan, **inner)
  outer = sm.signed_slowmo(outer_learning_rate, outer_momentum)
  return _averaged(plan, local, outer, rate)


def lookahead(
  plan: Plan, outer_learning_rate: float, **inner: Any
) -> optax.GradientTransformation:
  """Lookahead: part of the way to the workers' mean."""
  local, _ = _adamw(plan, **inner)
  return _averaged(plan, local, sm.lookahead(outer_learning_rate))


def diloco(
  plan: Plan, outer_learning_rate: float, outer_momentum: float, **inner: Any
) -> optax.GradientTransformation:
  """DiLoCo: Nesterov momentum outside."""
  local, _ = _adamw(plan, **inner)
  return sm.diloco(
    local, plan.sync_every, AXIS, outer_learning_rate, outer_momentum
  )


def _distributed_sign_momentum(
  aggregation: str,
  plan: Plan,
  outer_learning_rate: float,
  outer_b1: float,
  outer_b2: float,
  outer_weight_decay: float,
  **inner: Any,
) -> optax.GradientTransformation:
  """Sign momentum outside; with a vote, each worker keeps its own."""
  local, rate = _adamw(plan, **inner)
  return sm.distributed_sign_momentum(
    local,
    rate,
    plan.sync_every,
    AXIS,
    outer_learning_rate,
    outer_b1,
    outer_b2,
    outer_weight_decay,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


METHODS: dict[str, Callable[..., optax.GradientTransformation]] = {
  'adamw': adamw,
  'lion': lion,
  'distributed_lion_majority_vote': functools.partial(
    _distributed_lion, 'majority_vote'
  ),
  'distributed_lion_sign_mean': functools.partial(
    _distributed_lion, 'sign_mean'
  ),
  'distributed_signum': distributed_signum,
  'local_adamw': local_adamw,
  'slowmo': slowmo,
  'signed_slowmo': signed_slowmo,
  'lookahead': lookahead,
  'diloco': diloco,
  'distributed_sign_momentum': functools.partial(
    _distributed_sign_momentum, 'mean'
  ),
  'distributed_sign_momentum_one_bit': functools.partial(
    _distributed_sign_momentum, 'majority_vote'
  ),
}


def _adamw(
  plan: Plan,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float,
  clip: float,
  warmup_steps: int,
  final_fraction: float,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """Returns AdamW and its schedule, the unit of some outer steps."""
  rate = schedule(plan, learning_rate, warmup_steps, final_fraction)
  local = optax.chain(
    optax.clip_by_global_norm(clip),
    optax.adamw(rate, b1, b2, weight_decay=weight_decay, mask=plan.decay_mask),
  )
  return local, rate


def _averaged(
  plan: Plan,
  local: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  rate: optax.Schedule | None = None,
) -> optax.GradientTransformation:
  mean = sm.aggregate_by_mean(AXIS)
  return sm.local_steps(
    local, optax.chain(mean, outer), plan.sync_every, AXIS, rate
  )


def _fields(constructor: Callable) -> list[str]:
  """Returns the keyword arguments of a constructor, those of AdamW included."""
  names = []
  for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
      names += list(inspect.signature(_adamw).parameters)[1:]
    else:
      names.append(parameter.name)
  return names
