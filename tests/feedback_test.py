"""Error feedback: nothing is lost, only late."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')

STEPS, N = 6, 4
AGGREGATORS = {
  'top_k': lambda: sm.aggregate_by_top_k('workers', 0.2),
  'bf16': lambda: sm.aggregate_by_mean('workers', jnp.bfloat16),
  'ternary': lambda: sm.aggregate_by_ternary_mean('workers'),
  'vote': lambda: sm.aggregate_by_majority_vote('workers'),
  'sign_mean': lambda: sm.aggregate_by_sign_mean('workers', 'exact'),
}
WRAPPERS = [sm.with_error_feedback, sm.with_momentum_correction]


def _updates():
  draw = np.random.default_rng(0)
  return [
    {'w': draw.normal(size=(N, 30)), 'b': draw.normal(size=(N, 3))}
    for _ in range(STEPS)
  ]


def _run(tx, updates, present=None):
  """Results [steps, ...] and last state [workers, ...]."""

  def worker(updates, present):
    def step(state, inputs):
      update, here = inputs
      result, state = tx.update(update, state, present=here)
      return state, result

    state = tx.init(jax.tree.map(lambda u: u[0], updates))
    state, results = jax.lax.scan(step, state, (updates, present))
    return results, state

  with jax.enable_x64(True):
    updates = jax.tree.map(lambda *u: np.stack(u), *updates)
    axes = (1, None if present is None else 1)
    run = jax.jit(jax.vmap(worker, axes, (None, 0), axis_name='workers'))
    return jax.device_get(run(updates, present))


@pytest.mark.parametrize('name', ['top_k', 'bf16', 'ternary'])
def test_what_is_sent_and_what_is_kept_add_up(name):
  """Of a mean, the sum over steps is that of the updates, but for the rest."""
  updates = _updates()
  results, state = _run(sm.with_error_feedback(AGGREGATORS[name]()), updates)
  for leaf in ('w', 'b'):
    total = sum(u[leaf].mean(0) for u in updates)
    kept = np.mean(state.residual[leaf], 0)
    rounding = 1e-2 if name == 'bf16' else 1e-10  # of the sum, after the wire
    np.testing.assert_allclose(
      np.sum(results[leaf], 0) + kept, total, atol=rounding
    )
    assert np.any(kept)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_small_updates_are_not_lost_in_a_large_residual(wrapper, dtype):
  """In their dtype, large + 1 is large: added up so, the rest would stall."""
  steps, tx = 3000, wrapper(sm.aggregate_by_top_k('workers', 0.5))
  update = jnp.array([[30_000, 1]], dtype)

  def worker(update):
    def step(state, _):
      result, state = tx.update(update, state)
      return state, result[1].astype(jnp.float32)

    state = tx.init(update.astype(jnp.float32))
    state, sent = jax.lax.scan(step, state, length=steps)
    return jnp.sum(sent), state.residual[1]

  sent, kept = jax.vmap(worker, axis_name='workers')(update)
  if wrapper is sm.with_error_feedback:
    np.testing.assert_array_equal(sent + kept, steps)
  assert kept > 2048  # above which f16 has even numbers only


@pytest.mark.parametrize('name', ['vote', 'sign_mean'])
def test_of_a_sign_the_mean_magnitude_counts_as_sent(name):
  updates = _updates()[:1]
  _, state = _run(sm.with_error_feedback(AGGREGATORS[name]()), updates)
  w = updates[0]['w']
  scale = np.abs(w).mean(1, keepdims=True)
  np.testing.assert_allclose(state.residual['w'], w - scale * np.sign(w))


def test_a_small_element_is_heard_in_the_end():
  """Two workers of three are for plus, by little; without feedback they win
  every vote, with it the large third wins as often as the mean says."""
  update = [{'w': np.array([[0.1, 1], [0.1, 1], [-1.0, 1]])}] * 40
  vote = sm.aggregate_by_majority_vote('workers')
  plain, _ = _run(vote, update)
  fed_back, _ = _run(sm.with_error_feedback(vote), update)
  assert np.all(plain['w'][:, 0] == 1)
  assert np.mean(fed_back['w'][:, 0]) < 0.5
  assert np.mean(fed_back['w'][:, 1]) > 0.5


@pytest.mark.parametrize('name', ['top_k', 'vote', 'ternary'])
def test_an_absent_worker_keeps_everything(name):
  updates = _updates()
  present = np.ones((STEPS, N), bool)
  present[:, 2] = False
  tx = sm.with_error_feedback(AGGREGATORS[name]())
  _, state = _run(tx, updates, present)
  total = sum(u['w'][2] for u in updates)
  np.testing.assert_allclose(state.residual['w'][2], total, rtol=1e-12)
  assert not np.allclose(
    state.residual['w'][1], sum(u['w'][1] for u in updates)
  )


def test_momentum_correction_sends_the_sum_of_velocities():
  """What is sent does not go on: density 1 is SGD, without momentum."""
  updates = _updates()
  tx = sm.with_momentum_correction(sm.aggregate_by_top_k('workers', 1.0), 0.9)
  results, state = _run(tx, updates)
  np.testing.assert_allclose(results['w'][3], updates[3]['w'].mean(0))
  assert not np.any(state.velocity['w'])
  sparse = sm.with_momentum_correction(
    sm.aggregate_by_top_k('workers', 1 / 30), 0.9
  )
  _, state = _run(sparse, updates[:2])
  velocity, residual = np.zeros((N, 30)), np.zeros((N, 30))
  for update in updates[:2]:
    velocity = 0.9 * velocity + update['w']
    residual += velocity
    sent = np.abs(residual) == np.abs(residual).max(1, keepdims=True)
    velocity[sent] = residual[sent] = 0
  np.testing.assert_allclose(state.residual['w'], residual)
  np.testing.assert_allclose(state.velocity['w'], velocity)


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_leaves_without_gradient_are_left_alone(wrapper):
  tx = wrapper(sm.aggregate_by_top_k('workers', 0.5))
  params = {'w': jnp.ones(4), 'step': jnp.int32(3), 'none': None}

  def worker(w):
    updates = {'w': w, 'step': jnp.int32(0), 'none': None}
    return tx.update(updates, tx.init(params))[0]

  result = jax.vmap(worker, out_axes=None, axis_name='workers')(
    jnp.array([[1.0, 2.0, 3.0, 4.0]])
  )
  assert result['step'].dtype == jnp.int32
  assert result['none'] is None


@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize(
  'wrong',
  [
    lambda: optax.chain(sm.lion_momentum(), sm.aggregate_by_mean('workers')),
    lambda: optax.sgd(0.1),
    lambda: sm.aggregate_by_mean,
  ],
)
def test_needs_an_aggregator(wrapper, wrong):
  with pytest.raises(TypeError, match='give it an aggregate_by_'):
    wrapper(wrong())


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_a_summed_gradient_is_refused(wrapper):
  tx = wrapper(sm.aggregate_by_top_k('workers', 0.5))
  mesh = jax.make_mesh(
    (2,), ('workers',), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
  )
  workers = sm.Workers(2, mesh)
  state = workers.init(tx, jnp.ones(3))

  @workers.step
  def step(state, x):
    gradient = jax.grad(lambda p: jnp.sum(p * x))(state.params)  # no as_local
    _, opt_state = tx.update(gradient, state.opt_state, state.params)
    return state.replace(opt_state=opt_state), ()

  with pytest.raises(ValueError, match='as_local'):
    step(state, jnp.ones((2, 3)))
