"""What is refused where a transformation is made, and what is not."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import arguments

pytestmark = pytest.mark.usefixtures('quick_compilation')

_with_rate = {
  make.__name__: functools.partial(make, learning_rate=0.1)
  for make in (
    sm.distributed_lion,
    sm.distributed_signum,
    sm.terngrad,
    sm.graddrop,
    sm.deep_gradient_compression,
  )
}
_inner = {'inner': optax.sgd(0.1), 'sync_every': 2}
_sign_momentum = functools.partial(
  sm.distributed_sign_momentum, learning_rate=0.1, **_inner
)
_correction = functools.partial(
  sm.with_momentum_correction, aggregate=sm.aggregate_by_mean('workers')
)
_decayed = 'learning_rate weight_decay'
# By name: a factory, its arguments that are rates, and those from 0 to 1.
FACTORIES = {
  'lion_momentum': (sm.lion_momentum, '', 'b1 b2'),
  'with_momentum_correction': (_correction, '', 'momentum'),
  'sign_momentum': (sm.sign_momentum, _decayed, 'b1 b2'),
  'slowmo': (sm.slowmo, 'learning_rate', 'momentum'),
  'signed_slowmo': (sm.signed_slowmo, _decayed, 'momentum'),
  'lookahead': (sm.lookahead, 'learning_rate', ''),
  'nesterov': (sm.nesterov, 'learning_rate', 'momentum'),
  'distributed_lion': (_with_rate['distributed_lion'], _decayed, 'b1 b2'),
  'distributed_signum': (_with_rate['distributed_signum'], _decayed, 'beta'),
  'terngrad': (_with_rate['terngrad'], _decayed, 'momentum'),
  'graddrop': (_with_rate['graddrop'], _decayed, 'momentum'),
  'deep_gradient_compression': (
    _with_rate['deep_gradient_compression'],
    _decayed,
    'momentum',
  ),
  'distributed_sign_momentum': (
    _sign_momentum,
    'outer_learning_rate ' + _decayed,
    'b1 b2',
  ),
  'diloco': (
    functools.partial(sm.diloco, **_inner),
    'outer_learning_rate',
    'momentum',
  ),
}
RATES = [
  (name, make, rate)
  for name, (make, rates, _) in FACTORIES.items()
  for rate in rates.split()
]
SHARES = [
  (name, make, share)
  for name, (make, _, shares) in FACTORIES.items()
  for share in shares.split()
]
NUMBERS = [
  0,
  1,
  0.5,
  np.float32(0.5),
  np.array(0.5),
  jnp.array(0.5),
  jnp.array(0.5, jnp.bfloat16),
]


@pytest.mark.parametrize('name, make, rate', RATES)
def test_rates(name, make, rate):
  for bad in (-0.1, -1, np.nan, np.inf, np.float32(-0.1), jnp.array(-0.1)):
    with pytest.raises(ValueError, match=f'{name}: {rate} must be at least 0'):
      make(**{rate: bad})
  for bad in ('0.1', None, 1j, True, [0.1]):
    with pytest.raises(TypeError, match=f'{name}: {rate} must be a real numb'):
      make(**{rate: bad})
  for good in [*NUMBERS, optax.constant_schedule(0.1)]:
    make(**{rate: good})


@pytest.mark.parametrize('name, make, share', SHARES)
def test_momenta(name, make, share):
  for bad in (-0.1, 1.1, 2, np.nan, jnp.array(1.5)):
    with pytest.raises(ValueError, match=f'{name}: {share} must be from 0 to'):
      make(**{share: bad})
  for bad in ('0.1', None, 1j, True, optax.constant_schedule(0.1)):
    with pytest.raises(TypeError, match=f'{name}: {share} must be a real numb'):
      make(**{share: bad})
  for good in NUMBERS:
    make(**{share: good})


def test_the_local_rate_is_checked_if_there_is_one():
  outer = sm.aggregate_by_mean('workers')
  make = functools.partial(sm.local_steps, outer=outer, axis_name='workers')
  with pytest.raises(ValueError, match='local_steps: learning_rate must be at'):
    make(**_inner, learning_rate=-0.1)
  tx = make(**_inner, learning_rate=None)
  with pytest.raises(TypeError, match='local_steps: present must be a bool'):
    jax.vmap(
      lambda x: tx.update(x, tx.init(x), x, sync=False, present=1.0),
      axis_name='workers',
    )(jnp.ones(2))


@pytest.mark.parametrize('name', FACTORIES)
def test_numbers_can_be_injected_and_scheduled(name):
  """inject_hyperparams makes arrays of them, and traces these."""
  make, rates, shares = FACTORIES[name]
  known = inspect.signature(make).parameters
  static = [s for s in ('density', 'warmup_steps') if s in known]
  schedule = optax.linear_schedule(0.5, 0.1, 3)
  scheduled = dict.fromkeys(rates.split() + shares.split(), schedule)
  tx = optax.inject_hyperparams(make, static)(**scheduled)
  params = jnp.ones(3)

  def update(gradient):
    state = tx.init(params)
    for _ in range(2):
      updates, state = tx.update(gradient, state, params)
    return updates

  run = jax.jit(jax.vmap(update, axis_name='workers'))
  assert np.isfinite(run(jnp.ones((2, 3)))).all()


def test_arrays_are_checked_where_a_program_is_traced():
  """What JAX computes of them there has no value."""
  rate, seed = jnp.array(0.5), jnp.array(3)

  @jax.jit
  def init(params):
    return sm.distributed_lion(rate, seed=seed).init(params)

  init(jnp.ones(2))
  arguments.require_positive('f', 'x', jnp.array(0.5))


SEEDED = [
  functools.partial(sm.aggregate_by_majority_vote, 'workers'),
  functools.partial(sm.aggregate_by_sign_mean, 'workers'),
  functools.partial(sm.aggregate_by_quantized_mean, 'workers'),
  functools.partial(sm.aggregate_by_ternary_mean, 'workers'),
  functools.partial(sm.shard_over_workers, optax.identity(), 'workers'),
  functools.partial(sm.scale_by_randomized_sign, 1.0),
  _with_rate['distributed_lion'],
  _with_rate['terngrad'],
  *(
    functools.partial(_sign_momentum, aggregation=aggregation)
    for aggregation in ('mean', 'sharded_mean', 'majority_vote')
  ),
]


@pytest.mark.parametrize('make', SEEDED)
def test_seeds(make):
  for seed in (-1, 2**32, 2**70, np.int64(2**32)):
    with pytest.raises(ValueError, match='seed must be'):
      make(seed=seed)
  for seed in (0.5, 'x', None, True, jnp.array(0.5)):
    with pytest.raises(TypeError, match='seed must be an int'):
      make(seed=seed)
  for seed in (0, 2**32 - 1, np.int32(3), jnp.array(3)):
    make(seed=seed)


@pytest.mark.parametrize(
  'aggregation', ['mean', 'sharded_mean', 'majority_vote']
)
def test_what_a_choice_does_not_need_is_checked_all_the_same(aggregation):
  make = functools.partial(_sign_momentum, aggregation=aggregation)
  with pytest.raises(ValueError, match='zeros must be one of'):
    make(zeros='nonsense')
  with pytest.raises(TypeError, match='error_feedback must be True or False'):
    make(error_feedback='no')


@pytest.mark.parametrize('bits', [None, 4])
def test_block_size_is_checked_with_bits_and_without(bits):
  def make(block_size):
    return sm.shard_over_workers(
      optax.identity(), 'workers', bits=bits, block_size=block_size
    )

  with pytest.raises(ValueError, match='block_size must be at least 1'):
    make(-5)
  with pytest.raises(TypeError, match='block_size must be an int'):
    make(128.0)
  make(np.int32(256))


@pytest.mark.parametrize('bad', [0, -1.0, np.nan, np.inf])
def test_what_is_positive_is_finite(bad):
  for make in (
    lambda: sm.scale_by_randomized_sign(bad, 0),
    lambda: sm.terngrad(0.1, clip_factor=bad),
    lambda: sm.deep_gradient_compression(0.1, max_norm=bad),
  ):
    with pytest.raises(ValueError, match='must be above 0 and finite'):
      make()
