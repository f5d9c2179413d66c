"""Evaluation: the right number, the same for all, and nothing changed."""

import jax
import numpy as np
import optax
import pytest

from experiments import assembly, errors, evaluate, methods, plans, rounds
from experiments.models import decoder
import signmomentum as sm
from tests import tiny

TOLERANCE = 1e-5
CONFIG = tiny.load()
MODEL = assembly.model_config(CONFIG, vocab_size=32)
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


@pytest.mark.parametrize('batch_targets', [8, 24, 4096])
def test_every_target_counts_once(batch_targets, monkeypatch):
  monkeypatch.setattr(evaluate, '_BATCH_TARGETS', batch_targets)
  evaluator = evaluate.Evaluator(MODEL, STREAM, None)
  np.testing.assert_allclose(
    evaluator.nats_per_token(PARAMS), _mean_nats(PARAMS), rtol=TOLERANCE
  )


def _trained(workers, mesh=None):
  """A state in the middle of a round, after one synchronisation."""
  tx = methods.build(
    'distributed_sign_momentum',
    CONFIG.optimizer,
    plans.Plan(100, 3, decoder.decay_mask, 0),
  )
  team = sm.Workers(workers, mesh)
  run = team.step(rounds.program(tx, MODEL, 3, 0))
  tokens = jax.random.randint(jax.random.key(1), (3, 2, 9), 0, 32)
  # All see the same, so that any number of workers ends at the same point.
  tokens = np.repeat(tokens[None], workers, axis=0)
  state, _ = run(team.init(tx, PARAMS), tokens, 0, 0, 3)
  return run(state, tokens, 3, 0, 2)[0]


def test_the_same_for_any_number_of_workers_and_nothing_changes():
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((8,), ('workers',), auto)
  evaluator = evaluate.Evaluator(MODEL, STREAM, None)
  losses = []
  for state in (_trained(1), _trained(4), _trained(8, mesh)):
    before = jax.tree.map(np.array, state)
    losses.append(evaluator.nats_per_token(evaluate.shared_params(state)))
    jax.tree.map(np.testing.assert_array_equal, before, state)
    own = jax.tree.map(lambda p: np.asarray(p)[0], state.params)
    # The worker itself has gone on from there.
    assert abs(losses[-1] - evaluator.nats_per_token(own)) > 10 * TOLERANCE
  assert losses[0] == losses[1]
  np.testing.assert_allclose(losses[2], losses[0], rtol=TOLERANCE)
  assert losses[0] != evaluator.nats_per_token(PARAMS)


def test_refuses_parameters_that_nobody_shares():
  state = sm.Workers(4).init(optax.sgd(0.1), PARAMS)
  with pytest.raises(errors.UserError, match='local_steps'):
    evaluate.shared_params(state)


def test_bits_per_byte():
  assert evaluate.bits_per_byte(4 * np.log(2), 2.0) == pytest.approx(2.0)
