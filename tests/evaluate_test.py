"""Evaluation: the right number, the same for all, and nothing changed."""

import jax
import numpy as np
import optax
import pytest

from experiments import (
  errors,
  evaluate,
  language,
  methods,
  plans,
  rounds,
  tasks,
)
from experiments.data import text
from experiments.models import decoder
import signmomentum as sm
from tests import tiny

TOLERANCE = 1e-5
CONFIG = tiny.load()
NEXT_TOKEN = tiny.objective(CONFIG)
MODEL = NEXT_TOKEN.model
PARAMS = decoder.init(MODEL, jax.random.key(0))
STREAM = np.random.default_rng(0).integers(0, 32, 83)  # 82 targets, context 8


def _mean_nats(params):
  """Window by window, without batches."""
  losses = []
  for start in range(0, STREAM.size - 1, MODEL.context):
    tokens = STREAM[start : start + MODEL.context + 1][None]
    logits = decoder.apply(MODEL, params, tokens[:, :-1])
    losses += list(np.asarray(decoder.nats(logits, tokens[:, 1:]))[0])
  assert len(losses) == STREAM.size - 1
  return np.mean(losses)


def _tokens(stream=STREAM, bytes_per_token=1.0):
  """A text of which there is a held-out part alone."""
  return text.Tokens(stream, stream, None, bytes_per_token, 'test', '0' * 64)


def _measure(params, mesh=None):
  return language.evaluator(NEXT_TOKEN, _tokens(), None, mesh)(params)


@pytest.mark.parametrize('batch_targets', [8, 24, 4096])
def test_every_target_counts_once(batch_targets, monkeypatch):
  monkeypatch.setattr(language, '_BATCH_TARGETS', batch_targets)
  loss = _measure(PARAMS)['validation_loss'].value
  np.testing.assert_allclose(loss, _mean_nats(PARAMS), rtol=TOLERANCE)


def _sums(params, batch):
  """Scores that are there to be read."""
  return {evaluate.COUNT: batch['count'], 'sum': params * batch['sum']}


def test_the_error_is_that_of_many_repetitions():
  """The spread of the means of many samples, each with an error of its own."""
  random = np.random.default_rng(0)
  found = []
  for _ in range(300):
    counts = random.integers(1, 9, (1, 200)).astype(np.float32)
    noise = random.normal(size=(1, 200)).astype(np.float32)
    chunk = {'count': counts, 'sum': counts * (2 + noise)}
    found.append(evaluate.estimates(_sums, np.float32(1), [chunk])['sum'])
  means, claimed = np.array(found).T
  assert abs(means.mean() - 2) < 4 * means.std() / 300**0.5
  assert 0.85 < claimed.mean() / means.std() < 1.15  # 4 % is one deviation


@pytest.mark.parametrize('devices', [1, 3, 8])
def test_devices_share_the_work_and_change_nothing(devices):
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh(
    (devices,), ('workers',), auto, devices=jax.devices()[:devices]
  )
  assert _measure(PARAMS, mesh) == _measure(PARAMS)


def test_examples_without_targets_do_not_count():
  chunk = {
    'count': np.array([[2, 0], [1, 0]], np.float32),
    'sum': np.array([[6, 0], [3, 0]], np.float32),
  }
  (estimate,) = evaluate.estimates(_sums, np.float32(1), [chunk]).values()
  assert estimate == (3.0, 0.0)
  first = jax.tree.map(lambda x: x[:1], chunk)
  (alone,) = evaluate.estimates(_sums, np.float32(1), [first]).values()
  assert alone == (3.0, 0.0)


def _trained(workers, mesh=None):
  """A state in the middle of a round, after one synchronisation."""
  tx = methods.build(
    'distributed_sign_momentum',
    CONFIG.optimizer,
    plans.Plan(100, 3, decoder.decay_mask, 0),
  )
  team = sm.Workers(workers, mesh)
  run = team.step(rounds.program(tx, NEXT_TOKEN.loss, 3, 0))
  tokens = jax.random.randint(jax.random.key(1), (3, 2, 9), 0, 32)
  # All see the same, so that any number of workers ends at the same point.
  tokens = np.repeat(tokens[None], workers, axis=0)
  state, _ = run(team.init(tx, PARAMS), tokens, 0, 0, 3)
  return run(state, tokens, 3, 0, 2)[0]


def test_the_same_for_any_number_of_workers_and_nothing_changes():
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((8,), ('workers',), auto)
  losses = []
  for state in (_trained(1), _trained(4), _trained(8, mesh)):
    before = jax.tree.map(np.array, state)
    losses.append(
      _measure(evaluate.shared_params(state))['validation_loss'].value
    )
    jax.tree.map(np.testing.assert_array_equal, before, state)
    own = jax.tree.map(lambda p: np.asarray(p)[0], state.params)
    # The worker itself has gone on from there.
    assert (
      abs(losses[-1] - _measure(own)['validation_loss'].value) > 10 * TOLERANCE
    )
  assert losses[0] == losses[1]
  np.testing.assert_allclose(losses[2], losses[0], rtol=TOLERANCE)
  assert losses[0] != _measure(PARAMS)['validation_loss'].value


def test_refuses_parameters_that_nobody_shares():
  state = sm.Workers(4).init(optax.sgd(0.1), PARAMS)
  with pytest.raises(errors.UserError, match='local_steps'):
    evaluate.shared_params(state)


def test_units_of_a_loss():
  nats = tasks.Estimate(4 * np.log(2), 0.02 * np.log(2))
  found = language.measures(nats, bytes_per_token=2.0)
  assert found['validation_loss'] == nats
  assert found['validation_bits_per_byte'] == pytest.approx((2.0, 0.01))
  perplexity = pytest.approx((16.0, 16 * 0.02 * np.log(2)))
  assert found['validation_perplexity'] == perplexity
