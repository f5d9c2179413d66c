"""Bits that a method sends, against what its formula says."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest

from experiments import errors, methods, plans, traffic
from experiments.models import decoder
import signmomentum as sm
from tests import tiny

PARAMS = {'matrix': jnp.zeros((96, 128)), 'vector': jnp.zeros(4096)}  # 4 grids
SIZE = 16384
SYNC_EVERY = 3


def _bits(method, workers):
  config = tiny.load(method=method)
  plan = plans.Plan(100, SYNC_EVERY, decoder.decay_mask, 0)
  tx = methods.build(method, config.optimizer, plan)
  shapes = jax.eval_shape(lambda: PARAMS)
  return traffic.bits_per_parameter(tx, shapes, workers, SYNC_EVERY)


# Bits for each parameter, times n / (n - 1). The parameters of this test fill
# their words, so that nothing is sent in vain, and a mask is 1/128.
MEAN = 64
SIGNS = 1 + 1 / 128
SCALES = 64 * 2 / SIZE  # one for each leaf, both ways
FLAG = 64 / SIZE
QUANTIZED = 16 / 128  # beside each hop's bits, a scale for each 128


def _formula(method, n, fields):
  """Bits times n / (n - 1), and of what they are the mean, or None: a step."""
  one_of = {
    'adamw': (MEAN, 1),
    'lion': (MEAN, 1),
    'adamw_quantized': (2 * (fields.get('bits', 0) + QUANTIZED), 1),
    'distributed_lion_majority_vote': (2 * SIGNS, 1),
    'distributed_lion_sign_mean': ((1 + _log2(n + 1)) * SIGNS, 1),
    'distributed_lion_stochastic': (2 * SIGNS, 1),
    'distributed_lion_averaged': (2 * SIGNS + MEAN / SYNC_EVERY, 1),
    'distributed_signum': (2 * SIGNS, 1),
    'distributed_signum_sign_mean': ((1 + _log2(n + 1)) * SIGNS, 1),
    'terngrad': (2 + _log2(2 * n + 1) + SCALES, 1),
    'graddrop': (64 * fields.get('density', 0) * n, 1),
    'deep_gradient_compression': (64 * fields.get('density', 0) * n, 1),
    'local_adamw': (MEAN, SYNC_EVERY),
    'slowmo': (MEAN, SYNC_EVERY),
    'signed_slowmo': (MEAN, SYNC_EVERY),
    'lookahead': (MEAN, SYNC_EVERY),
    'diloco': (MEAN, SYNC_EVERY),
    'distributed_sign_momentum': (MEAN, SYNC_EVERY),
    # signs, and where zeros are: a flag, and then each of them
    'distributed_sign_momentum_sharded': (32 + SIGNS + 1 + FLAG, SYNC_EVERY),
    'distributed_sign_momentum_quantized': (
      fields.get('bits', 0) + QUANTIZED + SIGNS + 1 + FLAG,
      SYNC_EVERY,
    ),
    'distributed_sign_momentum_one_bit': (2 * SIGNS, SYNC_EVERY),
    'distributed_sign_momentum_one_bit_feedback': (2 * SIGNS, SYNC_EVERY),
  }
  bits, every = one_of[method]
  return bits * (n - 1) / n / every


def _log2(number):
  return math.ceil(math.log2(number))


@pytest.mark.parametrize('method', methods.METHODS)
def test_every_method_sends_what_its_formula_says(method):
  fields = tiny.load(method=method).optimizer
  # a whole number of elements is chosen of each leaf
  rel = 2e-3 if 'density' in fields else 1e-12
  assert _bits(method, 4) == pytest.approx(_formula(method, 4, fields), rel=rel)


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


def test_sent_in_all():
  assert traffic.sent(bits=1.5, parameters=1000, steps=20, seconds=10.0) == {
    'bits': 30.0,
    'bits_per_step': 1.5,
    'bytes_sent': 3750.0,
    'bits_per_second': 3000.0,
  }


def test_one_bit_rounds_of_12_steps_send_a_380th_of_an_all_reduce():
  tx = sm.distributed_sign_momentum(
    optax.adamw(1e-3), 1e-3, sync_every=12, aggregation='majority_vote'
  )
  shapes = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
  bits = traffic.bits_per_parameter(tx, shapes, workers=8, sync_every=12)
  assert bits == pytest.approx(2 * 7 / 8 * SIGNS / 12)
  assert bits <= 0.15
  assert traffic.all_reduce_bits(8) / bits > 380
