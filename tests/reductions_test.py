"""Methods that are special cases of others, and a trajectory solved by hand.

What is left of a method when one of its parts is switched off has to be another
published method, to the last bits of float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

RATE = 0.05
STEPS = 7
F64 = {'rtol': 1e-13, 'atol': 1e-13}


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape)


def step_of(tx):
  """One worker's step on the loss ``(params - target)^2 / 2``."""

  def step(state, target):
    updates, opt_state = tx.update(
      sm.as_local(state.params) - target, state.opt_state, state.params
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), params

  return step


def distributed(tx, targets_TxNxD):
  """Every worker's parameters after every step, ``[steps, workers, size]``."""
  _, n, size = targets_TxNxD.shape
  workers = sm.Workers(n)
  state = workers.init(tx, jnp.asarray(draw(size, seed=1)))
  step, trajectory = workers.step(step_of(tx)), []
  for target in targets_TxNxD:
    state, params = step(state, target)
    trajectory.append(params)
  return np.stack(trajectory)


def alone(tx, targets_TxNxD):
  """One machine that sees the mean gradient of all workers."""
  x = jnp.asarray(draw(targets_TxNxD.shape[-1], seed=1))
  state, trajectory = tx.init(x), []
  for target in targets_TxNxD:
    updates, state = tx.update(x - target.mean(axis=0), state, x)
    x = optax.apply_updates(x, updates)
    trajectory.append(x)
  return np.stack(trajectory)


def check_all_equal(trajectory_TxNxD, truth_TxD):
  truth = np.broadcast_to(truth_TxD[:, None], trajectory_TxNxD.shape)
  np.testing.assert_allclose(trajectory_TxNxD, truth, **F64)


def sign_momentum(sync_every=1, inner=None, **arguments):
  return sm.distributed_sign_momentum(
    inner or optax.sgd(RATE), RATE, sync_every, **arguments
  )


# One local SGD step: a method for the mean gradient.


@pytest.mark.parametrize('workers', [1, 4])
def test_one_sgd_step_is_global_lion(workers):
  targets = draw(STEPS, workers, 20)
  arguments = {'b1': 0.9, 'b2': 0.97, 'weight_decay': 0.3}
  tx = sign_momentum(outer_learning_rate=1.5, **arguments)
  check_all_equal(
    distributed(tx, targets),
    alone(optax.lion(1.5 * RATE, **arguments), targets),
  )


def test_one_sgd_step_of_equal_betas_is_signum():
  targets = draw(STEPS, 4, 20)
  tx = sign_momentum(b1=0.8, b2=0.8, weight_decay=0.0)
  check_all_equal(
    distributed(tx, targets), alone(optax.signum(RATE, beta=0.8), targets)
  )


def test_one_sgd_step_without_momentum_is_sign_sgd():
  # of the mean gradient, which is no majority vote: the outlier decides
  targets = draw(STEPS, 3, 20)
  targets[:, 0] *= 10
  tx = sign_momentum(b1=0.0, b2=0.0, weight_decay=0.0)
  trajectory = distributed(tx, targets)
  check_all_equal(trajectory, alone(optax.sign_sgd(RATE), targets))
  vote = sign_momentum(
    b1=0.0, b2=0.0, weight_decay=0.0, aggregation='majority_vote'
  )
  assert np.abs(distributed(vote, targets) - trajectory).max() > RATE


def test_one_sgd_step_one_bit_is_distributed_lion():
  targets = draw(STEPS, 3, 20)
  arguments = {'b1': 0.9, 'b2': 0.97, 'weight_decay': 0.3}
  tx = sign_momentum(aggregation='majority_vote', **arguments)
  np.testing.assert_allclose(
    distributed(tx, targets),
    distributed(sm.distributed_lion(RATE, **arguments), targets),
    **F64,
  )


# Several local steps.


def test_equal_betas_are_signed_slowmo():
  targets = draw(STEPS, 4, 20)
  tx = sign_momentum(3, optax.adamw(RATE), b1=0.8, b2=0.8, weight_decay=0.2)
  slow = sm.local_steps(
    optax.adamw(RATE),
    optax.chain(
      sm.aggregate_by_mean('workers'), sm.signed_slowmo(1.0, 0.8, 0.2)
    ),
    3,
    'workers',
    RATE,
  )
  np.testing.assert_allclose(
    distributed(tx, targets), distributed(slow, targets), **F64
  )


def test_no_momentum_on_one_worker_is_signed_lookahead():
  targets = draw(6, 1, 20)
  tx = sign_momentum(3, b1=0.0, b2=0.0, weight_decay=0.0)
  trajectory = distributed(tx, targets)[:, 0]
  anchor = draw(20, seed=1)
  for end in (3, 6):
    x = anchor
    for target in targets[end - 3 : end, 0]:
      x = x - RATE * (x - target)
    anchor = anchor - RATE * np.sign(anchor - x)
    np.testing.assert_allclose(trajectory[end - 1], anchor, **F64)


def test_one_worker_is_optax_lookahead():
  targets = draw(6, 1, 20)
  tx = averaging(sm.lookahead(0.3))
  look = optax.lookahead(optax.adam(RATE), sync_period=3, slow_step_size=0.3)
  params = optax.LookaheadParams.init_synced(jnp.asarray(draw(20, seed=1)))
  state, trajectory = look.init(params), []
  for target in targets[:, 0]:
    updates, state = look.update(params.fast - target, state, params)
    params = optax.apply_updates(params, updates)
    trajectory.append(params.fast)
  np.testing.assert_allclose(
    distributed(tx, targets)[:, 0], np.stack(trajectory), **F64
  )


