"""Averages of state: when, of what, of whom."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import wire

pytestmark = pytest.mark.usefixtures('quick_compilation')

GRADIENTS = jnp.array([1.0, 3.0, 8.0])


def _momenta(tx, steps, mesh=None, sync=(), present=None):
  """Each worker's momentum after every step."""
  workers = sm.Workers(3, mesh)
  state = workers.init(tx, jnp.array(0.0))
  seen = []
  for t in range(steps):
    extra = {'sync': sync[t]} if sync else {}

    @workers.step
    def step(state, inputs, extra=extra):
      gradient, here = inputs
      if present is not None:
        extra = extra | {'present': here}
      _, opt_state = tx.update(gradient, state.opt_state, state.params, **extra)
      return state.replace(opt_state=opt_state), opt_state.inner.mu

    here = jnp.array([True] * 3 if present is None else present)
    state, momenta = step(state, (GRADIENTS, here))
    seen.append(np.asarray(momenta))
  return np.stack(seen)


def _expected(steps, every):
  m, seen = np.zeros(3), []
  for t in range(steps):
    m = 0.5 * m + 0.5 * np.asarray(GRADIENTS)
    if (t + 1) % every == 0:
      m = np.full(3, m.mean())
    seen.append(m)
  return np.stack(seen)


def _averaged(every=2):
  return sm.with_state_averaging(sm.lion_momentum(0.5, 0.5), every, 'workers')


@pytest.mark.parametrize('every', [1, 2, 3])
@pytest.mark.parametrize('devices', [False, True])
def test_averages_every_few_updates(every, devices):
  mesh = None
  if devices:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((3,), ('workers',), auto, devices=jax.devices()[:3])
  actual = _momenta(_averaged(every), 5, mesh)
  np.testing.assert_allclose(actual, _expected(5, every), rtol=1e-6)


def test_sync_says_when():
  actual = _momenta(_averaged(100), 4, sync=(False, True, False, True))
  np.testing.assert_allclose(actual, _expected(4, 2), rtol=1e-6)


def test_who_is_absent_keeps_its_own():
  actual = _momenta(_averaged(1), 1, present=[True, False, True])[0]
  np.testing.assert_allclose(actual, [9 / 4, 1.5, 9 / 4])
  nobody = _momenta(_averaged(1), 1, present=[False] * 3)[0]
  np.testing.assert_allclose(nobody, GRADIENTS / 2)


def test_inner_optimizer_of_local_steps():
  inner = sm.with_state_averaging(optax.adam(0.1), 2, 'workers')
  tx = sm.local_steps(
    inner,
    optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(1.0)),
    4,
    'workers',
  )
  workers = sm.Workers(3)
  state = workers.init(tx, jnp.array(0.0))

  @workers.step
  def step(state, gradient):
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), ()

  for spread in (True, False):
    state, _ = step(state, GRADIENTS)
    mu = np.asarray(state.opt_state.inner.inner[0].mu)
    assert (np.ptp(mu) > 0.1) == spread
  assert state.opt_state.inner.inner[0].count.shape == ()


def test_who_is_absent_is_so_inside_local_steps_too():
  inner = sm.with_state_averaging(optax.trace(0.0), 1, 'workers')
  outer = optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(1.0))
  tx = sm.local_steps(inner, outer, 2, 'workers')

  def traces(gradient, present):
    params = jnp.array(0.0)
    _, state = tx.update(
      gradient, tx.init(params), params, present=present, sync=False
    )
    return state.inner.inner.trace

  actual = jax.vmap(traces, axis_name='workers')(
    jnp.array([1.0, 3.0, jnp.nan]), jnp.array([True, True, False])
  )
  np.testing.assert_array_equal(actual, [2.0, 2.0, jnp.nan])


def test_sends_the_state_and_nothing_where_it_is_told_not_to():
  tx = _averaged()
  mesh = jax.make_mesh((8,), ('workers',), (jax.sharding.AxisType.Auto,))
  workers = sm.Workers(8, mesh)
  params = jnp.zeros(1000)
  state = workers.init(tx, params)

  def bits(sync):
    @workers.step
    def step(state, gradient):
      updates, opt_state = tx.update(
        gradient, state.opt_state, state.params, sync=sync
      )
      return state.replace(opt_state=opt_state), updates

    compiled = step.lower(state, jnp.zeros((8, 1000))).compile()
    return wire.sent_bits_per_parameter(compiled, params)

  assert bits(False) == 0
  assert bits(True) == 64 * 7 / 8


def test_bad_arguments():
  with pytest.raises(ValueError, match='average_every must be at least 1'):
    _averaged(0)
  with pytest.raises(TypeError, match='sync must be a Python bool'):
    _averaged().update(1.0, _averaged().init(1.0), sync=jnp.array(True))
