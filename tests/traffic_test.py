"""Bits that a method sends, against what its formula says."""

import jax
import jax.numpy as jnp
import pytest

from experiments import errors, methods, traffic
from experiments.models import gpt2
from tests import tiny

PARAMS = {'matrix': jnp.zeros((96, 128)), 'vector': jnp.zeros(4096)}  # 4 grids
SYNC_EVERY = 3


def _bits(method, workers):
  config = tiny.load(method=method)
  plan = methods.Plan(100, SYNC_EVERY, gpt2.decay_mask, 0)
  tx = methods.build(method, config.optimizer, plan)
  shapes = jax.eval_shape(lambda: PARAMS)
  return traffic.bits_per_parameter(tx, shapes, workers, SYNC_EVERY)


@pytest.mark.parametrize('workers', [1, 4])
@pytest.mark.parametrize(
  'method, bits, every',
  [
    ('adamw', 64, 1),
    ('slowmo', 64, SYNC_EVERY),
    ('distributed_sign_momentum', 64, SYNC_EVERY),
  ],
)
def test_means_cost_32_bits_each_way(method, bits, every, workers):
  assert _bits(method, workers) == bits * (workers - 1) / workers / every


@pytest.mark.parametrize(
  'method, every',
  [
    ('distributed_lion_majority_vote', 1),
    ('distributed_sign_momentum_one_bit', SYNC_EVERY),
  ],
)
def test_votes_cost_one_bit_each_way(method, every):
  """With a bit for each block of 128, and words that have to be filled."""
  exact = 2 * 3 / 4 / every
  assert exact <= _bits(method, 4) <= 1.05 * exact


def test_all_reduce():
  assert traffic.all_reduce_bits(1) == 0
  assert traffic.all_reduce_bits(4) == _bits('adamw', 4)


def test_too_few_devices():
  with pytest.raises(errors.UserError, match='jax_num_cpu_devices.*, 9'):
    _bits('adamw', 9)
