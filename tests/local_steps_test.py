"""Rounds: when workers talk, in which units, and what stays untouched."""

import fractions
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _step(workers, tx, **extra):
  """A compiled step whose gradients are its inputs."""

  def step(state, gradient):
    updates, opt_state = tx.update(
      gradient, state.opt_state, state.params, **extra
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), params

  return workers.step(step)


def _run(tx, params, gradients, workers=None):
  """The state and the local parameters after one step for each gradient."""
  workers = workers or sm.Workers(len(jax.tree.leaves(gradients[0])[0]))
  state = workers.init(tx, params)
  step = _step(workers, tx)
  for gradient in gradients:
    state, local = step(state, gradient)
  return state, local


def _averaging(inner, sync_every, outer=None, **kwargs):
  outer = optax.chain(sm.aggregate_by_mean('workers'), outer or optax.sgd(1.0))
  return sm.local_steps(inner, outer, sync_every, 'workers', **kwargs)


def test_displacement_points_like_a_gradient():
  """Anchor 1, all workers at 0.8: SGD at 1 gives 0.8, a sign step 0.9."""
  gradients = [jnp.full((3,), 0.2)]
  sgd = _averaging(optax.sgd(1.0), 1)
  state, _ = _run(sgd, jnp.array(1.0), gradients)
  np.testing.assert_allclose(state.opt_state.anchor, 0.8, rtol=1e-6)
  sign = _averaging(optax.sgd(1.0), 1, sm.sign_momentum(0.1, weight_decay=0.0))
  state, _ = _run(sign, jnp.array(1.0), gradients)
  np.testing.assert_allclose(state.opt_state.anchor, 0.9, rtol=1e-6)


@pytest.mark.parametrize('how', ['count', 'told'])
def test_workers_talk_every_sync_every_steps(how):
  tx = _averaging(optax.sgd(1.0), 3)
  workers = sm.Workers(2)
  state = workers.init(tx, jnp.array(0.0))
  gradient = jnp.array([-1.0, -3.0])
  if how == 'count':
    steps = [_step(workers, tx)] * 6
  else:
    local, last = _step(workers, tx, sync=False), _step(workers, tx, sync=True)
    steps = [local, local, last] * 2
  expected = [[1, 3], [2, 6], [6, 6], [7, 9], [8, 12], [12, 12]]
  for step, reached in zip(steps, expected, strict=True):
    state, local = step(state, gradient)
    np.testing.assert_array_equal(local, reached)


def test_only_the_step_that_syncs_communicates():
  mesh = jax.make_mesh((8,), ('workers',), (jax.sharding.AxisType.Auto,))
  tx = sm.distributed_sign_momentum(optax.adamw(0.1), 0.1, 3)
  workers = sm.Workers(8, mesh)
  params = jnp.zeros((64, 128))
  state = workers.init(tx, params)
  gradient = jnp.zeros((8, 64, 128))

  def bits(**extra):
    step = _step(workers, tx, **extra)
    return sm.wire.sent_bits_per_parameter(
      step.lower(state, gradient).compile(), params
    )

  assert bits(sync=False) == 0
  assert bits(sync=True) == 64 * 7 / 8


def test_learning_rate_zero_in_warm_up_and_at_the_end():
  """Everything stays finite, and a round at rate zero changes nothing."""
  rates = [0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.0, 0.0]
  schedule = lambda count: jnp.asarray(rates)[count]  # noqa: E731
  tx = sm.distributed_sign_momentum(optax.sgd(schedule), schedule, 2)
  workers = sm.Workers(2)
  state = workers.init(tx, jnp.array([1.0, -1.0]))
  step = _step(workers, tx)
  anchors, momenta = [], []
  for _ in rates:
    state, local = step(state, jnp.ones((2, 2)))
    assert np.isfinite(local).all()
    anchors.append(np.array(state.opt_state.anchor))
    momenta.append(np.array(state.opt_state.outer[1][0].mu))
  np.testing.assert_array_equal(anchors[1], [1.0, -1.0])  # rates 0, 0
  np.testing.assert_array_equal(momenta[1], 0.0)
  # the mean rate of the second round is 0.05: sign step and decay scale by it
  moved = np.array([1.0, -1.0]) * (1 - 0.1 * 0.05) - 0.05
  np.testing.assert_allclose(anchors[3], moved, rtol=1e-6)
  np.testing.assert_array_equal(anchors[7], anchors[5])
  np.testing.assert_array_equal(momenta[7], momenta[5])
  assert (momenta[5] != momenta[3]).all()


