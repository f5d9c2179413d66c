"""The training loop: the same run, however it is cut and whatever runs it."""

import dataclasses
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import (
  assembly,
  checkpoints,
  errors,
  executors,
  loop,
  metrics,
  report,
  rounds,
  traffic,
)
from experiments.data import batches
from experiments.models import decoder
import signmomentum as sm
from tests import tiny

# Everything random is on, and no period is a multiple of another's.
OVERRIDES = {
  'model.dropout': 0.2,
  'num_steps': 24,
  'log_every': 6,
  'eval_every': 12,
  'checkpoint_every': 15,
  'optimizer.warmup_steps': 6,
}
METHODS = (
  'distributed_lion_majority_vote',
  'distributed_sign_momentum',
  'distributed_sign_momentum_one_bit',
)


@pytest.fixture(scope='module', autouse=True)
def _compile_once(tmp_path_factory):
  """Runs of one config share what they compile; only its time is saved."""
  settings = {
    'jax_compilation_cache_dir': str(tmp_path_factory.mktemp('cache')),
    'jax_persistent_cache_min_compile_time_secs': 0,
    'jax_persistent_cache_min_entry_size_bytes': -1,
  }
  before = {name: getattr(jax.config, name) for name in settings}
  for name, value in settings.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.fixture(autouse=True)
def _known_traffic(monkeypatch):
  """What is sent is the matter of traffic_test, and takes a while to see."""
  monkeypatch.setattr(traffic, 'bits_per_parameter', lambda *_: 4.0)


def _config(method='distributed_sign_momentum', workers=4, **overrides):
  return tiny.load(OVERRIDES | overrides, method=method, workers=workers)


def _last_state(config, workdir):
  """The newest checkpoint: step, leaves, position."""
  tokens = 256
  objective = tiny.objective(config, tokens)
  state = sm.Workers(config.workers).init(
    assembly.optimizer(config, objective), objective.init(jax.random.key(0))
  )
  with checkpoints.Checkpoints(workdir) as store:
    step, state, position = store.restore(state)
  return step, state, position['losses']


def _log(workdir):
  """All records, without the time that they took."""
  records = metrics.read(workdir)
  for record in records:
    del record['seconds'], record['bits_per_second']
  return records


