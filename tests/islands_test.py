"""Workers that are islands of devices, with a model that lies in pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')

AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
SHAPE = (66, 128)  # whole tiles, and a rest
SPECS = {  # which axis of a leaf is in pieces
  'rows': jax.P('model', None),
  'columns': jax.P(None, 'model'),
  'bias': jax.P(),
}
AXIS = 'workers'
AGGREGATORS = {
  'mean': lambda: sm.aggregate_by_mean(AXIS),
  'mean in 16 bits': lambda: sm.aggregate_by_mean(AXIS, jnp.bfloat16),
  'quantized mean': lambda: sm.aggregate_by_quantized_mean(AXIS, 4),
  'majority vote': lambda: sm.aggregate_by_majority_vote(AXIS),
  'exact vote': lambda: sm.aggregate_by_majority_vote(AXIS, 'exact'),
  'sign mean': lambda: sm.aggregate_by_sign_mean(AXIS),
  'ternary mean': lambda: sm.aggregate_by_ternary_mean(AXIS),
  'randomized vote': lambda: optax.chain(
    optax.clip(1.0),
    sm.scale_by_randomized_sign(1.0, seed=0, axis_name=AXIS),
    sm.aggregate_by_majority_vote(AXIS, seed=1),
  ),
  'top k': lambda: sm.aggregate_by_top_k(AXIS, 0.1),
  'shards': lambda: sm.shard_over_workers(sm.lion_momentum(), AXIS),
  'full shards': lambda: sm.shard_over_workers(optax.sgd(1.0), AXIS, 'full'),
  'shards of 4 bits': lambda: sm.shard_over_workers(
    sm.lion_momentum(), AXIS, bits=4
  ),
}


def _mesh(kind):
  return jax.make_mesh((4, 2), (AXIS, 'model'), (kind,) * 2)


def _updates():
  rng = np.random.default_rng(0)

  def leaf(shape):
    moves = rng.random(shape) > 0.3
    return (rng.normal(size=(4, *shape)) * moves).astype(np.float32)

  return {'rows': leaf(SHAPE), 'columns': leaf(SHAPE), 'bias': leaf((6,))}


def _aggregated(tx, workers, updates):
  """The state after one update, and the update."""
  params = jax.tree.map(lambda x: jnp.ones(x.shape[1:]), updates)
  if workers.mesh is not None:
    put = lambda x, spec: jax.device_put(  # noqa: E731
      x, jax.NamedSharding(workers.mesh, spec)
    )
    params = {k: put(x, SPECS[k]) for k, x in params.items()}
    updates = {k: put(x, jax.P(AXIS, *SPECS[k])) for k, x in updates.items()}
  state = workers.init(tx, params)

  @workers.step
  def step(state, updates):
    result, opt_state = tx.update(updates, state.opt_state, state.params)
    params = optax.apply_updates(state.params, result)
    new = state.replace(params=params, opt_state=opt_state)
    return new, sm.as_local(result)

  state, result = step(state, updates)
  return state, jax.device_get(result)


@pytest.mark.parametrize('kind', [AUTO, EXPLICIT])
@pytest.mark.parametrize('name', AGGREGATORS)
def test_islands_agree_as_single_devices_do(name, kind):
  updates = _updates()
  _, expected = _aggregated(AGGREGATORS[name](), sm.Workers(4), updates)
  workers = sm.Workers(4, _mesh(kind))
  state, result = _aggregated(AGGREGATORS[name](), workers, updates)
  for leaf, other in result.items():
    np.testing.assert_allclose(other, expected[leaf], rtol=0, atol=1e-6)
  if kind == EXPLICIT:
    for leaf, param in state.params.items():
      place = jax.NamedSharding(workers.mesh, SPECS[leaf])
      assert param.sharding.is_equivalent_to(place, param.ndim)


@pytest.mark.parametrize('kind', [AUTO, EXPLICIT])
@pytest.mark.parametrize('aggregation', ['mean', 'sharded_mean'])
def test_state_lies_like_parameters_from_the_start(aggregation, kind):
  """Also what is beside a rule that has a part of each leaf."""
  tx = sm.distributed_sign_momentum(
    optax.adam(0.1), 0.1, 1, aggregation=aggregation
  )
  mesh = _mesh(kind)
  place = jax.NamedSharding(mesh, SPECS['columns'])
  params = {'matrix': jax.device_put(jnp.zeros(SHAPE), place)}
  params |= {'vector': jnp.zeros(3), 'scalar': jnp.zeros(())}
  workers = sm.Workers(4, mesh)
  state = workers.init(tx, params)
  anchor = state.opt_state.anchor['matrix']
  momentum = state.opt_state.inner[0].mu['matrix']
  half = SHAPE[0], SHAPE[1] // 2
  assert anchor.addressable_shards[0].data.shape == half
  assert momentum.addressable_shards[0].data.shape == (1, *half)

  @workers.step
  def step(state, slope):
    params = state.params
    updates, opt_state = tx.update(
      jax.tree.map(lambda p: p + slope, params), state.opt_state, params
    )
    params = optax.apply_updates(params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  for _ in range(3):
    state, _ = step(state, jnp.ones(4))
  assert step._cache_size() == 1


@pytest.mark.parametrize('kind', [AUTO, EXPLICIT])
@pytest.mark.parametrize(
  'name, bits',
  [
    ('mean in 16 bits', 32),
    ('majority vote', 2 + 2 / 128),
    ('shards', 33 + 1 / 128),
    ('full shards', 64),
  ],
)
def test_each_device_sends_its_piece(name, bits, kind):
  workers = sm.Workers(4, _mesh(kind))
  tx, params = AGGREGATORS[name](), jnp.ones((512, 256))
  size = params.size
  lie = jax.NamedSharding(workers.mesh, SPECS['rows'])
  state = workers.init(tx, jax.device_put(params, lie))
  lie = jax.NamedSharding(workers.mesh, jax.P(AXIS, *SPECS['rows']))
  updates = jax.device_put(jnp.ones((4, *params.shape)), lie)

  @workers.step
  def step(state, update):
    result, opt_state = tx.update(update, state.opt_state, state.params)
    params = optax.apply_updates(state.params, result)
    return state.replace(params=params, opt_state=opt_state), ()

  compiled = step.lower(state, updates).compile()
  sent = 8 * sum(
    collective.sent_bytes
    for collective in sm.wire.collectives(compiled)
    # others are within a worker; a short one is whether there are zeros
    if collective.group_size == 4
    and collective.bytes > 4
    and not collective.conditional
  )
  np.testing.assert_allclose(sent / size, bits * 3 / 4 / 2, rtol=0.01)