@pytest.mark.parametrize('aggregation', ['mean', 'majority_vote'])
def test_learning_rate_zero_with_a_sync_at_every_step(aggregation):
  schedule = optax.linear_schedule(0.0, 0.1, 1)
  tx = sm.distributed_sign_momentum(
    optax.adamw(schedule), schedule, 1, aggregation=aggregation
  )
  params = jnp.array([1.0, -1.0])
  state, _ = _run(tx, params, [jnp.ones((3, 2))])
  np.testing.assert_array_equal(state.opt_state.anchor, params)
  state, local = _run(tx, params, [jnp.ones((3, 2))] * 2)
  assert (state.opt_state.anchor != params).all()
  assert np.isfinite(local).all()


@pytest.mark.parametrize('aggregation', ['mean', 'majority_vote'])
def test_what_no_worker_moves_stays_bit_identical(aggregation):
  """Three workers: the mean of three equal numbers may differ from them."""
  tx = sm.distributed_sign_momentum(
    optax.sgd(0.1), 0.1, 2, weight_decay=0.0, aggregation=aggregation
  )
  rng = np.random.default_rng(0)
  params = {'idle': rng.normal(size=1000), 'moves': rng.normal(size=3)}
  params = jax.tree.map(jnp.float32, params)
  gradient = {'idle': jnp.zeros((3, 1000)), 'moves': jnp.ones((3, 3))}
  state, local = _run(tx, params, [gradient] * 10)
  np.testing.assert_array_equal(state.opt_state.anchor['idle'], params['idle'])
  for worker in range(3):
    np.testing.assert_array_equal(local['idle'][worker], params['idle'])
  assert (state.opt_state.anchor['moves'] != params['moves']).all()


def test_rounding_of_a_sync_is_no_displacement_in_the_next_round():
  """Workers that moved far apart, then rest: sign(0) must be 0 there.

  ``p + (anchor - p)`` misses the anchor where ``p`` is large and the anchor
  small; what is missed must not be mistaken for a move.
  """
  tx = _averaging(optax.sgd(1.0), 2, optax.sgd(1.0))
  rng = np.random.default_rng(0)
  params = jnp.float32(rng.normal(size=500) * 1e-3)
  far = jnp.float32(rng.normal(size=(3, 500)))
  far -= far.mean(0, keepdims=True)  # the mean ends near the anchor
  state, local = _run(tx, params, [far, jnp.zeros((3, 500))])
  anchor = np.array(state.opt_state.anchor)
  assert (np.array(local) != anchor).any()  # else this tests nothing
  state, local = _run(tx, params, [far] + [jnp.zeros((3, 500))] * 3)
  np.testing.assert_array_equal(state.opt_state.anchor, anchor)
  np.testing.assert_array_equal(local, np.broadcast_to(anchor, (3, 500)))


def test_those_present_at_the_end_of_a_round_decide():
  tx = _averaging(optax.sgd(1.0), 1, optax.sgd(1.0, momentum=0.9))
  workers = sm.Workers(4)
  state = workers.init(tx, jnp.array(0.0))

  @workers.step
  def step(state, inputs):
    gradient, present = inputs
    updates, opt_state = tx.update(
      gradient, state.opt_state, state.params, present=present
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), params

  gradient = jnp.array([-1.0, -2.0, -100.0, -3.0])
  state, local = step(state, (gradient, jnp.array([1, 1, 0, 1], bool)))
  np.testing.assert_allclose(local, 2.0)  # the absent one goes along
  outer = jax.tree.map(np.array, state.opt_state.outer)
  state, local = step(state, (gradient, jnp.zeros(4, bool)))
  np.testing.assert_allclose(local, 2.0)
  jax.tree.map(np.testing.assert_array_equal, state.opt_state.outer, outer)
  state, local = step(state, (jnp.zeros(4), jnp.ones(4, bool)))
  np.testing.assert_allclose(local, 2.0 + 0.9 * 2.0)  # momentum goes on


