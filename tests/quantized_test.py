"""Quantized means: right in expectation, exact zeros, few bits, absentees."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import wire

pytestmark = pytest.mark.usefixtures('quick_compilation')

BITS = [8, 4, 2]


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


def _tx(bits=4, **arguments):
  return sm.aggregate_by_quantized_mean('workers', bits, **arguments)


@pytest.mark.parametrize('bits', BITS)
def test_right_in_expectation_with_bounded_variance(bits):
  rng, n, steps = np.random.default_rng(0), 4, 3000
  updates = {
    'w': rng.normal(size=(n, 150)),
    'small': rng.normal(size=(n, 40)) ** 3 * 1e-3,
  }
  updates = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), updates)
  results = _mean(_tx(bits), updates, steps)
  most = 2 ** (bits - 1) - 1
  for name, leaf in updates.items():
    for start in range(0, leaf.shape[1], 128):
      block = np.asarray(leaf[:, start : start + 128], np.float64)
      found = np.asarray(results[name][:, start : start + 128], np.float64)
      largest = np.abs(block).max(axis=1) * (1 + 2**-7)
      scales = largest / most
      second = (largest.mean() + scales.mean()) / most * (1 + 2**-7)
      # a draw between two levels has a quarter of their distance squared
      bound = (np.sum(scales**2) / n**2 + second**2) / 4
      error = np.abs(found.mean(axis=0) - block.mean(axis=0))
      assert np.all(error < 5 * np.sqrt(bound / steps)), name
      variance = found.var(axis=0)
      assert np.all(variance < bound * (1 + 5 * np.sqrt(2 / steps)))
      assert variance.max() > bound / 20  # and it has been rounded


@pytest.mark.parametrize('bits', BITS)
def test_numbers_on_the_grid_are_exact(bits):
  most = 2 ** (bits - 1) - 1
  rng = np.random.default_rng(0)
  levels = rng.integers(-most, most + 1, 300)
  levels[::128] = most
  updates = np.tile(levels / 8, (3, 1)).astype(np.float32)
  (mean,) = _mean(_tx(bits), updates)
  np.testing.assert_array_equal(mean, updates[0])


@pytest.mark.parametrize('bits', BITS)
def test_zeros_stay_zero(bits):
  updates = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32)
  updates[:, 300:600] = -0.0  # blocks of zeros, and a part of one
  updates[:, ::7] = 0.0
  tree = {'moves': updates, 'idle': np.zeros((4, 200), np.float32)}
  results = _mean(_tx(bits), tree, steps=20)
  zero = (updates == 0).all(axis=0)
  assert not results['moves'][:, zero].any()
  assert not np.signbit(results['moves'][:, zero]).any()
  assert results['moves'][:, ~zero].any(axis=0).all() or bits < 8
  assert not results['idle'].any()


def test_no_block_holds_two_leaves():
  updates = {'large': np.full((3, 1), 1e6), 'small': np.full((3, 1), 1e-6)}
  updates = jax.tree.map(np.float32, updates)
  results = _mean(_tx(2), updates, steps=50)
  np.testing.assert_allclose(results['small'], 1e-6, rtol=2**-7)


@pytest.mark.parametrize('alone', [False, True])
def test_leaves_are_independent_of_how_they_are_joined(alone):
  """A large leaf is written by itself, and comes back by itself."""
  size = 32 * 8 * 8 + 3 if alone else 32 * 8 * 8 - 9
  updates = {
    'a': np.full((2, 5), 7.0),
    'b': np.tile(np.arange(size) % 8, (2, 1)) * 0.5,
    'c': np.full((2, 3), -3.5),
  }
  results = _mean(_tx(4, block_size=8), jax.tree.map(np.float32, updates))
  for name, leaf in updates.items():
    exact = results[name][0] == leaf[0]
    # the last block of b may be of 3, or 7, whose largest is not 7/2
    assert exact[: size // 8 * 8].all(), name


def test_each_worker_and_each_owner_draws_for_itself():
  updates = np.full((4, 4096), 0.5, np.float32)
  updates[:, ::128] = 1.0
  (mean,) = _mean(_tx(2), updates)
  # a first hop of equal draws would give only 0 and 1
  numbers = np.delete(np.asarray(mean), np.s_[::128])
  assert len(np.unique(numbers)) == 2  # the second one rounds again
  sharded = sm.shard_over_workers(optax.identity(), 'workers', 'full', bits=2)
  (once,) = _mean(sharded, updates)
  assert len(np.unique(once)) == 5
  # a first hop that is exact, and then one half for everybody
  half = np.zeros((2, 8192), np.float32)
  half[0] = 1.0
  half[:, ::128] = 1.0
  (first, second) = np.split(np.asarray(_mean(_tx(2), half)[0]), 2)
  assert 0.4 < np.mean(first != second) < 0.6


def test_each_place_in_a_tree_has_draws_of_its_own():
  """Two leaves that are written by themselves, and two that are joined."""
  leaf = np.random.default_rng(0).normal(size=(1, 32 * 8 * 8))
  leaf = leaf.astype(np.float32)
  tree = {'a': leaf, 'b': leaf, 'c': leaf[:, :64], 'd': leaf[:, :64]}
  mean = _mean(_tx(4, block_size=8), tree)
  starts = [np.asarray(mean[name])[0, :64] for name in 'abcd']
  for i in range(4):
    for j in range(i):
      assert np.any(starts[i] != starts[j]), (i, j)


def test_draws_are_of_seed_and_step():
  updates = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
  results = _mean(_tx(4, seed=3), updates, steps=2)
  assert np.any(results[0] != results[1])
  np.testing.assert_array_equal(results, _mean(_tx(4, seed=3), updates, 2))
  assert np.any(results[0] != _mean(_tx(4, seed=4), updates)[0])
  with jax.default_prng_impl('rbg'):
    np.testing.assert_array_equal(results, _mean(_tx(4, seed=3), updates, 2))


@pytest.mark.parametrize('bits', BITS)
def test_absent_workers_do_not_count(bits):
  most = 2 ** (bits - 1) - 1  # a multiple of the scale
  updates = np.ones((4, 300)) * [[most], [np.nan], [most], [3e38]]
  updates = updates.astype(np.float32)
  present = [True, False, True, False]
  (mean,) = _mean(_tx(bits), updates, present=present)
  np.testing.assert_array_equal(mean, most)
  (nobody,) = _mean(_tx(bits), updates, present=[False] * 4)
  np.testing.assert_array_equal(nobody, 0)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32', 'float64'])
def test_dtypes_are_kept(dtype):
  with jax.enable_x64(True):
    updates = {
      'x': jnp.tile(jnp.arange(8).astype(dtype), (3, 1)),
      'y': jnp.ones((3, 2)),
      'scalar': jnp.array([2.0, 2.0, 2.0], dtype),
      'empty': jnp.zeros((3, 0), dtype),
      'none': None,
    }
    mean = jax.tree.map(lambda x: x[0], _mean(_tx(4), updates))
    assert mean['x'].dtype == mean['scalar'].dtype == dtype
    assert mean['empty'].shape == (0,)
    np.testing.assert_array_equal(mean['x'], updates['x'][0])
    np.testing.assert_allclose(mean['scalar'], 2.0, rtol=2**-6)


def test_integers_are_left_alone_and_nothing_is_nothing():
  run = jax.vmap(
    lambda u: _tx().update(u, _tx().init(u))[0], axis_name='workers'
  )
  alone = {'step': jnp.arange(3), 'empty': jnp.zeros((3, 0)), 'none': None}
  jax.tree.map(np.testing.assert_array_equal, run(alone), alone)


def test_what_is_not_finite_is_seen_where_it_is():
  updates = np.ones((3, 512), np.float32)
  updates[1, 130], updates[2, 500] = np.nan, -np.inf
  (mean,) = _mean(_tx(8), updates)
  blocks = np.isnan(mean).reshape(4, 128)
  np.testing.assert_array_equal(blocks.all(axis=1), [False, True, False, True])
  np.testing.assert_array_equal(blocks.any(axis=1), [False, True, False, True])
  dropped = optax.chain(sm.ignore_non_finite(), _tx(8))
  assert np.isfinite(_mean(dropped, updates)).all()


@pytest.mark.parametrize('bits', BITS)
def test_large_float16_does_not_overflow(bits):
  updates = np.full((8, 200), 65504, np.float16)
  updates[:, 1] *= np.float16(-0.9)
  results = np.float32(_mean(_tx(bits), updates, steps=10))
  assert np.isfinite(results).all()
  off = np.abs(results[:, 0] - 65504)
  assert np.all(off <= 2 * 65504 / (2 ** (bits - 1) - 1) * (1 + 2**-6))


def _collectives(tx, params, n=4, present=False):
  mesh = jax.make_mesh(
    (n,), ('workers',), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:n]
  )

  def worker(updates, here):
    updates, here = sm.as_local((updates, here))
    here = here if present else None
    return tx.update(updates, tx.init(updates), present=here)[0]

  run = jax.shard_map(
    worker, mesh=mesh, in_specs=(jax.P(), jax.P()), out_specs=jax.P()
  )
  return wire.collectives(jax.jit(run).lower(params, True).compile())


@pytest.mark.parametrize('number, present', [(1000, False), (10, True)])
def test_any_number_of_leaves_takes_two_collectives(number, present):
  params = {str(i): jnp.zeros(i % 2 + 3) for i in range(number)}
  found = _collectives(_tx(), params, present=present)
  assert [c.kind for c in found] == ['all-to-all', 'all-gather']
  assert {c.dtypes for c in found} == {('u32',)}


@pytest.mark.parametrize('block_size', [128, 512])
@pytest.mark.parametrize('bits', BITS)
def test_bits_are_those_of_the_formula(bits, block_size):
  n, params = 4, {'a': jnp.zeros((512, 512)), 'b': jnp.zeros((256, 1024))}
  found = _collectives(_tx(bits, block_size=block_size), params, n)
  sent = 8 * sum(c.sent_bytes for c in found) / 2**19
  np.testing.assert_allclose(sent, 2 * (bits + 16 / block_size) * (n - 1) / n)


def test_error_feedback_keeps_what_was_not_said():
  updates = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
  tx = sm.with_error_feedback(_tx(4))
  present = np.array([True, True, False])

  def worker(update, here):
    result, state = tx.update(update, tx.init(update), present=here)
    return result, state.residual

  mean, residual = jax.vmap(worker, out_axes=(None, 0), axis_name='workers')(
    updates, present
  )
  np.testing.assert_array_equal(residual[2], updates[2])
  said = (updates - residual)[:2].mean(axis=0)
  most = np.abs(updates).max()
  assert np.all(np.abs(residual[:2]) < most / 7 * (1 + 2**-7))
  assert np.all(np.abs(said - mean) < most * 8 / 7 / 7 * (1 + 2**-6))
  assert np.any(residual[0] != 0)


def test_local_steps_on_it():
  arguments = {'axis_name': 'workers'}
  outer = optax.chain(
    sm.aggregate_by_quantized_mean('workers', 8), sm.sign_momentum()
  )
  chain = sm.local_steps(optax.sgd(0.1), outer, 2, 'workers', 0.1)
  method = sm.distributed_sign_momentum(
    optax.sgd(0.1), 0.1, 2, **arguments, bits=8
  )
  gradients = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)

  def worker(tx, gradient):
    params, state = jnp.zeros(50), tx.init(jnp.zeros(50))
    for _ in range(4):
      updates, state = tx.update(gradient, state, params)
      params = optax.apply_updates(params, updates)
    return params

  one, two = (
    jax.vmap(lambda g, tx=tx: worker(tx, g), axis_name='workers')(gradients)
    for tx in (chain, method)
  )
  np.testing.assert_array_equal(one, two)
  assert np.any(one)


@pytest.mark.parametrize(
  'arguments, error, match',
  [
    ({'bits': 3}, ValueError, r'bits must be one of \[2, 4, 8\], not 3'),
    ({'bits': 1}, ValueError, r'bits must be one of \[2, 4, 8\], not 1'),
    ({'bits': '8'}, TypeError, 'bits must be an int'),
    ({'bits': 8.0}, TypeError, 'bits must be an int'),
    ({'bits': jnp.array(8)}, TypeError, 'bits decides about the shapes'),
    ({'block_size': 0}, ValueError, 'block_size must be at least 1'),
    ({'block_size': jnp.array(8)}, TypeError, 'block_size decides'),
    ({'seed': -1}, ValueError, 'seed must be at least 0'),
    ({'seed': 0.5}, TypeError, 'seed must be an int'),
  ],
)
def test_bad_arguments(arguments, error, match):
  with pytest.raises(error, match=match):
    sm.aggregate_by_quantized_mean('workers', **arguments)


def test_present_must_be_a_scalar():
  with pytest.raises(ValueError, match=r'present must be a scalar.*\(1,\)'):
    _mean(_tx(), np.ones((2, 3), np.float32), present=[[True], [False]])


def test_complex_is_refused_with_its_path():
  with pytest.raises(TypeError, match=r"\['w'\].*complex64"):
    _mean(_tx(), {'w': np.ones((2, 3), np.complex64)})
