"""Theorems of the papers, for any gradients and whoever the workers are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problem
import pytest
import table

import signmomentum as sm
from signmomentum import signs

pytestmark = pytest.mark.usefixtures('quick_compilation')

F64 = {'rtol': 1e-13, 'atol': 1e-13}
RATE = 0.05

# Phase I of Distributed Lion (Theorem 3.4): whatever the gradients are, the
# distance from the box |decay * x| <= 1 shrinks by 1 - rate * decay in each
# step, in any norm, and what is inside stays there. The same holds for the
# shared point of Distributed Sign Momentum, in each round.

WORKERS, STEPS, SYNC_EVERY = 4, 30, 3
DECAY, BOX = 0.5, 2.0
START = np.float32(
  [*np.linspace(-BOX, BOX, 17), 2.001, -2.1, 2.5, -3, 4, -10, 30, -30]
)


def warm_up(t):
  """A rate that is not the same in all steps; the first ones are 0."""
  return 0.02 * (t > 2) * (1 + t % 4)


BY_STEP = {
  f'lion, {aggregation}, {zeros}': sm.distributed_lion(
    warm_up, weight_decay=DECAY, aggregation=aggregation, zeros=zeros
  )
  for aggregation in ('majority_vote', 'sign_mean')
  for zeros in signs.ZEROS
} | {'signum': sm.distributed_signum(warm_up, 0.9, DECAY)}
rounds = functools.partial(
  sm.distributed_sign_momentum,
  inner=optax.sgd(warm_up),
  learning_rate=warm_up,
  sync_every=SYNC_EVERY,
  outer_learning_rate=1.5,
  weight_decay=DECAY,
)
BY_ROUND = {
  'rounds, mean': optax.chain(sm.ignore_non_finite(), rounds()),
  'rounds, sharded': optax.chain(
    sm.ignore_non_finite(), rounds(aggregation='sharded_mean')
  ),
  'rounds, vote': rounds(aggregation='majority_vote'),
  'rounds, feedback': rounds(aggregation='majority_vote', error_feedback=True),
}

GRADIENTS = {
  'random': lambda draw, t, x: draw.normal(size=(WORKERS, x.size)),
  'huge': lambda draw, t, x: 1e30 * draw.normal(size=(WORKERS, x.size)),
  'tiny': lambda draw, t, x: 1e-30 * draw.normal(size=(WORKERS, x.size)),
  'alternating': lambda draw, t, x: np.full((WORKERS, x.size), (-1.0) ** t),
  'opposed': lambda draw, t, x: np.outer([1, 1, -1, -1], np.ones(x.size)),
  'zero': lambda draw, t, x: np.zeros((WORKERS, x.size)),
  'outwards': lambda draw, t, x: np.outer(np.ones(WORKERS), -1e6 * x),
  # the last, which a mean takes only behind `ignore_non_finite`
  'not finite': lambda draw, t, x: np.where(
    draw.random((WORKERS, x.size)) < 0.1,
    draw.choice([np.nan, np.inf, -np.inf], (WORKERS, x.size)),
    draw.normal(size=(WORKERS, x.size)),
  ),
}


@functools.cache
def compiled(name):
  """A step, and the state that it starts with, on the host."""
  tx = (BY_STEP | BY_ROUND)[name]
  workers = sm.Workers(WORKERS)
  state = workers.init(tx, jnp.asarray(START))

  def step(state, gradient):
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  return workers.step(step), jax.device_get(state)


@pytest.mark.parametrize('kind', GRADIENTS)
@pytest.mark.parametrize('name', BY_STEP)
def test_each_step_contracts_to_the_box(name, kind):
  points = shared_points(name, kind)
  rates = np.array([warm_up(t) for t in range(STEPS)])
  check_contraction(points, rates, sharp=kind == 'outwards')


@pytest.mark.parametrize('kind', GRADIENTS)
@pytest.mark.parametrize('name', BY_ROUND)
def test_each_round_contracts_to_the_box(name, kind):
  points = shared_points(name, kind)
  assert np.all(points[1:SYNC_EVERY] == START)  # also, nothing moves between
  rates = np.array([warm_up(t) for t in range(STEPS)])
  rates = 1.5 * rates.reshape(-1, SYNC_EVERY).mean(axis=1)
  # what is fed back may point inwards
  sharp = kind == 'outwards' and name != 'rounds, feedback'
  check_contraction(points[::SYNC_EVERY], rates, sharp)


@pytest.mark.parametrize('kind', list(GRADIENTS)[:-1])
@pytest.mark.parametrize('outer', [sm.sign_momentum, sm.signed_slowmo])
def test_each_outer_step_contracts_to_the_box(outer, kind):
  tx = outer(1.5, weight_decay=DECAY)
  draw, points = np.random.default_rng(0), [jnp.asarray(START)]
  state = tx.init(points[0])
  for t in range(10):
    gradient = jnp.float32(GRADIENTS[kind](draw, t, points[-1])[0])
    updates, state = tx.update(gradient, state, points[-1])
    points.append(points[-1] + RATE * updates)
  check_contraction(np.stack(points), 1.5 * RATE, sharp=kind == 'outwards')


def shared_points(name, kind):
  """What all agree on, ``[1 + STEPS, size]``, from the start on."""
  step, state = compiled(name)
  state = jax.tree.map(jnp.asarray, state)
  draw, points = np.random.default_rng(0), [START]
  for t in range(STEPS):
    state, _ = step(state, np.float32(GRADIENTS[kind](draw, t, points[-1])))
    shared = sm.synchronised(state.opt_state, state.params)
    points.append(np.asarray(shared))
  return np.stack(points)


def check_contraction(points_TxD, rates, sharp):
  """From each point to the next, so that it holds for any two."""
  points = points_TxD.astype(np.float64)
  outside = points - np.clip(points, -BOX, BOX)
  for norm in (1, 2, np.inf):
    distance = np.linalg.norm(outside, norm, axis=1)
    bound = (1 - rates * DECAY) * distance[:-1]
    # a few roundings, of numbers not larger than these
    sizes = np.linalg.norm(np.abs(points) + BOX, norm, axis=1)[:-1]
    error = 8 * np.finfo(np.float32).eps * sizes
    assert np.all(distance[1:] <= bound + error)
    if sharp:
      assert np.all(distance[1:] >= bound - error)


# Up to (n - 1) / 2 adversaries change no vote that the honest agree on; whoever
# is absent changes none, however many they are.

ADVERSARIES = {
  'flip': lambda honest: -honest,
  'send zeros': lambda honest: 0 * honest,
  'send nan': lambda honest: np.nan * honest,
  'are absent': lambda honest: -honest,
}
COUNTS = [3, 5, 8, 33]


@functools.cache
def aggregated(kind, *arguments):
  tx = getattr(sm, f'aggregate_by_{kind}')('workers', *arguments)

  def worker(updates, present):
    return tx.update(updates, tx.init(updates), present=present)[0]

  return jax.jit(jax.vmap(worker, 0, None, axis_name='workers'))


@pytest.mark.parametrize('kind', ADVERSARIES)
@pytest.mark.parametrize('zeros', signs.ZEROS)
@pytest.mark.parametrize('n', COUNTS)
def test_a_minority_changes_no_unanimous_vote(n, zeros, kind):
  draw = np.random.default_rng(n)
  truth, updates = unanimous(draw, n)
  bad = some(draw, n, kind)
  updates[bad] = ADVERSARIES[kind](updates[bad])
  vote = aggregated('majority_vote', zeros)
  result = vote(updates, is_there(n, bad, kind))
  np.testing.assert_array_equal(result[truth != 0], truth[truth != 0])
  if zeros != 'coin':  # of what rests, only blocks are sent
    assert np.all(result[128:256] == 0)


@pytest.mark.parametrize('zeros', signs.ZEROS)
@pytest.mark.parametrize('n', [n for n in COUNTS if n % 2])
def test_one_adversary_more_decides(n, zeros):
  draw = np.random.default_rng(n)
  truth, updates = unanimous(draw, n)
  updates[draw.permutation(n)[: (n + 1) // 2]] *= -1
  result = aggregated('majority_vote', zeros)(updates, np.ones(n, bool))
  np.testing.assert_array_equal(result[truth != 0], -truth[truth != 0])


@pytest.mark.parametrize(
  'n, zeros', [(3, 'exact'), (5, 'block'), (8, 'coin'), (33, 'block')]
)
def test_a_minority_changes_no_step_of_distributed_lion(n, zeros):
  draw = np.random.default_rng(n)
  tx = sm.distributed_lion(RATE, zeros=zeros, weight_decay=0.1)
  workers = sm.Workers(n)

  @workers.step
  def step(state, inputs):
    gradient, present = inputs
    updates, opt_state = tx.update(
      gradient, state.opt_state, state.params, present=present
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), None

  # powers of 2: then momenta are multiples of each other, exactly
  honest = np.float32(2.0) ** draw.integers(-9, 9, (n, 1))
  honest = honest * np.float32(draw.normal(size=(5, 1, 90)))

  def run(kind, bad):
    state, trajectory = workers.init(tx, jnp.ones(90)), []
    gradients = honest.copy()
    if kind:
      gradients[:, bad] = ADVERSARIES[kind](gradients[:, bad])
    for gradient in gradients:
      state, _ = step(state, (gradient, is_there(n, bad, kind)))
      trajectory.append(np.asarray(state.params))
    return np.stack(trajectory)

  truth = run(None, [])
  assert np.all(np.diff(truth, axis=0))
  for kind in ADVERSARIES:
    bad = some(draw, n, kind)
    np.testing.assert_array_equal(run(kind, bad), truth, err_msg=kind)


def unanimous(draw, n):
  """Signs, and updates of n workers that have them; the second block rests."""
  truth = draw.choice(np.float32([-1, 1]), 300)
  truth[128:256] = 0
  return truth, truth * draw.lognormal(sigma=9, size=(n, 300)).astype('f4')


def some(draw, n, kind):
  return draw.permutation(n)[: n - 1 if kind == 'are absent' else (n - 1) // 2]


def is_there(n, bad, kind):
  return ~np.isin(np.arange(n), bad if kind == 'are absent' else [])


# Who is who does not matter, but for coins: a tie's coin belongs to the element
# and all share it, a zero's coin belongs to the worker who has the zero (if all
# had the same coin, a few idle workers would vote as one).

PRESENT = np.array([1, 1, 1, 1, 1, 1, 0], bool)
HAVE_ZEROS = [0, 1]
PERMUTATIONS = np.array([[6, 3, 1, 0, 2, 5, 4], [1, 0, 6, 4, 5, 3, 2]])
# those who have coins stay where they are
PERMUTATIONS_OF_OTHERS = np.array(
  [[0, 1, 4, 2, 5, 3, 6], [0, 1, 5, 4, 3, 2, 6]]
)


def four_blocks(draw):
  """All vote; two have nothing to say; two have some zeros; all rest."""
  updates = draw.choice(np.float32([-1, 1]), (len(PRESENT), 4, 128))
  updates[HAVE_ZEROS, 1] = 0
  updates[HAVE_ZEROS, 2] *= draw.integers(0, 2, (2, 128))
  updates[:, 3] = 0
  return updates


@pytest.mark.parametrize('zeros', signs.ZEROS)
@pytest.mark.parametrize('kind', ['majority_vote', 'sign_mean'])
def test_who_is_who_changes_no_vote(kind, zeros):
  updates = four_blocks(np.random.default_rng(0))
  ties = updates[PRESENT].sum(axis=0) == 0
  assert np.all(ties[:3].any(axis=1))

  def run(order, present):
    flat = updates.reshape(len(PRESENT), -1)
    result = aggregated(kind, zeros)(flat[order], present[order])
    return np.asarray(result).reshape(4, 128)

  free = {'exact': [0, 1, 2, 3], 'block': [0, 1, 3], 'coin': [0]}[zeros]
  for present in (PRESENT, PRESENT | True):
    result = run(np.arange(len(PRESENT)), present)
    for order in PERMUTATIONS:
      permuted = run(order, present)
      np.testing.assert_array_equal(permuted[free], result[free])
      if zeros != 'exact':  # workers with other coins have the zeros now
        assert np.any(permuted[2] != result[2])
    for order in PERMUTATIONS_OF_OTHERS:
      np.testing.assert_array_equal(run(order, present), result)


def test_who_is_who_changes_no_mean_without_rounding():
  updates = np.random.default_rng(0).integers(-99, 99, (7, 50)).astype('f4')
  mean = aggregated('mean')
  for order in PERMUTATIONS:
    np.testing.assert_array_equal(
      mean(updates[order], PRESENT[order]), mean(updates, PRESENT)
    )


# Methods that are others in a special case; `reductions_test` has most of them.


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


def distributed(tx, targets):
  n = len(jax.tree.leaves(targets[0])[0])
  _, _, trajectory = problem.run(tx, sm.Workers(n), problem.SMALL, targets)
  return trajectory


def check_same(one, two, targets):
  np.testing.assert_allclose(
    distributed(one, targets), distributed(two, targets), **F64
  )


def check_equals_one_machine(tx, plain, targets):
  """That sees the mean gradient of all."""
  gradient = problem.vector_gradient(problem.SMALL, targets)
  trajectory = distributed(tx, targets)

  def mean(t, x):
    return sum(gradient(i, t, x) for i in range(3)) / 3

  start = problem.vector(problem.start(problem.SMALL))
  truth = table.single(plain)(start, mean, len(targets))
  truth = np.broadcast_to(truth[:, None], trajectory.shape)
  np.testing.assert_allclose(trajectory, truth, **F64)


def sign_momentum(inner, sync_every, **arguments):
  return sm.distributed_sign_momentum(
    inner, RATE, sync_every, b1=0.7, b2=0.9, weight_decay=0.1, **arguments
  )


@pytest.mark.usefixtures('float64')
def test_one_adamw_step_is_a_sign_step_on_the_mean_adamw_direction():
  check_same(
    sign_momentum(optax.adamw(RATE, weight_decay=0.3), sync_every=1),
    optax.chain(
      optax.scale_by_adam(),
      optax.add_decayed_weights(0.3),
      sm.aggregate_by_mean('workers'),
      sm.sign_momentum(RATE, b1=0.7, b2=0.9, weight_decay=0.1),
    ),
    problem.targets(problem.SMALL, 3),
  )


@pytest.mark.usefixtures('float64')
def test_a_constant_rate_cancels_inside_the_sign():
  raw = sm.local_steps(
    optax.adam(RATE),
    optax.chain(
      sm.aggregate_by_mean('workers'),
      sm.sign_momentum(1.5 * RATE, b1=0.7, b2=0.9, weight_decay=0.1),
    ),
    3,
    'workers',
  )
  scaled = sign_momentum(optax.adam(RATE), 3, outer_learning_rate=1.5)
  check_same(raw, scaled, problem.targets(problem.SMALL, 3))


@pytest.mark.usefixtures('float64')
def test_slowmo_without_momentum_is_lookahead():
  def averaged(outer, rate):
    outer = optax.chain(sm.aggregate_by_mean('workers'), outer)
    return sm.local_steps(optax.adam(RATE), outer, 3, 'workers', rate)

  check_same(
    averaged(sm.slowmo(0.7, 0.0), RATE),
    averaged(sm.lookahead(0.7), None),
    problem.targets(problem.SMALL, 3),
  )


@pytest.mark.usefixtures('float64')
def test_the_sign_of_the_mean_momentum_is_global_lion():
  tx = optax.chain(
    sm.lion_momentum(0.9, 0.97),
    sm.aggregate_by_mean('workers'),
    optax.scale_by_sign(),
    optax.add_decayed_weights(0.1),
    optax.scale_by_learning_rate(RATE),
  )
  plain = optax.lion(RATE, 0.9, 0.97, weight_decay=0.1)
  check_equals_one_machine(tx, plain, problem.targets(problem.SMALL, 3))


@pytest.mark.parametrize('aggregation', ['majority_vote', 'sign_mean'])
@pytest.mark.usefixtures('float64')
def test_workers_with_equal_gradients_are_one_lion(aggregation):
  targets = jax.tree.map(
    lambda x: np.repeat(x[:1], 3, axis=0), problem.targets(problem.SMALL, 3)
  )
  tx = sm.distributed_lion(
    RATE, 0.9, 0.97, weight_decay=0.1, aggregation=aggregation
  )
  plain = optax.lion(RATE, 0.9, 0.97, weight_decay=0.1)
  check_equals_one_machine(tx, plain, targets)


# Randomized signs: right in expectation, with the variance of their kind, and
# independent of each other. All bounds are 5 standard errors.

BOUND, DRAWS = 2.0, 200_000
SUPPORTS = ['two_point', 'three_point']


def distribution(fraction, support):
  """Outcomes and their probabilities, for a value over the bound."""
  if support == 'three_point' or fraction == 0:
    outcomes, chances = [np.sign(fraction), 0], [abs(fraction)]
  else:
    outcomes, chances = [1, -1], [(1 + fraction) / 2]
  return np.array(outcomes), np.array([*chances, 1 - chances[0]])


def check_mean(drawn, outcomes, chances):
  mean = chances @ outcomes
  error = 5 * np.sqrt(chances @ (outcomes - mean) ** 2 / drawn.size)
  assert abs(drawn.mean() - mean) <= error + 1e-12  # of float64


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('support', SUPPORTS)
def test_randomized_signs_have_mean_and_variance(support, dtype):
  tx = sm.scale_by_randomized_sign(BOUND, 3, support)
  fractions = [0, 1e-6, 0.01, 0.3, 0.77, 1, -1e-6, -0.05, -0.5, -1]
  values = jnp.asarray(BOUND * np.array(fractions), dtype)
  updates = jnp.broadcast_to(values[:, None], (values.size, DRAWS))
  drawn, _ = jax.jit(tx.update)(updates, tx.init(updates))
  assert drawn.dtype == dtype
  for value, row in zip(values, np.asarray(drawn, np.float64), strict=True):
    fraction = float(value) / BOUND
    outcomes, chances = distribution(fraction, support)
    assert np.isin(row, outcomes[chances > 0]).all()
    check_mean(row, outcomes, chances)
    check_mean((row - fraction) ** 2, (outcomes - fraction) ** 2, chances)


def test_a_value_tiny_against_the_bound_is_drawn_as_often_as_it_should():
  """27 of 27 million, where 16 random bits would give none."""
  tx = sm.scale_by_randomized_sign(BOUND, 3, 'three_point')
  updates = jnp.full(1_000_000, 1e-6 * BOUND)

  @jax.jit
  def count():
    def step(_, carry):
      state, number = carry
      drawn, state = tx.update(updates, state)
      return state, number + jnp.sum(drawn)

    return jax.lax.fori_loop(0, 27, step, (tx.init(updates), 0.0))[1]

  assert abs(count() - 27) < 5 * np.sqrt(27)


@pytest.mark.parametrize('support', SUPPORTS)
def test_randomized_signs_are_independent(support):
  """Of workers, steps, leaves, seeds and elements."""

  def series(seed):
    tx = sm.scale_by_randomized_sign(BOUND, seed, support, 'workers')

    def worker(updates):
      def step(state, _):
        drawn, state = tx.update(updates, state)
        return state, drawn

      return jax.lax.scan(step, tx.init(updates), length=2)[1]

    updates = jnp.full((3, 50_000), 0.3 * BOUND)
    run = jax.jit(jax.vmap(worker, axis_name='workers'))
    drawn = run({'one': updates, 'two': updates})
    return [x.reshape(-1, x.shape[-1]) for x in drawn.values()]

  drawn = np.concatenate(series(seed=0) + series(seed=1))
  assert len(drawn) == 3 * 2 * 2 * 2
  error = 5 / np.sqrt(drawn.shape[1] - 1)
  correlations = np.corrcoef(drawn) - np.eye(len(drawn))
  assert np.abs(correlations).max() < error
  for row in drawn:
    assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < error
