"""Executors, and which leaves they store for each worker."""

import functools
import math
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')

AXIS = jax.sharding.AxisType


def _mesh(count, axis_type=AXIS.Auto):
  return jax.make_mesh(
    (count,), ('workers',), (axis_type,), devices=jax.devices()[:count]
  )


def test_what_differs_is_found():
  params = {'w': jnp.zeros((2, 3)), 'b': jnp.zeros(3)}
  tx = sm.distributed_sign_momentum(optax.adamw(0.1), 0.1, 3)
  marks = sm.worker_varying(tx, params)
  state = marks.opt_state
  each, none = {'w': True, 'b': True}, {'w': False, 'b': False}
  assert marks.params == each
  assert (state.inner[0].mu, state.inner[0].nu) == (each, each)
  assert state.inner[0].count is False
  assert state.anchor == none
  assert state.outer[1][0].mu == none
  assert (state.count, state.place, state.rate) == (False, False, False)


def test_what_differs_in_part_of_a_tree():
  """Two groups of leaves, one voted on and one averaged now and then."""
  tx = optax.partition(
    {
      'vote': sm.distributed_lion(0.1),
      'local': sm.diloco(optax.sgd(0.1), sync_every=2),
    },
    {'w': 'vote', 'b': 'local'},
  )
  marks = sm.worker_varying(tx, {'w': jnp.zeros(2), 'b': jnp.zeros(2)})
  assert marks.params == {'w': False, 'b': True}


def test_what_differs_through_loops_and_branches():
  def update(updates, state, params=None):
    del params
    loop = jax.lax.fori_loop(0, 3, lambda _, c: c + updates, state['loop'])
    scan, _ = jax.lax.scan(lambda c, x: (c * x, None), state['scan'], updates)
    branch = jax.lax.cond(
      updates[0] > 0, lambda: state['branch'] + 1, lambda: state['branch']
    )
    once = jax.lax.cond(
      state['count'] > 1, lambda: updates, lambda: state['once']
    )
    new = {
      'loop': loop,
      'scan': scan,
      'branch': branch,
      'once': once,
      'count': state['count'] + 1,
      'mean': jax.lax.pmean(updates, 'workers'),
    }
    return new['mean'], new

  def init(params):
    return {
      'loop': jnp.zeros_like(params),
      'scan': jnp.zeros(()),
      'branch': jnp.zeros(()),
      'once': jnp.zeros_like(params),
      'count': jnp.zeros((), jnp.int32),
      'mean': jnp.zeros_like(params),
    }

  tx = optax.GradientTransformation(init, update)
  assert sm.worker_varying(tx, jnp.zeros(3)).opt_state == {
    'loop': True,
    'scan': True,
    'branch': True,
    'once': True,
    'count': False,
    'mean': False,
  }


@pytest.mark.parametrize('kind', ['cond', 'while_loop'])
def test_talking_in_a_branch_of_ones_own_is_refused(kind):
  """Under real devices this would wait for ever, so it must not be built."""

  def update(updates, state, params=None):
    del params
    talk = lambda x: jax.lax.pmean(x, 'workers')  # noqa: E731
    if kind == 'cond':
      new = jax.lax.cond(updates[0] > 0, talk, lambda x: x, updates)
    else:
      new = jax.lax.while_loop(lambda x: x[0] > 0, talk, updates)
    return new, state

  tx = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
  with pytest.raises(ValueError, match=f'lax.{kind} whose condition differs'):
    sm.worker_varying(tx, jnp.zeros(3))
  with pytest.raises(ValueError, match='leaves the others waiting'):
    sm.Workers(2).init(tx, jnp.zeros(3))


def test_a_branch_that_all_take_alike_is_fine():
  tx = optax.conditionally_mask(
    sm.distributed_lion(0.1), should_transform_fn=lambda step: step % 2 == 0
  )
  assert sm.worker_varying(tx, jnp.zeros(3)).params is False