@pytest.mark.parametrize('method', METHODS)
def test_a_run_in_pieces_is_the_whole_run(method, tmp_path):
  config = _config(method)
  whole, pieces = tmp_path / 'whole', tmp_path / 'pieces'
  expected = loop.train(config, whole)
  # In the middle of rounds, and of what a log point sums up.
  for stop in (4, 8, 23):
    assert loop.train(config, pieces, stop_at_step=stop) is None
    assert _last_state(config, pieces)[0] == stop
  summary = loop.train(config, pieces)
  assert summary.validation_loss == expected.validation_loss
  assert _log(pieces) == _log(whole)
  assert [record['step'] for record in _log(whole)] == [6, 12, 18, 24]
  for a, b in zip(
    jax.tree.leaves(_last_state(config, pieces)),
    jax.tree.leaves(_last_state(config, whole)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def test_a_signal_is_answered_at_once(tmp_path, monkeypatch, capsys):
  def stopped(config, workdir, team, end, wish):
    signal.raise_signal(signal.SIGINT)
    assert wish.signal == 'SIGINT'

  monkeypatch.setattr(loop, '_train', stopped)
  assert loop.train(_config(), tmp_path) is None
  assert capsys.readouterr().err == (
    'Stopping after this round, with a checkpoint. Once more: stop now,'
    ' without.\n'
  )


def test_after_a_crash_the_log_has_each_step_once(tmp_path):
  """The log is ahead of the checkpoint, which is between two log points."""
  config = _config()
  loop.train(config, tmp_path)
  log = _log(tmp_path)
  (tmp_path / 'summary.json').unlink()
  shutil.rmtree(tmp_path / 'checkpoints' / '24')
  assert _last_state(config, tmp_path)[0] == 15
  loop.train(config, tmp_path)
  assert _log(tmp_path) == log


def test_the_log_is_written_before_the_checkpoint(tmp_path, monkeypatch):
  """A run that is killed in between would lose a log point for good."""
  save, logged = checkpoints.Checkpoints.save, {}

  def spy(self, step, *args):
    logged[step] = metrics.read(tmp_path)[-1]['step']
    save(self, step, *args)

  monkeypatch.setattr(checkpoints.Checkpoints, 'save', spy)
  loop.train(_config(checkpoint_every=6), tmp_path, stop_at_step=12)
  assert logged == {6: 6, 12: 12}


def test_a_finished_run_shows_its_table_again(tmp_path, capsys, monkeypatch):
  config = _config()
  summary = loop.train(config, tmp_path)
  first = capsys.readouterr().out
  monkeypatch.setattr(loop, '_train', None)  # which would have to be called
  assert loop.train(config, tmp_path) == summary
  table = capsys.readouterr().out
  assert table == report.table(summary) + '\n'
  assert first.endswith(table)
  assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  'method, tolerance',
  [('adamw', 1e-5), ('distributed_sign_momentum', 1e-4)],
)
def test_executors_agree(method, tolerance, tmp_path):
  config = _config(method, workers=8)
  losses = {}
  for executor in executors.EXECUTORS:
    loop.train(config, tmp_path / executor, executor)
    losses[executor] = [
      (record['train_loss'], record.get('validation_loss', 0.0))
      for record in metrics.read(tmp_path / executor)
    ]
  np.testing.assert_allclose(
    losses['devices'], losses['simulated'], rtol=tolerance
  )


def test_executor_and_resume_can_change_together(tmp_path):
  config = _config('slowmo', workers=8)
  whole = loop.train(config, tmp_path / 'whole')
  loop.train(config, tmp_path / 'mixed', 'devices', stop_at_step=13)
  mixed = loop.train(config, tmp_path / 'mixed', 'simulated')
  np.testing.assert_allclose(
    mixed.validation_loss, whole.validation_loss, rtol=1e-5
  )


def test_devices_are_counted(tmp_path):
  with pytest.raises(errors.UserError, match='4 workers.*8 devices.*--cpu_dev'):
    loop.train(_config(), tmp_path, 'devices')
  with pytest.raises(errors.UserError, match="nearest is 'simulated'"):
    loop.train(_config(), tmp_path, 'simulate')


@pytest.mark.parametrize('poisoned, kept', [(12, None), (15, 15)])
def test_nan_names_step_and_worker_and_keeps_checkpoints(
  poisoned, kept, tmp_path, monkeypatch
):
  poison = 255  # a byte that no text has
  nats, draw = decoder.nats, batches.Batches.round

  def poisoned_nats(logits, targets):
    return jnp.where(targets == poison, jnp.nan, nats(logits, targets))

  def poisoned_round(self, first, steps):
    tokens = draw(self, first, steps)
    if first == poisoned:
      tokens[2, 1, 0, 3] = poison
    return tokens

  monkeypatch.setattr(decoder, 'nats', poisoned_nats)
  monkeypatch.setattr(batches.Batches, 'round', poisoned_round)
  message = f'worker 2 at step {poisoned + 1} is nan'
  with pytest.raises(FloatingPointError, match=message):
    loop.train(_config(), tmp_path)
  with checkpoints.Checkpoints(tmp_path) as store:
    assert store.latest() == kept


def test_another_config_is_refused(tmp_path):
  loop.train(_config(), tmp_path, stop_at_step=3)
  other = _config(**{'batch_size': 3, 'optimizer.clip': 0.5})
  with pytest.raises(errors.UserError) as caught:
    loop.train(other, tmp_path)
  message = str(caught.value)
  assert 'batch_size is 3, was 2' in message
  assert 'optimizer.clip is 0.5, was 1.0' in message
  assert 'seed' not in message


@pytest.mark.parametrize(
  'field', ['num_steps', 'log_every', 'eval_every', 'checkpoint_every']
)
@pytest.mark.parametrize('value, near', [(25, '24 and 27'), (0, '3 and 6')])
def test_only_whole_rounds(field, value, near, tmp_path):
  with pytest.raises(errors.UserError, match=f'{field}={value}.*{near}'):
    loop.train(_config(**{field: value}), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


# The round program.


def _losses(workers, dropout, pieces, mesh=None, first=6):
  """Losses of one round on equal tokens, with parameters that stay."""
  config = tiny.load({'model.dropout': dropout})
  objective = tiny.objective(config)
  tx = optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(0.0))
  team = sm.Workers(workers, mesh)
  run = team.step(rounds.program(tx, objective.loss, 3, seed=0))
  state = team.init(tx, objective.init(jax.random.key(0)))
  tokens = jax.random.randint(jax.random.key(1), (1, 1, 2, 9), 0, 32)
  tokens = np.broadcast_to(tokens, (workers, 3, 2, 9))
  losses = np.zeros((workers, 3))
  for start, stop in pieces:
    state, (new, _) = run(state, tokens, first, start, stop)
    losses[:, start:stop] = np.asarray(new)[:, start:stop]
  return losses


def test_dropout_differs_by_worker_and_step_and_by_nothing_else():
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((8,), ('workers',), auto)
  losses = _losses(8, 0.5, [(0, 3)])
  assert len(set(losses.ravel())) == losses.size
  later = _losses(8, 0.5, [(0, 3)], first=9)
  assert not set(losses.ravel()) & set(later.ravel())
  assert len(set(_losses(8, 0.0, [(0, 3)]).ravel())) == 1
  np.testing.assert_array_equal(losses, _losses(8, 0.5, [(0, 2), (2, 3)]))
  np.testing.assert_allclose(losses, _losses(8, 0.5, [(0, 3)], mesh), rtol=1e-5)


def test_after_a_round_all_stand_on_the_anchor():
  config = tiny.load()
  objective = tiny.objective(config)
  tx = assembly.optimizer(config, objective)
  team = sm.Workers(4)
  run = team.step(rounds.program(tx, objective.loss, 3, seed=0))
  state = team.init(tx, objective.init(jax.random.key(0)))
  tokens = jax.random.randint(jax.random.key(1), (4, 3, 2, 9), 0, 32)
  for first in (0, 3, 6):
    state, _ = run(state, tokens, first, 0, 3)
    jax.tree.map(
      lambda p, a: np.testing.assert_array_equal(
        p, np.broadcast_to(a, p.shape)
      ),
      state.params,
      sm.synchronised(state.opt_state, state.params),
    )


@pytest.mark.parametrize('mesh', [False, True])
def test_micro_batches_make_the_step_of_the_batch(mesh):
  config = tiny.load()
  objective = tiny.objective(config)
  tx = optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(0.1))
  auto = (jax.sharding.AxisType.Auto,)
  team = sm.Workers(
    8, jax.make_mesh((8,), ('workers',), auto) if mesh else None
  )
  tokens = jax.random.randint(jax.random.key(1), (8, 3, 4, 9), 0, 32)
  found = []
  for parts in (1, 2, 4):
    program = rounds.program(tx, objective.loss, 3, seed=0, micro_batches=parts)
    state = team.init(tx, objective.init(jax.random.key(0)))
    found.append(team.step(program)(state, tokens, 0, 0, 3))
  for state, outputs in found[1:]:
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      (state.params, outputs),
      (found[0][0].params, found[0][1]),
    )


