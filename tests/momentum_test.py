"""A worker's own momentum, and gradients that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')


def test_lion_momentum_and_a_sign_are_lion():
  ours = optax.chain(sm.lion_momentum(0.8, 0.95), optax.scale_by_sign())
  theirs = optax.scale_by_lion(0.8, 0.95)
  params = jnp.zeros(50)
  a, b = ours.init(params), theirs.init(params)
  for seed in range(4):
    gradient = jax.random.normal(jax.random.key(seed), (50,))
    update, a = ours.update(gradient, a)
    expected, b = theirs.update(gradient, b)
    np.testing.assert_array_equal(update, expected)


def test_momentum_has_its_own_dtype_and_the_direction_the_wider_one():
  tx = sm.lion_momentum(mu_dtype=jnp.float32)
  state = tx.init(jnp.zeros(3, jnp.float16))
  assert state.mu.dtype == jnp.float32
  update, state = tx.update(jnp.ones(3, jnp.float16), state)
  assert update.dtype == jnp.float32
  assert state.mu.dtype == jnp.float32
  # a momentum too small for the gradient's dtype still has its sign
  small = (
    sm.lion_momentum()
    .init(jnp.full(3, 1e-8))
    ._replace(mu=jnp.full(3, 1e-8, jnp.float32))
  )
  update, _ = tx.update(jnp.zeros(3, jnp.float16), small)
  assert (update > 0).all()


@pytest.mark.parametrize('dtype', [jnp.int8, jnp.float8_e4m3fn, jnp.complex64])
def test_momentum_has_a_dtype_in_which_it_can_add_up(dtype):
  with pytest.raises(ValueError, match='mu_dtype must be a floating'):
    sm.lion_momentum(mu_dtype=dtype)
  with pytest.raises(ValueError, match='mu_dtype must be a floating'):
    sm.distributed_signum(0.1, mu_dtype=dtype)


@pytest.mark.parametrize('bad', [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize('devices', [False, True])
def test_one_worker_without_a_finite_gradient(bad, devices):
  """All stay finite and equal, the counter shows it, and nobody waits."""
  mesh = None
  if devices:
    mesh = jax.make_mesh(
      (4,),
      ('workers',),
      (jax.sharding.AxisType.Auto,),
      devices=jax.devices()[:4],
    )
  for tx in (
    sm.distributed_lion(0.1),
    sm.distributed_sign_momentum(optax.adam(0.1), 0.1, sync_every=2),
    optax.chain(sm.aggregate_by_mean('workers'), optax.adam(0.1)),
  ):
    tx = optax.chain(sm.ignore_non_finite(), tx)
    workers = sm.Workers(4, mesh)
    state = workers.init(tx, {'w': jnp.ones(3), 'i': jnp.ones((2, 2))})

    def step(state, gradient, tx=tx):
      updates, opt_state = tx.update(gradient, state.opt_state, state.params)
      params = optax.apply_updates(state.params, updates)
      return state.replace(params=params, opt_state=opt_state), None

    step = workers.step(step)
    gradients = {'w': np.ones((4, 3)), 'i': np.ones((4, 2, 2))}
    gradients = jax.tree.map(np.float32, gradients)
    gradients['w'][2, 1] = bad
    for _ in range(2):
      state, _ = step(state, gradients)
    np.testing.assert_array_equal(state.opt_state[0].ignored, [0, 0, 2, 0])
    for leaf in jax.tree.leaves(state):
      assert np.isfinite(leaf).all()
    synced = sm.synchronised(state.opt_state, state.params)
    assert synced['w'].shape == (3,)
    assert (synced['w'] < 1).all()


def test_a_finite_gradient_passes_unchanged():
  tx = sm.ignore_non_finite()
  gradient = {'w': jnp.array([1e38, -0.0]), 'i': jnp.array(7)}
  updates, state = tx.update(gradient, tx.init(gradient))
  jax.tree.map(np.testing.assert_array_equal, updates, gradient)
  assert int(state.ignored) == 0