@pytest.mark.parametrize('axis_type', [AXIS.Auto, AXIS.Explicit])
def test_state_lies_where_it_belongs(axis_type):
  mesh = _mesh(4, axis_type)
  state = sm.Workers(4, mesh).init(sm.distributed_lion(0.1), jnp.zeros((6, 2)))
  mu = state.opt_state[0].mu
  assert mu.shape == (4, 6, 2)
  assert {s.data.shape for s in mu.addressable_shards} == {(1, 6, 2)}
  assert state.params.shape == (6, 2)
  assert state.params.sharding.is_fully_replicated


def test_workers_on_islands_keep_a_model_sharded():
  """Each worker is two devices, which hold half of the model each."""
  mesh = jax.make_mesh((4, 2), ('workers', 'model'), (AXIS.Explicit,) * 2)
  spread = jax.NamedSharding(mesh, jax.P(None, 'model'))
  params = jax.device_put(jnp.zeros((64, 256)), spread)
  tx = sm.distributed_lion(0.5, weight_decay=0.0)
  workers = sm.Workers(4, mesh)
  state = workers.init(tx, params)
  assert state.params.sharding.spec == jax.P(None, 'model')
  assert state.opt_state[0].mu.sharding.spec == jax.P('workers', None, 'model')

  @workers.step
  def step(state, slope):
    local = sm.as_local(state.params)
    gradient = jax.grad(lambda w: jnp.sum(slope * w))(local)
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  state, _ = step(state, jnp.array([1.0, 1.0, 1.0, -10.0]))
  assert state.params.sharding.spec == jax.P(None, 'model')
  np.testing.assert_array_equal(state.params, -0.5)


@pytest.mark.parametrize('devices', [False, True])
def test_a_shared_leaf_that_would_differ_is_refused(devices):
  workers = sm.Workers(4, _mesh(4) if devices else None)
  state = workers.init(sm.distributed_lion(0.1), jnp.zeros(3))

  @workers.step
  def step(state, x):
    return state.replace(params=state.params + x), None

  with pytest.raises(ValueError, match='out_') as error:
    step(state, jnp.arange(4.0))
  assert 'stored once' in error.value.__notes__[0]


def test_state_must_keep_its_structure():
  workers = sm.Workers(2)
  state = workers.init(sm.distributed_lion(0.1), {'a': jnp.zeros(3)})
  step = workers.step(lambda state, _: (state.replace(params={}), None))
  with pytest.raises(ValueError, match='structure'):
    step(state, jnp.zeros(2))


def test_the_second_call_compiles_nothing_and_buffers_are_reused():
  for mesh in (None, _mesh(4)):
    workers = sm.Workers(4, mesh)
    tx = sm.distributed_lion(0.1)
    state = workers.init(tx, jnp.zeros(1000))
    calls = []

    def run(state, gradient, calls=calls, tx=tx):
      calls.append(None)
      updates, opt_state = tx.update(gradient, state.opt_state, state.params)
      params = optax.apply_updates(state.params, updates)
      return state.replace(params=params, opt_state=opt_state), None

    step = workers.step(run)
    old = state
    for _ in range(3):
      state, _ = step(state, np.ones((4, 1000), np.float32))
    assert len(calls) == 1
    assert old.params.is_deleted()


@pytest.mark.parametrize('count', [0, -1, 2.0, True])
def test_count_must_be_a_positive_int(count):
  with pytest.raises((TypeError, ValueError), match='count must be a'):
    sm.Workers(count)


def test_count_and_mesh_must_fit():
  with pytest.raises(ValueError, match='size 4, but count is 2'):
    sm.Workers(2, _mesh(4))
  with pytest.raises(ValueError, match="none named 'islands'"):
    sm.Workers(4, _mesh(4), axis_name='islands')


