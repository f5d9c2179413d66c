"""Ranges of the numbers in a config: all that do not depend on its task."""

import math
from typing import Any, NamedTuple

import ml_collections

from experiments import errors


class Range(NamedTuple):
  """An interval of numbers.

  Attributes:
    low: where it begins.
    high: where it ends, or the field that says so.
    ends: whether they belong to it, as mathematics writes it.
  """

  low: float
  high: float | str = math.inf
  ends: str = '[)'


_COUNT = Range(1)
_POSITIVE = Range(0, ends='()')
_DECAY = Range(0)
_MOMENTUM = Range(0, 1)
_SHARE = Range(0, 1, '(]')

RANGES = {
  'workers': _COUNT,
  'sync_every': _COUNT,
  'batch_size': _COUNT,
  'micro_batches': _COUNT,
  'eval_limit': _COUNT,
  'seed': Range(0, 2**32),  # of larger ones random keys are not told apart
  'presence': _SHARE,
  'adversaries': Range(0, 'workers', '[]'),
  'optimizer.learning_rate': _POSITIVE,
  'optimizer.final_fraction': Range(0, 1, '[]'),
  'optimizer.b1': _MOMENTUM,
  'optimizer.b2': _MOMENTUM,
  'optimizer.momentum': _MOMENTUM,
  'optimizer.weight_decay': _DECAY,
  'optimizer.clip': Range(0, ends='(]'),  # inf: not at all
  'optimizer.clip_factor': _POSITIVE,
  'optimizer.bound': _POSITIVE,
  'optimizer.density': _SHARE,
  'optimizer.density_warmup_steps': Range(0),
  'optimizer.outer_learning_rate': _POSITIVE,
  'optimizer.outer_momentum': _MOMENTUM,
  'optimizer.outer_b1': _MOMENTUM,
  'optimizer.outer_b2': _MOMENTUM,
  'optimizer.outer_weight_decay': _DECAY,
}


def check(config: ml_collections.ConfigDict) -> None:
  """Sees that the numbers of a config are in their ranges, if it has them.

  Raises:
    UserError: for the first one that is not.
  """
  for field, allowed in RANGES.items():
    group, _, name = field.rpartition('.')
    fields = config.get(group, {}) if group else config
    if name in fields:
      _require(field, fields[name], allowed, config)


def _require(
  field: str,
  value: Any,
  allowed: Range,
  config: ml_collections.ConfigDict,
) -> None:
  low, high, ends = allowed
  words = [f'{"at least" if ends[0] == "[" else "above"} {low}']
  if isinstance(high, str):
    words.append(f'at most {high}={config[high]}')
    high = config[high]
  elif high < math.inf:
    words.append(f'{"at most" if ends[1] == "]" else "below"} {high}')
  inside = (
    isinstance(value, int | float)
    and (low < value or (low == value and ends[0] == '['))
    and (value < high or (value == high and ends[1] == ']'))
  )
  if not inside:
    raise errors.UserError(
      f'The config field {field}={value} must be {" and ".join(words)}.'
    )