def test_parts_count_by_their_targets():
  """Two parts with 4 targets of loss 1 and one of loss 3: 7 / 5, not 2."""

  def loss(params, batch, key):
    del key
    mean = jnp.sum(batch['nats'] * batch['mask']) / jnp.sum(batch['mask'])
    return params * mean

  tx = optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(1.0))
  batch = {
    'nats': jnp.array([[[[1.0] * 4, [3.0] * 4]]]),
    'mask': jnp.array([[[[1.0] * 4, [1.0, 0.0, 0.0, 0.0]]]]),
  }
  team = sm.Workers(1)
  for parts in (1, 2):
    program = rounds.program(
      tx,
      loss,
      1,
      seed=0,
      micro_batches=parts,
      targets=lambda batch: jnp.sum(batch['mask']),
    )
    state = team.init(tx, jnp.ones(()))
    state, (nats, norm) = team.step(program)(state, batch, 0, 0, 1)
    np.testing.assert_allclose([nats[0, 0], norm[0, 0]], 1.4, rtol=1e-6)


def test_other_data_is_refused_when_a_run_goes_on(tmp_path, monkeypatch):
  loop.train(_config(), tmp_path, stop_at_step=3)
  load = loop.assembly.tasks.load

  def other(*args):
    return dataclasses.replace(load(*args), sha256='1' * 64)

  monkeypatch.setattr(loop.assembly.tasks, 'load', other)
  with pytest.raises(errors.UserError, match='has sha256 1111.*had'):
    loop.train(_config(), tmp_path)
