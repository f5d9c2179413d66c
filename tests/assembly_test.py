"""What a config asks for is checked before anything is built."""

import pytest

from experiments import assembly, errors, tasks
from experiments import config as config_lib
from tests import tiny


def test_a_batch_has_equal_parts():
  with pytest.raises(errors.UserError, match='batch_size=2 cannot be cut into'):
    assembly.check(tiny.load({'micro_batches': 3}))


@pytest.mark.parametrize(
  'method, field, value',
  [
    ('adamw_quantized', 'bits', 3),
    ('deep_gradient_compression', 'density_warmup_steps', 1),
  ],
)
def test_what_the_library_refuses_is_a_mistake_in_the_config(
  method, field, value
):
  config = tiny.load({f'optimizer.{field}': value}, method=method)
  with pytest.raises(errors.UserError, match='The config group optimizer: .*'):
    assembly.check(config)


def test_a_path_that_would_be_ignored():
  config = tiny.load({'data.path': 'data/mine'})
  with pytest.raises(errors.UserError, match='is for data.source=token_files'):
    tasks.load(config, only=[0])


def test_more_steps_a_round_than_there_are():
  with pytest.raises(errors.UserError, match='more than the 36000 steps'):
    config_lib.load('configs/gpt2_nano.py:sync_every=40000')