@pytest.mark.parametrize('axis_type', [AXIS.Auto, AXIS.Explicit])
def test_any_mesh_may_be_set_around(axis_type):
  tx = sm.distributed_lion(0.5, weight_decay=0.0)
  mesh = _mesh(4, axis_type)
  with jax.set_mesh(mesh):
    for workers in (sm.Workers(4, mesh), sm.Workers(3)):
      state = workers.init(tx, jnp.zeros(5))
      assert state.opt_state[0].mu.shape == (workers.count, 5)


def _trainer(tx):
  """Every worker's gradient is its input, the same for all elements."""

  def step(state, slope):
    gradient = jax.tree.map(
      lambda p: slope * jnp.ones_like(p), sm.as_local(state.params)
    )
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  return step


@pytest.mark.parametrize('devices', [False, True])
def test_every_worker_must_have_its_row(devices):
  workers = sm.Workers(4, _mesh(4) if devices else None)
  tx = sm.distributed_lion(0.1)
  step = workers.step(_trainer(tx))
  state = workers.init(tx, jnp.zeros(3))
  for bad in (jnp.arange(8.0), jnp.arange(3.0), jnp.array(1.0)):
    with pytest.raises(
      ValueError, match='inputs must have a leading axis of 4'
    ):
      step(state, bad)
  eight = sm.Workers(8).init(tx, jnp.zeros(3))
  with pytest.raises(ValueError, match=r'leaf state.opt_state\[0\].mu.*of 4'):
    step(eight, jnp.arange(4.0))


def test_a_state_must_come_from_init():
  workers = sm.Workers(2)
  tx, params = sm.distributed_lion(0.1), jnp.zeros(3)
  step = workers.step(_trainer(tx))
  with pytest.raises(TypeError, match='from Workers.init, not tuple'):
    step((params, tx.init(params)), jnp.ones(2))
  by_hand = sm.WorkerState(params, tx.init(params))
  with pytest.raises(ValueError, match='3 leaves, but its varying.* has 0'):
    step(by_hand, jnp.ones(2))
  other = workers.init(tx, params).replace(params={'a': params, 'b': params})
  with pytest.raises(ValueError, match='4 leaves, but its varying.* has 3'):
    step(other, jnp.ones(2))


@pytest.mark.parametrize(
  'trace', [jax.jit, lambda fn: functools.partial(jax.eval_shape, fn)]
)
def test_init_on_a_mesh_says_that_it_can_not_be_traced(trace):
  tx, params = sm.distributed_lion(0.1), jnp.zeros(3)

  def traced(workers):
    return trace(lambda params: workers.init(tx, params))(params)

  with pytest.raises(ValueError, match=r'call it outside.*Workers\(4, axis'):
    traced(sm.Workers(4, _mesh(4)))
  made = sm.Workers(4, _mesh(4)).init(tx, params)
  shapes = jax.tree.map(jnp.shape, traced(sm.Workers(4)))
  assert shapes == jax.tree.map(jnp.shape, made)


@pytest.mark.parametrize('devices', [False, True])
def test_init_gives_up_each_leaf_when_it_is_stored(devices):
  """What the transformation makes and what is stored are never all there."""
  held = []

  def init(params):
    made = [params + i for i in range(8)]
    for leaf in made:
      if not isinstance(leaf, jax.core.Tracer):
        weakref.finalize(leaf, lambda: held.append(stored()))
    return made

  def stored():
    arrays = jax.live_arrays()
    return sum(math.prod(x.shape) == 2 * 12347 for x in arrays)

  def update(updates, state, params=None):
    return updates, [updates + leaf for leaf in state]

  workers = sm.Workers(2, _mesh(2) if devices else None)
  tx = optax.GradientTransformation(init, update)
  state = workers.init(tx, jnp.zeros(12347))
  assert all(x.shape == (2, 12347) for x in state.opt_state)
  assert held == [2 + i for i in range(8)]  # parameters differ too


