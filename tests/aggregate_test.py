"""What workers get back: votes and means, zeros and ties, who is there."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')

VOTES = [sm.aggregate_by_majority_vote, sm.aggregate_by_sign_mean]
SIZES = [0, 1, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1000]


def _aggregate(tx, updates, present=None, steps=1):
  """Aggregates updates with a leading axis; all workers get the same."""

  def worker(updates, present):
    state = tx.init(updates)
    results = []
    for _ in range(steps):
      result, state = tx.update(updates, state, present=present)
      results.append(result)
    return jax.tree.map(lambda *r: jnp.stack(r), *results)

  axes = (0, None if present is None else 0)
  run = jax.vmap(worker, axes, None, axis_name='workers')
  result = jax.jit(run)(updates, None if present is None else np.array(present))
  return jax.tree.map(lambda r: np.asarray(r[0] if steps == 1 else r), result)


def _tree(n, seed):
  """Numbers of which a third are zero, some of them negative zero."""
  rng = np.random.default_rng(seed)

  def leaf(shape):
    return (rng.integers(-1, 2, (n, *shape)) * -0.5).astype(np.float32)

  shapes = {f'size {size}': (size,) for size in SIZES}
  shapes |= {'scalar': (), 'matrix': (40, 256), 'empty': (3, 0, 2)}
  return {name: leaf(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize('n', range(1, 10))
def test_exact_votes_equal_the_dense_ones_element_by_element(n):
  tree = _tree(n, seed=n)
  vote = _aggregate(sm.aggregate_by_majority_vote('workers', 'exact'), tree)
  mean = _aggregate(sm.aggregate_by_sign_mean('workers', 'exact'), tree)
  for name, leaf in tree.items():
    total = np.sign(leaf).sum(0)
    np.testing.assert_array_equal(vote[name], np.sign(total), err_msg=name)
    np.testing.assert_allclose(mean[name], total / n, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize('n', [49, 127, 128, 255, 256, 300])
def test_counts_are_right_for_many_workers(n):
  rng = np.random.default_rng(n)
  updates = rng.choice([-1, 0, 1], (n, 70)).astype(np.float32)
  updates[:, 0] = 1  # the largest count
  updates[:, 1] = -1
  for dtype in (jnp.float32, jnp.bfloat16):
    leaf = jnp.asarray(updates, dtype)
    mean = _aggregate(sm.aggregate_by_sign_mean('workers', 'exact'), leaf)
    assert mean.dtype == dtype
    expected = jnp.asarray(updates.sum(0) / n, dtype)  # rounded once
    np.testing.assert_allclose(
      mean.astype(np.float32), np.asarray(expected, np.float32), rtol=1e-6
    )
  vote = _aggregate(sm.aggregate_by_majority_vote('workers', 'exact'), updates)
  np.testing.assert_array_equal(vote, np.sign(updates.sum(0)))


@pytest.mark.parametrize('zeros', ['block', 'coin'])
@pytest.mark.parametrize('n', [1, 2, 3, 8])
def test_one_bit_votes_equal_the_dense_ones_where_nothing_is_zero(n, zeros):
  tree = jax.tree.map(lambda x: np.where(x == 0, 1, x), _tree(n, seed=n))
  vote = _aggregate(sm.aggregate_by_majority_vote('workers', zeros), tree)
  mean = _aggregate(sm.aggregate_by_sign_mean('workers', zeros), tree)
  for name, leaf in tree.items():
    total = np.sign(leaf).sum(0)
    decided = total != 0
    np.testing.assert_array_equal(
      vote[name][decided], np.sign(total)[decided], err_msg=name
    )
    assert (np.abs(vote[name]) == 1).all(), name
    np.testing.assert_allclose(mean[name], total / n, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize('zeros', ['block', 'exact'])
@pytest.mark.parametrize('n', [3, 4])
def test_an_idle_leaf_stays_bit_identical_for_1000_steps(n, zeros):
  """Zero gradient and zero momentum, also as -0.0, beside a leaf that moves."""
  tx = sm.distributed_lion(1e-2, weight_decay=0.0, zeros=zeros)
  params = {'idle': jnp.linspace(-1, 1, 130), 'moves': jnp.zeros(3)}

  def worker(index):
    gradients = {
      'idle': jnp.where(index % 2, -0.0, 0.0) * jnp.ones(130),
      'moves': jnp.ones(3),
    }

    def step(_, carry):
      params, state = carry
      updates, state = tx.update(gradients, state, params)
      return optax.apply_updates(params, updates), state

    carry = params, sm_local(tx.init(params))
    return jax.lax.fori_loop(0, 1000, step, carry)[0]

  def sm_local(state):
    return sm.as_local(state, 'workers')

  run = jax.jit(jax.vmap(worker, 0, None, axis_name='workers'))
  after = run(jnp.arange(n))
  np.testing.assert_array_equal(after['idle'], params['idle'])
  np.testing.assert_allclose(after['moves'], -10.0, rtol=1e-3)


def test_two_against_two():
  """A tie: exactly zero, or a coin that is fair, shared and reproducible."""
  updates = np.ones((4, 4096), np.float32) * [[1], [1], [-1], [-1]]
  exact = _aggregate(sm.aggregate_by_majority_vote('workers', 'exact'), updates)
  assert (exact == 0).all()
  for zeros in ('block', 'coin'):
    tx = sm.aggregate_by_majority_vote('workers', zeros, seed=3)
    coins = _aggregate(tx, updates, steps=2)  # out_axes=None: shared
    assert (np.abs(coins) == 1).all()
    # 8192 coins: 5 standard errors are 5 / sqrt(8192)
    assert abs(coins.mean()) < 0.056
    assert abs((coins[0] * coins[1]).mean()) < 5 / np.sqrt(4096)
    np.testing.assert_array_equal(coins, _aggregate(tx, updates, steps=2))
    other = sm.aggregate_by_majority_vote('workers', zeros, seed=4)
    assert (coins[0] != _aggregate(other, updates)).any()


def test_a_zero_in_a_block_that_moves_gets_each_workers_own_coin():
  updates = np.zeros((3, 4096), np.float32)
  updates[:, ::128] = 1.0  # one element of each block
  for zeros in ('block', 'coin'):
    mean = _aggregate(sm.aggregate_by_sign_mean('workers', zeros), updates)
    assert (mean[::128] == 1).all()
    coins = np.delete(mean, np.s_[::128])
    # the mean of three independent coins takes all four values
    assert len(np.unique(coins)) == 4
    assert abs(coins.mean()) < 5 / np.sqrt(3 * coins.size)


def test_a_worker_that_abstains_is_not_counted():
  """Two of five are for plus and one for minus; two have nothing to say."""
  updates = np.ones((5, 256), np.float32) * [[1], [1], [-1], [0], [0]]
  for zeros in ('block', 'exact'):
    vote = _aggregate(sm.aggregate_by_majority_vote('workers', zeros), updates)
    assert (vote == 1).all(), zeros
    mean = _aggregate(sm.aggregate_by_sign_mean('workers', zeros), updates)
    np.testing.assert_allclose(mean, 0.2, rtol=1e-6)  # of all five


@pytest.mark.parametrize('zeros', ['block', 'exact', 'coin'])
def test_those_present_decide(zeros):
  updates = np.ones((4, 300), np.float32) * [[3], [1], [-9], [-9]]
  updates[2] = np.nan  # who is absent may hold anything
  vote = sm.aggregate_by_majority_vote('workers', zeros)
  sign_mean = sm.aggregate_by_sign_mean('workers', zeros)
  mean = sm.aggregate_by_mean('workers')
  some = [True, True, False, True]
  assert (_aggregate(vote, updates, some) == 1).all()
  np.testing.assert_allclose(_aggregate(sign_mean, updates, some), 1 / 3)
  np.testing.assert_allclose(_aggregate(mean, updates, some), -5 / 3)
  for tx in (vote, sign_mean, mean):
    assert (_aggregate(tx, updates, [False] * 4) == 0).all()
  updates[2] = 1.0
  everybody = [True] * 4
  assert (_aggregate(vote, updates, everybody) == 1).all()
  np.testing.assert_allclose(_aggregate(sign_mean, updates, everybody), 0.5)
  np.testing.assert_allclose(_aggregate(mean, updates, everybody), -1.0)
  ties = _aggregate(vote, updates, [True, False, False, True])
  assert (ties == 0).all() if zeros == 'exact' else (np.abs(ties) == 1).all()


def test_a_step_without_anybody_changes_nothing_at_all():
  tx = sm.distributed_lion(
    optax.linear_schedule(1.0, 0.0, 10), weight_decay=0.5
  )
  params = jnp.array([1.0, 2.0])
  workers = sm.Workers(4)
  state = workers.init(tx, params)

  @workers.step
  def step(state, inputs):
    gradient, present = inputs
    updates, opt_state = tx.update(
      gradient, state.opt_state, state.params, present=present
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  gradients = jnp.ones((4, 2))
  state, _ = step(state, (gradients, jnp.array([True, True, False, True])))
  before = jax.tree.map(np.array, state)
  state, _ = step(state, (gradients, jnp.zeros(4, bool)))
  jax.tree.map(np.testing.assert_array_equal, state, before)
  state, _ = step(state, (gradients, jnp.ones(4, bool)))
  assert (state.params < before.params).all()


@pytest.mark.parametrize('vote', VOTES)
def test_nan_counts_as_zero(vote):
  updates = np.ones((3, 4), np.float32)
  updates[0, 0] = np.nan
  result = _aggregate(vote('workers', 'exact'), updates)
  np.testing.assert_allclose(result[1:], 1.0)
  assert np.isfinite(result).all()
  assert result[0] > 0


@pytest.mark.parametrize(
  'dtype', [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32]
)
def test_dtypes_are_kept_and_integers_left_alone(dtype):
  tree = {'x': jnp.ones((3, 5), dtype), 'y': jnp.ones((3, 2)), 'none': None}
  for tx in (
    sm.aggregate_by_mean('workers'),
    sm.aggregate_by_majority_vote('workers'),
    sm.aggregate_by_sign_mean('workers'),
  ):
    run = jax.vmap(
      lambda u, tx=tx: tx.update(u, tx.init(u))[0], axis_name='workers'
    )
    result = run(tree)
    assert result['x'].dtype == dtype
    assert result['none'] is None
    np.testing.assert_array_equal(result['x'], tree['x'])


def test_float64_keeps_its_dtype():
  with jax.enable_x64(True):
    updates = np.array([[1.0], [1.0], [-4.0]])
    vote = _aggregate(sm.aggregate_by_sign_mean('workers'), updates)
    assert vote.dtype == np.float64
    np.testing.assert_allclose(vote, 1 / 3, rtol=1e-7)


def test_float0_leaves_are_left_alone():
  def worker(x):
    params = {'w': x, 'step': jnp.int32(1)}
    loss = lambda p: jnp.sum(p['w'] ** 2)  # noqa: E731
    gradients = jax.grad(loss, allow_int=True)(params)
    tx = sm.distributed_lion(0.1, weight_decay=0.0)
    updates, _ = tx.update(gradients['w'], tx.init(x), x)
    tx = optax.chain(
      sm.lion_momentum(), sm.aggregate_by_majority_vote('workers')
    )
    everything, _ = tx.update(gradients, tx.init(params), params)
    assert everything['step'].dtype == jax.dtypes.float0
    return updates, everything['w']

  update, vote = jax.vmap(worker, axis_name='workers')(jnp.ones((3, 2)))
  np.testing.assert_allclose(update, -0.1 * np.ones((3, 2)), rtol=1e-6)
  np.testing.assert_array_equal(vote, np.ones((3, 2)))


def test_a_bf16_wire_rounds_what_travels():
  updates = np.array([[1.0], [1.0 + 2.0**-10]], np.float32)
  tx = sm.aggregate_by_mean('workers', wire_dtype=jnp.bfloat16)
  result = _aggregate(tx, updates)
  assert result.dtype == np.float32
  np.testing.assert_array_equal(result, [1.0])


@pytest.mark.parametrize(
  'wire_dtype, dtype',
  [
    (jnp.bfloat16, jnp.float32),
    (jnp.float16, jnp.float32),
    (None, jnp.bfloat16),
    (None, jnp.float16),
  ],
)
def test_16_bits_are_sent_as_16_bits(wire_dtype, dtype):
  tx = sm.aggregate_by_mean('workers', wire_dtype)
  n, params = 4, {str(i): jnp.zeros(i, dtype) for i in range(100)}
  mesh = jax.make_mesh(
    (n,), ('workers',), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:n]
  )
  run = jax.shard_map(
    lambda updates: tx.update(sm.as_local(updates), tx.init(updates))[0],
    mesh=mesh,
    in_specs=jax.P(),
    out_specs=jax.P(),
  )
  compiled = jax.jit(run).lower(params).compile()
  found = sm.wire.collectives(compiled)
  assert [c.kind for c in found] == ['all-to-all', 'all-gather']
  sent = 2 * 16 * sum(-(-i // n) for i in range(100)) * (n - 1)
  assert 8 * sum(c.sent_bytes for c in found) == sent


@pytest.mark.parametrize('wire_dtype', [None, jnp.bfloat16])
def test_16_bits_are_added_up_in_f32(wire_dtype):
  """Nothing but the mean is rounded: bf16 has these numbers, not their sum."""
  numbers = np.random.default_rng(0).integers(-255, 256, (7, 1000))
  updates = numbers.astype(np.float32 if wire_dtype else jnp.bfloat16)
  result = _aggregate(sm.aggregate_by_mean('workers', wire_dtype), updates)
  mean = (numbers.sum(axis=0) / np.float32(7)).astype(np.float32)
  expected = mean.astype(jnp.bfloat16).astype(np.float32)
  np.testing.assert_array_equal(result.astype(np.float32), expected)


def test_bad_arguments_are_refused_when_built():
  for vote in VOTES:
    with pytest.raises(ValueError, match="'block', 'coin', 'exact'"):
      vote('workers', zeros='fair')
    with pytest.raises(ValueError, match='seed must be'):
      vote('workers', seed=-1)
    with pytest.raises(TypeError, match='seed must be an int'):
      vote('workers', seed=0.5)
  for dtype in (jnp.int8, jnp.complex64, jnp.float8_e5m2, jnp.float8_e4m3fn):
    with pytest.raises(ValueError, match='wire_dtype must be a floating'):
      sm.aggregate_by_mean('workers', wire_dtype=dtype)
  with pytest.raises(ValueError, match=r"\['majority_vote', 'sign_mean'\]"):
    sm.distributed_lion(0.1, aggregation='mean')
  with pytest.raises(ValueError, match="'majority_vote', 'mean', 'shard"):
    sm.distributed_sign_momentum(
      optax.sgd(0.1), 0.1, 2, aggregation='sign_mean'
    )


def test_complex_is_refused_with_its_path():
  with pytest.raises(TypeError, match=r"\['w'\].*complex64"):
    _aggregate(
      sm.aggregate_by_majority_vote('workers'),
      {'w': np.ones((2, 3), np.complex64)},
    )


def test_the_mean_of_large_float16_numbers_does_not_overflow():
  updates = jnp.full((8, 2), 10_000, jnp.float16)
  result = _aggregate(sm.aggregate_by_mean('workers'), updates)
  np.testing.assert_allclose(result, 10_000, rtol=2e-3)  # of its 11 bits
  narrow = sm.aggregate_by_mean('workers', wire_dtype=jnp.float16)
  result = _aggregate(narrow, updates.astype(jnp.float32))
  np.testing.assert_allclose(result, 10_000, rtol=2e-3)


def test_coins_do_not_depend_on_the_default_random_generator():
  updates = np.ones((2, 256), np.float32) * [[1], [-1]]
  tx = sm.aggregate_by_majority_vote('workers')
  coins = _aggregate(tx, updates)
  with jax.default_prng_impl('rbg'):
    np.testing.assert_array_equal(_aggregate(tx, updates), coins)


def test_present_must_be_a_scalar():
  for tx in (
    sm.aggregate_by_mean('workers'),
    sm.aggregate_by_majority_vote('workers'),
  ):
    with pytest.raises(ValueError, match=r'present must be a scalar.*\(1,\)'):
      _aggregate(tx, np.ones((2, 3), np.float32), present=[[True], [False]])


AGGREGATORS = {
  'mean': sm.aggregate_by_mean('workers'),
  'vote': sm.aggregate_by_majority_vote('workers'),
  'sign_mean': sm.aggregate_by_sign_mean('workers'),
  'quantized': sm.aggregate_by_quantized_mean('workers'),
  'ternary': sm.aggregate_by_ternary_mean('workers', None),
  'top_k': sm.aggregate_by_top_k('workers', 1.0),
  'sharded': sm.shard_over_workers(optax.identity(), 'workers'),
  'averaged': sm.with_state_averaging(optax.identity(), 1, 'workers'),
}


@pytest.mark.parametrize('present', [[3, 3], [0.5, 1.0], [-1, 1], [1, 0]])
@pytest.mark.parametrize('name', AGGREGATORS)
def test_present_must_be_a_bool(name, present):
  """A mean would take another number for a weight, and a vote for a flag."""
  with pytest.raises(TypeError, match='present must be a bool'):
    _aggregate(AGGREGATORS[name], np.ones((2, 3), np.float32), present)


@pytest.mark.parametrize(
  'present', [True, np.True_, np.array(True), jnp.array(True)]
)
@pytest.mark.parametrize('name', ['mean', 'vote'])
def test_present_may_be_any_kind_of_bool(name, present):
  tx = AGGREGATORS[name]

  def worker(update):
    return tx.update(update, tx.init(update), present=present)[0]

  run = jax.vmap(worker, out_axes=None, axis_name='workers')
  np.testing.assert_array_equal(jax.jit(run)(jnp.ones((2, 3))), 1)


def test_float16_on_the_wire_has_its_range():
  tx = sm.aggregate_by_mean('workers', jnp.float16)
  result = _aggregate(tx, np.array([[70_000.0, 1e-9]] * 2, np.float32))
  np.testing.assert_array_equal(result, [np.inf, 0])


DECAYING = {
  'distributed_lion': sm.distributed_lion(0.1, weight_decay=0.5),
  'distributed_signum': sm.distributed_signum(0.1, weight_decay=0.5),
  'terngrad': sm.terngrad(0.1, weight_decay=0.5),
  'graddrop': sm.graddrop(0.1, weight_decay=0.5),
  'deep_gradient_compression': sm.deep_gradient_compression(
    0.1, weight_decay=0.5
  ),
  'masked': sm.distributed_lion(
    0.1, weight_decay=0.5, mask={'w': True, 'n': True, 'empty': False}
  ),
  'diloco': sm.diloco(optax.adamw(0.1, weight_decay=0.5), 1),
  **{
    f'distributed_sign_momentum {aggregation}': sm.distributed_sign_momentum(
      optax.adamw(0.1), 0.1, 1, weight_decay=0.5, aggregation=aggregation
    )
    for aggregation in ('mean', 'majority_vote')
  },
}


@pytest.mark.parametrize('kind, devices', [('float0', False), ('zeros', True)])
@pytest.mark.parametrize('name', DECAYING)
def test_integer_leaves_are_left_alone_by_every_method(name, kind, devices):
  """Also by its decay; their gradient is float0, as of jax.grad, or zeros."""
  tx = DECAYING[name]
  params = {
    'w': jnp.full(3, 9.0),
    'n': jnp.array([100, 7]),
    'empty': jnp.zeros((0, 2), jnp.int8),
  }
  mesh = jax.make_mesh(
    (2,), ('workers',), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
  )
  workers = sm.Workers(2, mesh if devices else None)
  state = workers.init(tx, params)

  @workers.step
  def step(state, slope):
    loss = lambda p: jnp.sum(slope * p['w'])  # noqa: E731
    params = sm.as_local(state.params)
    if kind == 'float0':
      gradients = jax.grad(loss, allow_int=True)(params)
      assert gradients['n'].dtype == jax.dtypes.float0
    else:
      gradients = jax.tree.map(jnp.zeros_like, params)
      gradients['w'] = jnp.full(3, slope)
    updates, opt_state = tx.update(
      gradients, state.opt_state, state.params, present=jnp.array(True)
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  for _ in range(2):
    state, _ = step(state, jnp.array([1.0, 2.0]))
  after = sm.synchronised(state.opt_state, state.params)
  np.testing.assert_array_equal(after['n'], params['n'])
  assert after['n'].dtype == params['n'].dtype
  assert after['empty'].dtype == jnp.int8
  assert (after['w'] < 9).any()


@pytest.mark.parametrize('clip_factor', [None, 2.5])
@pytest.mark.parametrize('bad', [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_shows_in_a_ternary_mean(bad, clip_factor):
  # where it is compiled well, XLA on CPU drops NaN from a maximum
  tx = sm.aggregate_by_ternary_mean('workers', clip_factor)
  updates = {'w': jnp.ones((2, 4000)).at[1, 3].set(bad), 'b': jnp.ones((2, 3))}

  @jax.jit
  def mean(updates):
    return jax.vmap(
      lambda update: tx.update(update, tx.init(update))[0],
      axis_name='workers',
      out_axes=None,
    )(updates)

  result = mean(updates)
  assert jnp.all(jnp.isnan(result['w']))
  assert jnp.all(result['b'] == 1)
