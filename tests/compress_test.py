"""Randomized signs: what is out of range, what is zero, what draws go by."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import draws

SUPPORTS = ['two_point', 'three_point']


@pytest.mark.parametrize('support', SUPPORTS)
@pytest.mark.parametrize('value', [1.5, -1.5, np.inf, np.nan])
def test_out_of_range_is_an_error(support, value):
  tx = sm.scale_by_randomized_sign(1.0, seed=0, support=support)
  updates = {'a': jnp.array([0.5, value]), 'b': jnp.array([0.5])}
  with pytest.raises(ValueError, match=r'bound\s+1.0.*clip'):
    tx.update(updates, tx.init(updates))
  # where values are not known yet, nothing of the update is of use
  signs, state = jax.jit(tx.update)(updates, tx.init(updates))
  assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(signs))
  assert state.out_of_range == 1
  within = jax.tree.map(lambda x: jnp.zeros_like(x) + 0.5, updates)
  signs, state = jax.jit(tx.update)(within, state)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(signs))
  assert (state.out_of_range, state.count) == (1, 2)


@pytest.mark.parametrize(
  'dtype, value, bound',
  [(jnp.bfloat16, 0.30078125, 0.3), (jnp.float16, 1.0, 0.9998)],
)
def test_a_bound_is_not_rounded_to_the_dtype_of_the_leaf(dtype, value, bound):
  tx = sm.scale_by_randomized_sign(bound, seed=0)
  updates = jnp.full(3, value, dtype)
  signs, state = jax.jit(tx.update)(updates, tx.init(updates))
  assert np.all(np.isnan(signs))
  assert state.out_of_range == 1


@pytest.mark.parametrize('support', SUPPORTS)
def test_clipping_is_a_choice(support):
  tx = sm.scale_by_randomized_sign(
    0.5, seed=0, support=support, out_of_range='clip'
  )
  updates = jnp.array([0.5, 3.0, -3.0, np.inf, np.nan])
  signs, state = tx.update(updates, tx.init(updates))
  np.testing.assert_array_equal(signs, [1, 1, -1, 1, np.nan])
  assert state.out_of_range == 1


@pytest.mark.parametrize('support', SUPPORTS)
@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
def test_values(support, dtype):
  tx = sm.scale_by_randomized_sign(2.0, seed=0, support=support)
  updates = {
    'bound': jnp.full(50, -2.0, dtype),
    'half': jnp.ones(400, dtype),
    'zero': jnp.zeros(50, dtype),
    'scalar': jnp.array(1.0, dtype),
    'empty': jnp.zeros((0, 3), dtype),
    'none': None,
    'step': jnp.int32(7),
  }
  signs, _ = tx.update(updates, tx.init(updates))
  assert jax.tree.map(lambda x: (x.shape, x.dtype), signs) == jax.tree.map(
    lambda x: (x.shape, x.dtype), updates
  )
  assert np.all(signs['bound'] == -1)
  assert np.all(signs['zero'] == 0)
  assert signs['step'] == 7
  support_set = {-1, 1} if support == 'two_point' else {0, 1}
  assert set(np.asarray(signs['half'], float)) == support_set


def test_draws_go_by_seed_step_worker_and_path():
  values = jnp.zeros(2000) + 0.1

  def signs(seed=0, steps=1, name='w', axis_name=None, n=1):
    tx = sm.scale_by_randomized_sign(1.0, seed, axis_name=axis_name)
    tree = {name: values}

    def run(_):
      state = tx.init(tree)
      for _ in range(steps):
        out, state = tx.update(tree, state)
      return out[name]

    return np.asarray(jax.vmap(run, axis_name='workers')(jnp.arange(n)))

  base = signs()
  np.testing.assert_array_equal(base, signs())
  for other in (signs(seed=1), signs(steps=2), signs(name='v')):
    assert 0.3 < np.mean(base != other) < 0.7
  alone, each = signs(n=2), signs(n=2, axis_name='workers')
  np.testing.assert_array_equal(alone[0], alone[1])
  assert 0.3 < np.mean(each[0] != each[1]) < 0.7


def test_a_leaf_draws_the_same_without_the_others():
  tx = sm.scale_by_randomized_sign(1.0, seed=0)
  updates = {'a': jnp.zeros(300) + 0.1, 'b': jnp.zeros(300) + 0.1}
  everything, _ = tx.update(updates, tx.init(updates))
  masked = optax.masked(tx, {'a': False, 'b': True})
  some, _ = masked.update(updates, masked.init(updates))
  np.testing.assert_array_equal(some['b'], everything['b'])
  np.testing.assert_array_equal(some['a'], updates['a'])


def test_rare_events_are_as_rare_as_they_should_be():
  """A uniform float32 has 2**23 values: 0 would come far too often."""
  keys = jax.random.split(draws.key(0), 64)
  probability = jnp.full(2**20, 1e-7)
  count = sum(int(draws.happens(k, probability)[0].sum()) for k in keys)
  expected = 64 * 2**20 * 1e-7
  assert abs(count - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize(
  'arguments, match',
  [
    ({'support': 'one_point'}, "support must be one of .*'three_point'"),
    ({'out_of_range': 'ignore'}, "out_of_range must be one of .*'clip'"),
    ({'bound': 0.0}, 'bound must be above 0'),
    ({'bound': np.nan}, 'bound must be above 0'),
    ({'seed': -1}, 'seed must be at least 0'),
  ],
)
def test_bad_arguments(arguments, match):
  with pytest.raises(ValueError, match=match):
    sm.scale_by_randomized_sign(**{'bound': 1.0, 'seed': 0} | arguments)


def test_bound_can_be_injected():
  make = optax.inject_hyperparams(sm.scale_by_randomized_sign, ('seed',))
  tx = make(bound=1.0, seed=0)
  updates = jnp.array([1.0, -1.0])
  signs, _ = jax.jit(tx.update)(updates, tx.init(updates))
  np.testing.assert_array_equal(signs, [1, -1])
