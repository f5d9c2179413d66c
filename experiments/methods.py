"""Methods by name: each is an optax transformation.

    what is sent     every step                       every round
    mean             adamw, lion                      local_adamw, slowmo,
                                                      signed_slowmo, lookahead,
                                                      diloco,
                                                      distributed_sign_momentum
    mean, then sign                                   ..._sharded
    rounded mean     adamw_quantized
    ..., then sign                                    ..._quantized
    mean of signs    distributed_lion_sign_mean,
                     distributed_signum_sign_mean
    vote             distributed_lion_majority_vote,  ..._one_bit,
                     distributed_signum               ..._one_bit_feedback
    randomized vote  distributed_lion_stochastic
    vote, and the    distributed_lion_averaged
      momenta a round
    ternary          terngrad
    largest          graddrop,
                     deep_gradient_compression

A constructor takes a `Plan`, what it must know of the run, and the fields of
`config.optimizer` as keyword arguments; `**inner` are those of AdamW, which
makes all local steps, `**outer` those and the ones of sign momentum, `**step`
those of the step that follows a vote. Whatever decays, does so where
`Plan.decay_mask` says.
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


def adamw_quantized(
  plan: Plan, bits: int, **inner: Any
) -> optax.GradientTransformation:
  """The same on gradients and a mean in 8, 4 or 2 bits."""
  local, _ = _adamw(plan, **inner)
  mean = sm.aggregate_by_quantized_mean(AXIS, bits, seed=plan.seed)
  return optax.chain(mean, local)


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


def _distributed_signum(
  aggregation: str,
  plan: Plan,
  learning_rate: float,
  b1: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Signum with a vote."""
  return sm.distributed_signum(
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    b1,
    weight_decay,
    AXIS,
    aggregation=aggregation,
    mask=plan.decay_mask,
    seed=plan.seed,
  )


def distributed_lion_stochastic(
  plan: Plan, bound: float, b1: float, b2: float, **step: Any
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo, in which a worker's sign is a random one.

  What is beyond the bound counts as the bound.
  """
  sign = sm.scale_by_randomized_sign(
    bound, plan.seed, axis_name=AXIS, out_of_range='clip'
  )
  return optax.chain(
    sm.lion_momentum(b1, b2),
    sign,
    sm.aggregate_by_majority_vote(AXIS, seed=plan.seed),
    *_step(plan, **step),
  )


def distributed_lion_averaged(
  plan: Plan, b1: float, b2: float, **step: Any
) -> optax.GradientTransformation:
  """Distributed Lion, MaVo, whose momenta are averaged once a round."""
  momentum = sm.lion_momentum(b1, b2)
  return optax.chain(
    sm.with_state_averaging(momentum, plan.sync_every, AXIS),
    sm.aggregate_by_majority_vote(AXIS, seed=plan.seed),
    *_step(plan, **step),
  )


# SGD on compressed gradients, every step.


def terngrad(
  plan: Plan,
  learning_rate: float,
  momentum: float,
  weight_decay: float,
  clip_factor: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """TernGrad."""
  return sm.terngrad(
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    momentum,
    weight_decay,
    AXIS,
    clip_factor,
    plan.decay_mask,
    plan.seed,
  )


def graddrop(
  plan: Plan,
  learning_rate: float,
  density: float,
  momentum: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> optax.GradientTransformation:
  """Gradient dropping."""
  return sm.graddrop(
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    density,
    momentum,
    weight_decay,
    AXIS,
    plan.decay_mask,
  )


def deep_gradient_compression(
  plan: Plan,
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
    schedule(plan, learning_rate, warmup_steps, final_fraction),
    density,
    momentum,
    weight_decay,
    AXIS,
    clip,
    density_warmup_steps,
    plan.decay_mask,
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
  error_feedback: bool,
  bits: int | None,
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
    error_feedback=error_feedback,
    bits=bits,
  )


def distributed_sign_momentum_quantized(
  plan: Plan, bits: int, **outer: Any
) -> optax.GradientTransformation:
  """Sharded, with displacements in 8, 4 or 2 bits: with 4, 4 + 1 a round."""
  return _distributed_sign_momentum('sharded_mean', False, bits, plan, **outer)


METHODS: dict[str, Callable[..., optax.GradientTransformation]] = {
  'adamw': adamw,
  'adamw_quantized': adamw_quantized,
  'lion': lion,
  'distributed_lion_majority_vote': functools.partial(
    _distributed_lion, 'majority_vote'
  ),
  'distributed_lion_sign_mean': functools.partial(
    _distributed_lion, 'sign_mean'
  ),
  'distributed_lion_stochastic': distributed_lion_stochastic,
  'distributed_lion_averaged': distributed_lion_averaged,
  'distributed_signum': functools.partial(_distributed_signum, 'majority_vote'),
  'distributed_signum_sign_mean': functools.partial(
    _distributed_signum, 'sign_mean'
  ),
  'terngrad': terngrad,
  'graddrop': graddrop,
  'deep_gradient_compression': deep_gradient_compression,
  'local_adamw': local_adamw,
  'slowmo': slowmo,
  'signed_slowmo': signed_slowmo,
  'lookahead': lookahead,
  'diloco': diloco,
  'distributed_sign_momentum': functools.partial(
    _distributed_sign_momentum, 'mean', False, None
  ),
  'distributed_sign_momentum_sharded': functools.partial(
    _distributed_sign_momentum, 'sharded_mean', False, None
  ),
  'distributed_sign_momentum_quantized': distributed_sign_momentum_quantized,
  'distributed_sign_momentum_one_bit': functools.partial(
    _distributed_sign_momentum, 'majority_vote', False, None
  ),
  'distributed_sign_momentum_one_bit_feedback': functools.partial(
    _distributed_sign_momentum, 'majority_vote', True, None
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


def _step(
  plan: Plan,
  learning_rate: float,
  weight_decay: float,
  warmup_steps: int,
  final_fraction: float,
) -> tuple[optax.GradientTransformation, ...]:
  """Returns the end of Lion."""
  rate = schedule(plan, learning_rate, warmup_steps, final_fraction)
  return (
    optax.add_decayed_weights(weight_decay, plan.decay_mask),
    optax.scale_by_learning_rate(rate),
  )


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
  """Returns the keyword arguments of a constructor, the passed on included."""
  sign_momentum = METHODS['distributed_sign_momentum']
  passed_on = {'inner': _adamw, 'outer': sign_momentum, 'step': _step}
  names = []
  for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
      names += _fields(passed_on[parameter.name])
    else:
      names.append(parameter.name)
  return names
