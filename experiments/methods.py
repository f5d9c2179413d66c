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

A constructor takes a `plans.Plan`, what it must know of the run, and the fields
of `config.optimizer` as keyword arguments. Whatever decays, does so where
`Plan.decay_mask` says.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
from typing import Any

import optax

from experiments import errors, every_round, every_step, plans

METHODS: dict[str, Callable[..., optax.GradientTransformation]] = {
  'adamw': every_step.adamw,
  'adamw_quantized': every_step.adamw_quantized,
  'lion': every_step.lion,
  'distributed_lion_majority_vote': functools.partial(
    every_step.distributed_lion, 'majority_vote'
  ),
  'distributed_lion_sign_mean': functools.partial(
    every_step.distributed_lion, 'sign_mean'
  ),
  'distributed_lion_stochastic': every_step.distributed_lion_stochastic,
  'distributed_lion_averaged': every_step.distributed_lion_averaged,
  'distributed_signum': functools.partial(
    every_step.distributed_signum, 'majority_vote'
  ),
  'distributed_signum_sign_mean': functools.partial(
    every_step.distributed_signum, 'sign_mean'
  ),
  'terngrad': every_step.terngrad,
  'graddrop': every_step.graddrop,
  'deep_gradient_compression': every_step.deep_gradient_compression,
  'local_adamw': every_round.local_adamw,
  'slowmo': every_round.slowmo,
  'signed_slowmo': every_round.signed_slowmo,
  'lookahead': every_round.lookahead,
  'diloco': every_round.diloco,
  'distributed_sign_momentum': functools.partial(
    every_round.distributed_sign_momentum, 'mean', False, None
  ),
  'distributed_sign_momentum_sharded': functools.partial(
    every_round.distributed_sign_momentum, 'sharded_mean', False, None
  ),
  'distributed_sign_momentum_quantized': (
    every_round.distributed_sign_momentum_quantized
  ),
  'distributed_sign_momentum_one_bit': functools.partial(
    every_round.distributed_sign_momentum, 'majority_vote', False, None
  ),
  'distributed_sign_momentum_one_bit_feedback': functools.partial(
    every_round.distributed_sign_momentum, 'majority_vote', True, None
  ),
}


def build(
  name: str, fields: Mapping[str, Any], plan: plans.Plan
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


def _fields(constructor: Callable) -> list[str]:
  """Returns the keyword arguments of a constructor, the passed on included."""
  sign_momentum = METHODS['distributed_sign_momentum']
  passed_on = {
    'inner': plans.adamw,
    'outer': sign_momentum,
    'step': plans.lion_step,
  }
  names = []
  for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
      names += _fields(passed_on[parameter.name])
    else:
      names.append(parameter.name)
  return names