@pytest.mark.parametrize(
  'outer',
  [
    optax.sgd(1.0),
    sm.lookahead(1.0),
    sm.slowmo(1.0, momentum=0.0),
    sm.nesterov(1.0, momentum=0.0),
  ],
)
def test_full_step_without_momentum_is_local_averaging(outer):
  targets = draw(STEPS, 4, 20)
  trajectory = distributed(averaging(outer), targets)
  x = np.stack([draw(20, seed=1)] * 4)
  inner = optax.adam(RATE)
  states = [inner.init(jnp.asarray(xi)) for xi in x]
  for t, target in enumerate(targets):
    for i in range(4):
      updates, states[i] = inner.update(x[i] - target[i], states[i])
      x[i] += updates
    if (t + 1) % 3 == 0:
      x[:] = x.mean(axis=0)
    np.testing.assert_allclose(trajectory[t], x, **F64)


def averaging(outer):
  return sm.local_steps(
    optax.adam(RATE),
    optax.chain(sm.aggregate_by_mean('workers'), outer),
    3,
    'workers',
  )


def test_averaging_every_sgd_step_is_sgd():
  targets = draw(STEPS, 4, 20)
  tx = sm.local_steps(
    optax.sgd(RATE),
    optax.chain(sm.aggregate_by_mean('workers'), sm.lookahead(1.0)),
    1,
    'workers',
  )
  check_all_equal(distributed(tx, targets), alone(optax.sgd(RATE), targets))


@pytest.mark.parametrize('rate', [RATE, lambda t: RATE / (t + 1)])
def test_slowmo_without_momentum_does_not_know_the_rate(rate):
  targets = draw(STEPS, 4, 20)
  without, with_rate = (
    distributed(
      sm.local_steps(
        optax.sgd(rate),
        optax.chain(sm.aggregate_by_mean('workers'), sm.slowmo(0.7, 0.0)),
        3,
        'workers',
        learning_rate,
      ),
      targets,
    )
    for learning_rate in (None, rate)
  )
  np.testing.assert_allclose(with_rate, without, **F64)


# Two rounds of sign momentum, solved by hand:
#
#   b1 = 0.95, b2 = 0.98, eta = 1, weight decay 0.1, m = 0 at first
#   round 1, gamma 0.1:  x0 [1, -2, 0.5, 0]        mean [0.9, -1.7, 0.5, 0.04]
#     g = (x0 - mean) / gamma = [1, -3, 0, -0.4],  sign(0) = 0: only decay
#     x = 0.99 x0 - 0.1 sign(g) = [0.89, -1.88, 0.495, 0.1]
#     m = 0.02 g = [0.02, -0.06, 0, -0.008]
#   round 2, gamma 0.05: x0 = x                    mean [0.6, -1.9, 0.7, 0.2]
#     g = [5.8, 0.4, -4.1, -2],  c = 0.95 m + 0.05 g has its signs [+, -, -, -]
#     x = 0.995 x0 - 0.05 sign(c) = [0.83555, -1.8206, 0.542525, 0.1495]
#     m = 0.98 m + 0.02 g = [0.1356, -0.0508, -0.082, -0.04784]

GAMMAS = (0.1, 0.05)
START = np.array([1.0, -2.0, 0.5, 0.0])
MEANS = np.array([[0.9, -1.7, 0.5, 0.04], [0.6, -1.9, 0.7, 0.2]])
ANCHORS = np.array(
  [[0.89, -1.88, 0.495, 0.1], [0.83555, -1.8206, 0.542525, 0.1495]]
)
MOMENTA = np.array(
  [[0.02, -0.06, 0.0, -0.008], [0.1356, -0.0508, -0.082, -0.04784]]
)
# how far each of three workers ends from the mean; zero in sum
SPREAD = np.outer([1.0, -3.0, 2.0], [0.25, 0.5, 0.0, -1.0])


def momentum(state):
  return optax.tree.get(state, 'mu')


def test_outer_rule_by_hand():
  tx = sm.sign_momentum(1.0, b1=0.95, b2=0.98, weight_decay=0.1)
  x, state = jnp.asarray(START), tx.init(jnp.asarray(START))
  for gamma, mean, anchor, m in zip(
    GAMMAS, MEANS, ANCHORS, MOMENTA, strict=True
  ):
    updates, state = tx.update((x - mean) / gamma, state, x)
    x = x + gamma * updates
    np.testing.assert_allclose(x, anchor, **F64)
    np.testing.assert_allclose(momentum(state), m, **F64)


@pytest.mark.parametrize('spread', [0.0, 1.0])
@pytest.mark.parametrize('sync_every', [1, 4])
def test_rounds_by_hand(sync_every, spread):
  """The inner optimizer goes where it is told to, in equal parts."""

  def rate(t):
    return jnp.where(t < sync_every, *GAMMAS)

  tx = sm.distributed_sign_momentum(optax.sgd(1.0), rate, sync_every)
  workers = sm.Workers(3)
  state = workers.init(tx, jnp.asarray(START))

  def step(state, move):
    updates, opt_state = tx.update(-move, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), params

  step, anchor = workers.step(step), START
  for mean, new, m in zip(MEANS, ANCHORS, MOMENTA, strict=True):
    ends = mean + spread * SPREAD
    for _ in range(sync_every):
      state, params = step(state, (ends - anchor) / sync_every)
    np.testing.assert_allclose(params, np.stack([new] * 3), **F64)
    np.testing.assert_allclose(
      sm.synchronised(state.opt_state, state.params), new, **F64
    )
    np.testing.assert_allclose(momentum(state.opt_state.outer), m, **F64)
    anchor = new
