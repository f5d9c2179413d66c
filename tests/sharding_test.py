"""An outer rule in shards: the same numbers, less memory, fewer bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm
from signmomentum import wire

pytestmark = pytest.mark.usefixtures('quick_compilation')

AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
SHAPES = {'matrix': (40, 128), 'odd': (5, 7), 'scalar': (), 'empty': (0, 3)}


def _mesh(n, kind):
  if kind is None:
    return None
  return jax.make_mesh((n,), ('workers',), (kind,), devices=jax.devices()[:n])


def _updates(n, dtype=np.float32, zeros=0.0):
  """Updates of every worker; ``zeros`` is the share that is 0 on all."""
  rng = np.random.default_rng(0)

  def leaf(shape):
    moves = rng.random(shape) >= zeros
    return (rng.normal(size=(n, *shape)) * moves).astype(dtype)

  return {name: leaf(shape) for name, shape in SHAPES.items()}


def _run(tx, n, kind, updates, steps=3, present=None):
  """The last updates and the state."""
  workers = sm.Workers(n, _mesh(n, kind))
  params = {k: np.ones(s, updates[k].dtype) for k, s in SHAPES.items()}
  state = workers.init(tx, params)

  @workers.step
  def step(state, inputs):
    update, here = inputs
    extra = {} if present is None else {'present': here}
    result, opt_state = tx.update(
      update, state.opt_state, state.params, **extra
    )
    result = sm.as_local(result)
    return state.replace(opt_state=opt_state), result

  here = np.ones(n, bool) if present is None else np.array(present)
  for _ in range(steps):
    state, result = step(state, (updates, here))
  return jax.device_get(result), state


def _whole():
  return optax.chain(
    sm.aggregate_by_mean('workers'), optax.scale_by_lion(0.9, 0.99)
  )


def _sharded():
  return sm.shard_over_workers(optax.scale_by_lion(0.9, 0.99), 'workers')


@pytest.mark.parametrize('kind', [None, AUTO, EXPLICIT])
@pytest.mark.parametrize('n', [1, 3, 8])
@pytest.mark.parametrize('zeros', [0.0, 0.3, 1.0])
def test_signs_are_the_same_bit_for_bit(n, kind, zeros):
  updates = _updates(n, zeros=zeros)
  whole, _ = _run(_whole(), n, kind, updates)
  sharded, _ = _run(_sharded(), n, kind, updates)
  jax.tree.map(np.testing.assert_array_equal, sharded, whole)


@pytest.mark.parametrize('zeros', [0.0, 0.3])
def test_what_is_not_a_number_shows(zeros):
  """As it does in the whole: the momentum will never be a number again."""
  updates = _updates(3, zeros=zeros)
  updates['matrix'][1, 7, 5] = np.nan
  updates['odd'][0, 2] = np.inf
  updates['odd'][1, 2] = -np.inf
  updates['scalar'][2] = np.nan
  whole, _ = _run(_whole(), 3, None, updates)
  sharded, _ = _run(_sharded(), 3, None, updates)
  assert sum(np.isnan(leaf[0]).sum() for leaf in whole.values()) == 9
  jax.tree.map(np.testing.assert_array_equal, sharded, whole)


def test_a_block_that_is_not_a_number_shows():
  updates = np.ones((3, 1024), np.float32)
  updates[1, 300] = np.nan
  tx = sm.shard_over_workers(sm.lion_momentum(), 'workers', bits=4)

  def worker(update):
    return tx.update(update, tx.init(update), update)[0]

  mean = jax.vmap(worker, out_axes=None, axis_name='workers')(updates)
  expected = np.ones(1024)
  expected[256:342] = np.nan  # the last block of what the first worker owns
  np.testing.assert_array_equal(mean, expected)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
def test_full_updates_are_those_of_the_whole(dtype):
  updates = _updates(4, dtype)
  rule = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9))
  whole = optax.chain(sm.aggregate_by_mean('workers'), rule)
  sharded = sm.shard_over_workers(rule, 'workers', gather='full')
  eps = float(jnp.finfo(dtype).eps)
  compare = functools.partial(np.testing.assert_allclose, rtol=0, atol=4 * eps)
  expected, _ = _run(whole, 4, None, updates)
  actual, _ = _run(sharded, 4, None, updates)
  for name, leaf in actual.items():
    assert leaf.dtype == dtype
    compare(leaf.astype(np.float32), expected[name].astype(np.float32))


def test_each_worker_holds_its_share_of_the_state():
  n = 8
  _, state = _run(_sharded(), n, AUTO, _updates(n))
  parts = {'matrix': (5, 128), 'odd': (5,), 'scalar': (1,), 'empty': (0,)}
  for name, part in parts.items():
    leaf = state.opt_state.mu[name]
    assert leaf.shape == (n, *part)
    if leaf.size:
      assert {s.data.shape for s in leaf.addressable_shards} == {(1, *part)}


def test_sends_33_bits():
  n, params = 8, jnp.zeros((512, 512))
  for gather, bits in (('signs', 33 + 1 / 128), ('full', 64)):
    tx = sm.shard_over_workers(sm.lion_momentum(), 'workers', gather)
    workers = sm.Workers(n, _mesh(n, AUTO))
    state = workers.init(tx, params)

    @workers.step
    def step(state, update, tx=tx):
      result, opt_state = tx.update(update, state.opt_state, state.params)
      return state.replace(opt_state=opt_state), sm.as_local(result)

    compiled = step.lower(state, jnp.zeros((n, *params.shape))).compile()
    always = [c for c in wire.collectives(compiled) if not c.conditional]
    sent = 8 * sum(c.sent_bytes for c in always) / params.size
    # and a flag of 32 bits: whether there are zeros to say more about
    flag = 64 * (gather == 'signs') / params.size
    np.testing.assert_allclose(sent, (bits + flag) * (n - 1) / n, rtol=1e-9)


@pytest.mark.parametrize('bits', [8, 4, 2])
def test_sends_few_bits_and_one_more(bits):
  n, params = 4, jnp.zeros((512, 512))
  tx = sm.shard_over_workers(sm.lion_momentum(), 'workers', bits=bits)
  workers = sm.Workers(n, _mesh(n, AUTO))
  state = workers.init(tx, params)

  @workers.step
  def step(state, update):
    result, opt_state = tx.update(update, state.opt_state, state.params)
    return state.replace(opt_state=opt_state), sm.as_local(result)

  compiled = step.lower(state, jnp.zeros((n, *params.shape))).compile()
  always = [c for c in wire.collectives(compiled) if not c.conditional]
  sent = 8 * sum(c.sent_bytes for c in always) / params.size
  expected = bits + 16 / 128 + 1 + 1 / 128 + 64 / params.size
  np.testing.assert_allclose(sent, expected * (n - 1) / n, rtol=1e-9)


@pytest.mark.parametrize('present', [None, [True, False, True, True]])
def test_mean_of_few_bits_is_not_rounded_again(present):
  """It is a third or a quarter of a level that all have in common."""
  levels = np.random.default_rng(0).integers(-7, 8, (4, 300)) / 4
  levels[:, ::3] = 7 / 4  # some in each block, whose scale is then 1/4
  here = np.ones(4, bool) if present is None else np.array(present)
  updates = np.where(here[:, None], levels, np.nan).astype(np.float32)
  tx = sm.shard_over_workers(optax.identity(), 'workers', 'full', bits=4)

  def worker(update, here):
    here = None if present is None else here
    return tx.update(update, tx.init(update), present=here)[0]

  mean = jax.vmap(worker, out_axes=None, axis_name='workers')(updates, here)
  np.testing.assert_allclose(mean, levels[here].mean(0), rtol=1e-6)


def test_bits_are_right_in_expectation_and_drawn_anew():
  updates = _updates(4)
  tx = sm.shard_over_workers(optax.identity(), 'workers', 'full', bits=2)
  steps = 2000

  def worker(updates):
    def step(state, _):
      result, state = tx.update(updates, state)
      return state, result

    return jax.lax.scan(step, tx.init(updates), length=steps)[1]

  results = jax.jit(jax.vmap(worker, 0, None, axis_name='workers'))(updates)
  for name, leaf in updates.items():
    off = np.mean(results[name], axis=0) - leaf.mean(axis=0)
    scale = np.abs(leaf).max(initial=0) * 129 / 128
    assert np.all(np.abs(off) < 5 * np.sqrt(scale**2 / 4 / 4 / steps))
  assert np.ptp(results['matrix'], axis=0).min() > 0


def test_absent_workers_do_not_count():
  updates = _updates(4)
  poisoned = jax.tree.map(np.copy, updates)
  for leaf in poisoned.values():
    leaf[2] = np.nan
  present = [True, True, False, True]
  args = {'present': present}
  whole, _ = _run(_whole(), 4, None, poisoned, **args)
  sharded, _ = _run(_sharded(), 4, None, poisoned, **args)
  assert np.all(np.isfinite(whole['matrix']))
  jax.tree.map(np.testing.assert_array_equal, sharded, whole)


def test_the_rule_sees_its_part_of_the_parameters():
  params = jnp.arange(10.0)
  tx = sm.shard_over_workers(optax.add_decayed_weights(2.0), 'workers', 'full')

  def decay(update):
    return tx.update(update, tx.init(params), params)[0]

  updates = jnp.ones((4, 10))
  decayed = jax.vmap(decay, out_axes=None, axis_name='workers')(updates)
  np.testing.assert_array_equal(decayed, 1 + 2 * params)


def test_state_made_of_parameters_starts_with_them():
  params = jnp.arange(10.0)
  remembers = optax.GradientTransformation(
    lambda params: params, lambda u, s, p=None: (s, s)
  )
  tx = sm.shard_over_workers(remembers, 'workers', 'full')
  for kind in (None, AUTO, EXPLICIT):
    workers = sm.Workers(4, _mesh(4, kind))
    state = workers.init(tx, params)
    rows = np.asarray(state.opt_state)
    np.testing.assert_array_equal(rows.reshape(-1)[:10], params)


def test_derivatives_are_those_of_the_mean():
  def derivative(tx):
    def square(update):
      return jnp.sum(tx.update(update, tx.init(update), update)[0] ** 2)

    return jax.vmap(jax.grad(square), axis_name='workers')

  updates = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)
  sharded = sm.shard_over_workers(optax.identity(), 'workers', 'full')
  expected = derivative(sm.aggregate_by_mean('workers'))(updates)
  assert np.any(expected)
  actual = derivative(sharded)(updates)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_init_must_know_the_workers():
  with pytest.raises(NameError) as error:
    _sharded().init(jnp.ones(3))
  assert 'signmomentum.Workers' in ''.join(error.value.__notes__)


def test_unknown_gather():
  with pytest.raises(ValueError, match="gather must be one of .*'signs'"):
    sm.shard_over_workers(optax.sgd(0.1), 'workers', gather='half')


def test_bad_bits():
  with pytest.raises(ValueError, match=r'one of \[2, 4, 8\], not 3'):
    sm.shard_over_workers(optax.sgd(0.1), 'workers', bits=3)
  with pytest.raises(ValueError, match='bits=4 needs'):
    sm.distributed_sign_momentum(
      optax.sgd(0.1), 0.1, 2, aggregation='majority_vote', bits=4
    )


def test_a_summed_gradient_is_refused():
  workers = sm.Workers(2, _mesh(2, AUTO))
  tx = _sharded()
  state = workers.init(tx, jnp.ones(3))

  @workers.step
  def step(state, x):
    gradient = jax.grad(lambda p: jnp.sum(p * x))(state.params)  # no as_local
    _, opt_state = tx.update(gradient, state.opt_state, state.params)
    return state.replace(opt_state=opt_state), ()

  with pytest.raises(ValueError, match='as_local'):
    step(state, jnp.ones((2, 3)))