@pytest.mark.parametrize('axis_type', [AXIS.Auto, AXIS.Explicit])
def test_empty_leaves_lie_where_they_belong(axis_type):
  params = {'a': jnp.zeros((0, 3)), 'b': jnp.zeros(3)}
  workers = sm.Workers(4, _mesh(4, axis_type))
  state = workers.init(sm.distributed_lion(0.1), params)
  mu = state.opt_state[0].mu['a']
  assert {s.data.shape for s in mu.addressable_shards} == {(1, 0, 3)}
  assert jax.device_get(state.params)['a'].shape == (0, 3)


@pytest.mark.parametrize('devices', [False, True])
def test_init_takes_nothing_away(devices):
  """A state may hold the parameters, or an array of the transformation."""
  mine = jnp.ones(3)

  def update(updates, state, params=None):
    return updates, state

  tx = optax.GradientTransformation(lambda p: {'p': p, 'mine': mine}, update)
  workers = sm.Workers(2, _mesh(2) if devices else None)
  params = jnp.zeros(3)
  for _ in range(2):
    state = workers.init(tx, params)
    step = workers.step(lambda state, _: (state, None))
    step(state, jnp.ones(2))
  np.testing.assert_array_equal(params, 0)
  np.testing.assert_array_equal(mine, 1)


@pytest.mark.parametrize('devices', [False, True])
def test_frozen_leaves(devices):
  """Zeros made like an array that differs have its type."""
  workers = sm.Workers(4, _mesh(4) if devices else None)
  tx = optax.partition(
    {'train': sm.distributed_lion(0.5), 'freeze': optax.set_to_zero()},
    {'a': 'train', 'b': 'freeze'},
  )
  state = workers.init(tx, {'a': jnp.zeros(3), 'b': jnp.ones(2)})
  state, _ = workers.step(_trainer(tx))(state, jnp.ones(4))
  np.testing.assert_array_equal(state.params['a'], -0.5)
  assert (np.asarray(state.params['b']) == 1).all()


@pytest.mark.parametrize('kind', [AXIS.Auto, AXIS.Explicit])
def test_state_on_islands_lies_as_the_parameters_do_from_the_start(kind):
  mesh = jax.make_mesh((4, 2), ('workers', 'model'), (kind,) * 2)
  spread = jax.NamedSharding(mesh, jax.P(None, 'model'))
  params = jax.device_put(jnp.zeros((64, 256)), spread)
  workers = sm.Workers(4, mesh)
  tx = sm.distributed_lion(0.5)
  state = workers.init(tx, params)
  assert state.opt_state[0].mu.addressable_shards[0].data.shape == (1, 64, 128)
  step = workers.step(_trainer(tx))
  for _ in range(3):
    state, _ = step(state, jnp.ones(4))
  assert step._cache_size() == 1


@pytest.mark.parametrize('devices', [False, True])
def test_weak_types_compile_once(devices):
  workers = sm.Workers(4, _mesh(4) if devices else None)
  for tx in (
    sm.distributed_lion(0.5),
    optax.inject_hyperparams(sm.distributed_lion)(0.5),
  ):
    state = workers.init(tx, {'a': 1.0, 'b': jnp.asarray(2.0)})
    step = workers.step(_trainer(tx))
    for _ in range(3):
      state, _ = step(state, jnp.ones(4))
    assert step._cache_size() == 1


def test_init_passes_extra_arguments():
  tx = optax.chain(sm.distributed_lion(0.1), optax.contrib.reduce_on_plateau())
  state = sm.Workers(4).init(tx, jnp.zeros(3), value=jnp.array(1.0))
  assert state.params.shape == (3,)


def test_a_mean_over_one_of_two_worker_axes_is_not_shared():
  for axes, differs in ((('a', 'b'), False), ('a', True), ('b', True)):
    tx = optax.chain(sm.lion_momentum(), sm.aggregate_by_mean(axes))
    marks = sm.worker_varying(tx, jnp.zeros(3), ('a', 'b'))
    assert marks.params is differs
