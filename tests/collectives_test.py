"""Who may talk: a worker's own updates, and only where all take part."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import collectives

pytestmark = pytest.mark.usefixtures('quick_compilation')

AXIS = jax.sharding.AxisType
SLOPES = jnp.array([1.0, 1.0, 1.0, -10.0])


def _mesh(axis_type=AXIS.Auto):
  return jax.make_mesh(
    (4,), ('workers',), (axis_type,), devices=jax.devices()[:4]
  )


def _aggregated(tx, own, axis_type=AXIS.Auto):
  """Four workers with gradients 1, 1, 1, -10 of a replicated scalar."""
  mesh = _mesh(axis_type)

  @jax.jit
  @jax.shard_map(
    mesh=mesh, in_specs=(jax.P(), jax.P('workers')), out_specs=jax.P()
  )
  def run(weight, slope):
    weight = sm.as_local(weight) if own else weight
    gradient = jax.grad(lambda w: slope[0] * w)(weight)
    return tx.update(gradient, tx.init(weight))[0]

  place = jax.NamedSharding(mesh, jax.P('workers'))
  weight = jax.device_put(jnp.array(0.5), jax.NamedSharding(mesh, jax.P()))
  return float(run(weight, jax.device_put(SLOPES, place)))


AGGREGATORS = {
  'aggregate_by_majority_vote': 1.0,
  'aggregate_by_sign_mean': 0.5,
  'aggregate_by_mean': -1.75,
}


@pytest.mark.parametrize(
  'name, options',
  [
    *((name, ()) for name in AGGREGATORS),
    ('aggregate_by_quantized_mean', ()),
    ('aggregate_by_ternary_mean', ()),
    ('aggregate_by_top_k', (1.0,)),
  ],
)
def test_gradients_of_replicated_parameters_are_refused(name, options):
  tx = getattr(sm, name)('workers', *options)
  with pytest.raises(ValueError, match=rf'{name}.*already the same.*as_local'):
    _aggregated(tx, own=False)


@pytest.mark.parametrize('axis_type', [AXIS.Auto, AXIS.Explicit])
@pytest.mark.parametrize('name', AGGREGATORS)
def test_gradients_of_own_copies_are_aggregated(name, axis_type):
  tx = getattr(sm, name)('workers')
  assert _aggregated(tx, own=True, axis_type=axis_type) == AGGREGATORS[name]


def test_one_shared_leaf_among_others_is_refused_by_its_path():
  tx = sm.aggregate_by_majority_vote('workers')

  @jax.shard_map(mesh=_mesh(), in_specs=jax.P('workers'), out_specs=jax.P())
  def run(slope):
    updates = {'own': slope[0], 'shared': jnp.ones(3)}
    return tx.update(updates, tx.init(updates))[0]

  with pytest.raises(ValueError, match=r"\['shared'\].*as_local"):
    jax.jit(run)(SLOPES)


@pytest.mark.parametrize('check', [True, False])
def test_a_worker_axis_of_two_mesh_axes(check):
  mesh = jax.make_mesh(
    (2, 2), ('a', 'b'), (AXIS.Auto,) * 2, devices=jax.devices()[:4]
  )
  axes = ('a', 'b')
  tx = sm.aggregate_by_majority_vote(axes)

  @jax.shard_map(
    mesh=mesh, in_specs=jax.P(axes), out_specs=jax.P(), check_vma=check
  )
  def run(slope):
    return tx.update(slope[0], tx.init(slope[0]))[0]

  assert float(jax.jit(run)(SLOPES)) == 1.0


@pytest.mark.parametrize('name', AGGREGATORS)
def test_a_worker_axis_of_two_mapped_axes(name):
  tx, axes = getattr(sm, name)(('a', 'b')), ('a', 'b')

  def run(slope):
    return tx.update(slope, tx.init(slope))[0]

  for axis in reversed(axes):
    run = jax.vmap(run, out_axes=None, axis_name=axis)
  assert float(run(SLOPES.reshape(2, 2))) == AGGREGATORS[name]


def test_messages_come_in_the_order_of_workers():
  def run(message):
    return collectives.gather(message, ('a', 'b'))

  for axis in ('b', 'a'):
    run = jax.vmap(run, out_axes=None, axis_name=axis)
  messages = jnp.arange(2 * 3 * 5).reshape(2, 3, 5)
  np.testing.assert_array_equal(run(messages), messages.reshape(6, 5))


@pytest.mark.parametrize('axis_type', [AXIS.Auto, AXIS.Explicit])
@pytest.mark.parametrize(
  'make',
  [
    lambda: sm.distributed_lion(0.1),
    lambda: sm.distributed_signum(0.1, aggregation='sign_mean'),
    lambda: sm.diloco(optax.adam(0.1), sync_every=2),
    lambda: sm.distributed_sign_momentum(optax.adam(0.1), 0.1, 2),
  ],
)
def test_a_momentum_does_not_hide_that_gradients_were_summed(make, axis_type):
  """The worker's own momentum varies, and so does its sum with anything."""
  tx = make()
  workers = sm.Workers(4, _mesh(axis_type))
  state = workers.init(tx, jnp.array(0.0))

  @workers.step
  def step(state, slope):
    shared = sm.synchronised(state.opt_state, state.params)
    gradient = jax.grad(lambda w: slope * w)(shared)
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  with pytest.raises(ValueError, match='as_local'):
    step(state, SLOPES)


