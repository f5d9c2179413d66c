"""Numbers of a config that make no sense are refused, by name and range."""

import math

import pytest

from experiments import assembly, config, errors, methods, ranges
from tests import tiny

NAN = float('nan')


@pytest.mark.parametrize(
  'method, field, value, allowed',
  [
    ('adamw', 'workers', 0, 'at least 1'),
    ('adamw', 'batch_size', 0, 'at least 1'),
    ('adamw', 'micro_batches', -2, 'at least 1'),
    ('adamw', 'sync_every', 0, 'at least 1'),
    ('adamw', 'eval_limit', 0, 'at least 1'),
    ('adamw', 'seed', -1, 'at least 0 and below 4294967296'),
    ('adamw', 'seed', 2**32, 'at least 0 and below 4294967296'),
    ('adamw', 'presence', 0.0, 'above 0 and at most 1'),
    ('adamw', 'presence', 1.5, 'above 0 and at most 1'),
    ('adamw', 'presence', NAN, 'above 0 and at most 1'),
    ('adamw', 'adversaries', -1, 'at least 0 and at most workers=4'),
    ('adamw', 'adversaries', 5, 'at least 0 and at most workers=4'),
    ('adamw', 'optimizer.learning_rate', 0.0, 'above 0'),
    ('lion', 'optimizer.learning_rate', -1e-3, 'above 0'),
    ('lion', 'optimizer.learning_rate', math.inf, 'above 0'),
    ('lion', 'optimizer.b1', 1.0, 'at least 0 and below 1'),
    ('adamw', 'optimizer.b2', -0.1, 'at least 0 and below 1'),
    ('terngrad', 'optimizer.momentum', 1.0, 'at least 0 and below 1'),
    ('adamw', 'optimizer.weight_decay', -0.1, 'at least 0'),
    ('adamw', 'optimizer.clip', 0.0, 'above 0'),
    ('adamw', 'optimizer.final_fraction', 1.1, 'at least 0 and at most 1'),
    ('graddrop', 'optimizer.density', 0.0, 'above 0 and at most 1'),
    ('slowmo', 'optimizer.outer_learning_rate', 0.0, 'above 0'),
    ('slowmo', 'optimizer.outer_momentum', 1.0, 'at least 0 and below 1'),
  ],
)
def test_numbers_out_of_their_range(method, field, value, allowed):
  wrong = tiny.load({field: value}, method=method)
  message = f'config field {field}={value} must be {allowed}\\.$'
  with pytest.raises(errors.UserError, match=message):
    assembly.check(wrong)


@pytest.mark.parametrize(
  'field, value',
  [
    ('presence', 1.0),
    ('adversaries', 4),
    ('seed', 2**32 - 1),
    ('optimizer.b1', 0.0),
    ('optimizer.weight_decay', 0.0),
    ('optimizer.final_fraction', 1.0),
    ('optimizer.clip', math.inf),
  ],
)
def test_ends_that_belong_to_a_range(field, value):
  ranges.check(tiny.load({field: value}, method='adamw'))


def test_every_number_of_every_optimizer_has_a_range():
  # These depend on the run, or on what the library can do.
  others = {'optimizer.warmup_steps', 'optimizer.bits'}
  for method in methods.METHODS:
    known = config.load('configs/gpt2_nano.py', method=method)
    for field, value in known.optimizer.items():
      assert isinstance(value, int | float)
      assert f'optimizer.{field}' in others | set(ranges.RANGES)