def test_an_outer_that_does_not_aggregate_is_refused():
  tx = sm.local_steps(optax.sgd(1.0), optax.sgd(1.0), 2, 'workers')
  for mesh in (None, _mesh()):
    with pytest.raises(ValueError, match='differs between workers.*aggregate'):
      sm.Workers(2, mesh).init(tx, {'a': jnp.ones(2), 'b': jnp.array(1)})


def test_an_outer_may_freeze_leaves():
  """Zeros made like an array that differs have its type."""
  mean = optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(1.0))
  outer = optax.partition(
    {'train': mean, 'freeze': optax.set_to_zero()},
    {'a': 'train', 'b': 'freeze', 'empty': 'train'},
  )
  tx = sm.local_steps(optax.sgd(1.0), outer, 1, 'workers')
  params = {'a': jnp.zeros(2), 'b': jnp.ones(2), 'empty': jnp.zeros(0)}
  gradient = jax.tree.map(lambda p: -jnp.ones((2, *p.shape)), params)
  sm.Workers(2, _mesh()).init(tx, params)
  state, _ = _run(tx, params, [gradient])
  anchor = sm.synchronised(state.opt_state, state.params)
  np.testing.assert_array_equal(anchor['a'], 1.0)
  np.testing.assert_array_equal(anchor['b'], 1.0)


def test_state_in_rows_by_hand_is_not_refused():
  """All of it is typed as each worker's own there, and says nothing."""
  tx = _averaging(optax.sgd(1.0), 1, optax.sgd(1.0, momentum=0.9))

  def step(params, state, gradient):
    params, state, gradient = jax.tree.map(
      lambda x: x[0], (params, state, gradient)
    )
    updates, state = tx.update(gradient, state, params, sync=True)
    return jax.tree.map(lambda x: x[None], (params + updates, state))

  rows = jax.P('workers')
  step = jax.shard_map(step, mesh=_mesh(), in_specs=rows, out_specs=rows)
  state = tx.init(jnp.array(0.0))
  state = jax.tree.map(lambda x: jnp.stack([x, x]), state)
  params, _ = jax.jit(step)(jnp.zeros(2), state, jnp.array([-1.0, -3.0]))
  np.testing.assert_array_equal(params, 2.0)


def _mesh():
  auto = (jax.sharding.AxisType.Auto,)
  return jax.make_mesh((2,), ('workers',), auto, devices=jax.devices()[:2])


