"""Ternary means: right in expectation, one scale for all, cut off, absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _mean(tx, updates, steps=1, present=None):
  """Results [steps, ...] of the same updates."""

  def worker(updates, present):
    def step(state, _):
      result, state = tx.update(updates, state, present=present)
      return state, result

    return jax.lax.scan(step, tx.init(updates), length=steps)[1]

  axes = (0, None if present is None else 0)
  run = jax.vmap(worker, axes, None, axis_name='workers')
  return jax.jit(run)(updates, None if present is None else np.array(present))


def test_right_in_expectation():
  rng = np.random.default_rng(0)
  updates = {
    'w': jnp.asarray(rng.normal(size=(4, 50)), jnp.float32),
    'small': jnp.asarray(1e-3 * rng.normal(size=(4, 50)), jnp.float32),
  }
  steps = 4000
  tx = sm.aggregate_by_ternary_mean('workers', clip_factor=None)
  results = _mean(tx, updates, steps)
  for name, leaf in updates.items():
    scale = np.abs(leaf).max()
    variance = np.mean(np.abs(leaf) * scale - leaf**2, axis=0) / 4
    error = np.abs(np.mean(results[name], 0) - np.mean(leaf, 0))
    assert np.all(error < 5 * np.sqrt(variance / steps))
    # multiples of scale / n: signs, not numbers, have been added up
    counts = 4 * np.asarray(results[name]) / scale
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)


def test_what_is_far_out_is_cut_off():
  updates = jnp.ones((3, 100)).at[1, 0].set(1000.0)
  results = _mean(sm.aggregate_by_ternary_mean('workers', 2.5), updates)
  most = 2.5 * np.sqrt((99 + 1000.0**2) / 100)
  multiple = results[0, 0] * 3 / most
  np.testing.assert_allclose(multiple, np.round(multiple), atol=1e-5)
  assert results[0, 0] > 0
  assert np.max(np.abs(results)) <= most * 1.0001


@pytest.mark.parametrize(
  'unit', [2.0**-125, 1e-30, 1e-20, 1.0, 1e19, 1e30, 2.0**119]
)
def test_numbers_of_any_size_are_cut_off_alike(unit):
  """Neither has the square of a large or small number to be one."""
  numbers = jnp.ones((3, 100)).at[:, 0].set(100.0)
  tx = sm.aggregate_by_ternary_mean('workers', 2.5)
  (expected,) = _mean(tx, numbers)
  (result,) = _mean(tx, numbers * unit)
  assert expected[0] == pytest.approx(2.5 * np.sqrt(1.01e4 / 100), rel=0.01)
  np.testing.assert_allclose(result / unit, expected, rtol=1e-5)


@pytest.mark.parametrize('clip_factor', [2.5, None])
def test_leaves_of_all_kinds(clip_factor):
  updates = {
    'scalar': jnp.array([2.0, 2.0, -2.0]),
    'zero': jnp.zeros((3, 5)),
    'empty': jnp.zeros((3, 0)),
    'half': jnp.ones((3, 4), jnp.bfloat16),
    'none': None,
  }
  tx = sm.aggregate_by_ternary_mean('workers', clip_factor)
  mean = jax.tree.map(lambda x: x[0], _mean(tx, updates))
  np.testing.assert_allclose(mean['scalar'], 2 / 3, rtol=1e-6)
  assert not np.any(mean['zero'])
  assert mean['empty'].shape == (0,)
  assert mean['half'].dtype == jnp.bfloat16
  assert np.all(mean['half'] == 1)


@pytest.mark.parametrize('clip_factor', [2.5, 100.0, None])
def test_what_is_too_large_is_not_lost(clip_factor):
  tx = sm.aggregate_by_ternary_mean('workers', clip_factor)
  updates = {
    'large': jnp.full((3, 2), 2.0**126),
    'too large': jnp.full((3, 2), 3e38),
  }
  mean = jax.tree.map(lambda x: x[0], _mean(tx, updates))
  np.testing.assert_allclose(mean['large'], 2.0**126, rtol=1e-6)
  assert np.isnan(mean['too large']).all()


def test_absent_workers_have_no_say_in_the_scale():
  updates = jnp.array([[1.0, 1.0], [1000.0, np.nan], [-1.0, 1.0]])
  tx = sm.aggregate_by_ternary_mean('workers', None)
  (mean,) = _mean(tx, updates, present=[True, False, True])
  np.testing.assert_array_equal(mean, [0, 1])
  (nobody,) = _mean(tx, updates, present=[False] * 3)
  np.testing.assert_array_equal(nobody, [0, 0])


@pytest.mark.parametrize(
  'arguments, match',
  [
    ({'clip_factor': 0.0}, 'clip_factor must be above 0'),
    ({'seed': -1}, 'seed must be at least 0'),
  ],
)
def test_bad_arguments(arguments, match):
  with pytest.raises(ValueError, match=match):
    sm.aggregate_by_ternary_mean('workers', **arguments)
