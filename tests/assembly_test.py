"""What a config asks for is checked before anything is built."""

import pytest

from experiments import assembly, errors, tasks
from experiments import config as config_lib
from tests import tiny


@pytest.mark.parametrize(
  'field, value',
  [
    ('workers', 0),
    ('batch_size', 0),
    ('micro_batches', 0),
    ('sync_every', 0),
    ('eval_limit', 0),
    ('seed', -1),
  ],
)
def test_numbers_that_are_too_small(field, value):
  with pytest.raises(errors.UserError, match=f'{field}={value} must be at le'):
    assembly.check(tiny.load({field: value}))


def test_a_batch_has_equal_parts():
  with pytest.raises(errors.UserError, match='batch_size=2 cannot be cut into'):
    assembly.check(tiny.load({'micro_batches': 3}))


def test_seeds_that_random_keys_do_not_tell_apart():
  with pytest.raises(errors.UserError, match='must be below 2'):
    assembly.check(tiny.load({'seed': 2**32}))


def test_a_path_that_would_be_ignored():
  config = tiny.load({'data.path': 'data/mine'})
  with pytest.raises(errors.UserError, match='is for data.source=token_files'):
    tasks.load(config, only=[0])


def test_more_steps_a_round_than_there_are():
  with pytest.raises(errors.UserError, match='more than the 36000 steps'):
    config_lib.load('configs/gpt2_nano.py:sync_every=40000')