def test_a_local_step_writes_nothing_but_its_results():
  tx = _averaging(optax.adamw(0.1), 3)
  params = jnp.zeros(1 << 16)
  workers = sm.Workers(1)
  state = workers.init(tx, params)

  @workers.step
  def step(state, gradient):
    updates, opt_state = tx.update(
      gradient, state.opt_state, state.params, sync=False
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  try:
    jax.config.update('jax_disable_most_optimizations', False)
    compiled = step.lower(state, params[None]).compile()
  finally:
    jax.config.update('jax_disable_most_optimizations', True)
  assert compiled.memory_analysis().temp_size_in_bytes < params.nbytes / 4


@pytest.mark.parametrize('bad', [0, -1])
def test_sync_every_must_be_positive(bad):
  with pytest.raises(ValueError, match='at least 1'):
    sm.diloco(optax.sgd(0.1), sync_every=bad)


@pytest.mark.parametrize(
  'bad', [1.5, 2.0, '3', None, True, fractions.Fraction(3, 2), np.float32(2)]
)
def test_sync_every_must_be_an_int(bad):
  with pytest.raises(TypeError, match='must be an int'):
    sm.diloco(optax.sgd(0.1), sync_every=bad)


def test_sync_every_can_be_changed_on_the_fly():
  tx = optax.inject_hyperparams(sm.diloco)(
    optax.sgd(1.0), sync_every=3, outer_learning_rate=1.0, momentum=0.0
  )
  workers = sm.Workers(2)
  state = workers.init(tx, jnp.array(0.0))
  step = _step(workers, tx)
  for expected in ([1, 3], [2, 6], [6, 6], [7, 9]):
    state, local = step(state, jnp.array([-1.0, -3.0]))
    np.testing.assert_array_equal(local, expected)
  state.opt_state.hyperparams['sync_every'] = jnp.int32(2)
  state, local = step(state, jnp.array([-1.0, -3.0]))
  np.testing.assert_array_equal(local, [10, 10])


def test_sync_must_be_a_python_bool():
  tx = sm.diloco(optax.sgd(0.1), sync_every=2)
  workers = sm.Workers(2)
  state = workers.init(tx, jnp.array(0.0))
  with pytest.raises(TypeError, match='Python bool'):
    _step(workers, tx, sync=jnp.array(True))(state, jnp.ones(2))


def test_params_are_needed():
  tx = sm.diloco(optax.sgd(0.1), sync_every=2)
  with pytest.raises(ValueError, match='params'):
    tx.update(jnp.array(0.0), tx.init(jnp.array(0.0)))


def test_synchronised_finds_the_anchor_inside_a_chain():
  tx = optax.chain(
    optax.clip_by_global_norm(1.0), sm.diloco(optax.sgd(0.1), sync_every=2)
  )
  state, _ = _run(tx, jnp.array(1.0), [jnp.ones(2)])
  assert state.params.shape == (2,)
  assert sm.synchronised(state.opt_state, state.params).shape == ()
  both = (state.opt_state, state.opt_state)
  with pytest.raises(ValueError, match='2 local_steps'):
    sm.synchronised(both, state.params)


def test_synchronised_of_leaves_without_local_steps():
  params = {'a': jnp.array(1.0), 'b': {'c': jnp.array(2.0)}}
  tx = optax.masked(
    sm.diloco(optax.sgd(0.5), 1, outer_learning_rate=1.0),
    {'a': True, 'b': False},
  )
  moved = {'a': jnp.array(3.0), 'b': {'c': jnp.array(4.0)}}
  expected = {'a': jnp.array(1.0), 'b': {'c': jnp.array(4.0)}}
  assert sm.synchronised(tx.init(params), moved) == expected


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
def test_parameters_and_outer_state_keep_their_dtype(dtype):
  schedule = optax.linear_schedule(0.1, 0.0, 10)
  for aggregation in ('mean', 'majority_vote'):
    tx = sm.distributed_sign_momentum(
      optax.adamw(schedule), schedule, 2, aggregation=aggregation
    )
    params = {'w': jnp.ones((3, 2), dtype)}
    gradient = {'w': jnp.ones((4, 3, 2), dtype)}
    before = jax.tree.map(lambda x: x.dtype, sm.Workers(4).init(tx, params))
    state, local = _run(tx, params, [gradient] * 3)
    assert jax.tree.map(lambda x: x.dtype, state) == before
    assert local['w'].dtype == dtype


@pytest.mark.parametrize('aggregation', ['mean', 'majority_vote'])
def test_integer_leaves_are_left_alone(aggregation):
  tx = sm.distributed_sign_momentum(
    optax.adamw(0.1), 0.1, 2, aggregation=aggregation
  )
  params = {'w': jnp.ones(3), 'i': jnp.array([0, 1, 5])}
  workers = sm.Workers(3)
  state = workers.init(tx, params)

  @workers.step
  def step(state, gradient):
    gradients = {'w': gradient, 'i': jnp.zeros(3, int)}
    updates, opt_state = tx.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  for _ in range(4):
    state, _ = step(state, jnp.ones((3, 3)))
  anchor = state.opt_state.anchor
  np.testing.assert_array_equal(anchor['i'], params['i'])
  assert anchor['i'].dtype == params['i'].dtype
  assert (anchor['w'] < 1).all()


@pytest.mark.parametrize('rate', [1e-38, 1e-41, 1e-45, -0.0])
def test_a_rate_without_a_finite_inverse_changes_nothing(rate):
  tx = sm.distributed_sign_momentum(optax.sgd(rate), rate, 1)
  state, local = _run(tx, jnp.ones(3), [jnp.ones((2, 3))] * 2)
  np.testing.assert_array_equal(state.opt_state.anchor, 1.0)
  np.testing.assert_array_equal(local, 1.0)


def test_parameters_and_state_can_be_donated_together():
  tx = sm.diloco(optax.sgd(0.5), sync_every=1, outer_learning_rate=1.0)
  params = jnp.ones(1000)
  state = tx.init(params)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(params, state):
    run = jax.vmap(
      lambda gradient: tx.update(gradient, state, params),
      out_axes=(0, None),
      axis_name='workers',
    )
    updates, new_state = run(jnp.ones((2, 1000)))
    return optax.apply_updates(params, updates[0]), new_state

  params, state = step(params, state)
  assert (params < 1).all()