def _methods():
  return {
    'distributed_lion': sm.distributed_lion(0.1),
    'aggregate_by_mean': optax.chain(
      sm.aggregate_by_mean('workers'), optax.sgd(0.1)
    ),
    'local_steps': sm.diloco(optax.sgd(0.1), sync_every=2),
  }


WRAPPERS = {
  'apply_if_finite': lambda tx: optax.apply_if_finite(tx, 3),
  'MultiSteps.update': lambda tx: optax.MultiSteps(
    tx,
    2,
    should_skip_update_fn=functools.partial(
      optax.skip_large_updates, max_squared_norm=1.0
    ),
  ).gradient_transformation(),
}


@pytest.mark.parametrize('method', _methods())
@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize('executor', ['vmap', 'checked', 'unchecked'])
def test_skipping_by_own_data_is_refused_before_anything_can_hang(
  method, wrapper, executor
):
  tx = WRAPPERS[wrapper](_methods()[method])

  def worker(gradient):
    return tx.update(gradient, tx.init(gradient), gradient)[0]

  def on_device(gradient):
    return worker(gradient[0])[None]

  if executor == 'vmap':
    run = jax.vmap(worker, axis_name='workers')
  else:
    run = jax.shard_map(
      on_device,
      mesh=_mesh(),
      in_specs=jax.P('workers'),
      out_specs=jax.P('workers'),
      check_vma=executor == 'checked',
    )
  with pytest.raises(ValueError, match=f'{wrapper}.*ignore_non_finite'):
    jax.jit(run)(SLOPES)


def test_multi_steps_without_skipping_is_fine():
  tx = optax.MultiSteps(sm.distributed_lion(0.5, weight_decay=0.0), 2)
  workers = sm.Workers(4)
  state = workers.init(tx.gradient_transformation(), jnp.array(0.0))

  @workers.step
  def step(state, gradient):
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  for expected in (0.0, -0.5, -0.5, -1.0):
    state, _ = step(state, SLOPES)
    assert float(state.params) == expected


def test_as_local_keeps_values_and_types_under_every_executor():
  tree = {'w': jnp.arange(3.0), 'none': None}
  simulated = jax.vmap(
    lambda _: sm.as_local(tree), axis_size=2, axis_name='workers', out_axes=None
  )
  jax.tree.map(np.testing.assert_array_equal, simulated(jnp.ones(2)), tree)
  with pytest.raises(NameError, match='workers'):
    sm.as_local(tree)
