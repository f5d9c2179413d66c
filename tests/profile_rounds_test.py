"""The profile runs what the trainer runs, and sees what is compiled."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments import (
  assembly,
  checkpoints,
  executors,
  loop,
  profile_rounds,
  traffic,
)
from tests import tiny

ROOT = pathlib.Path(__file__).parent.parent
ENVIRONMENT = {'JAX_PLATFORMS': 'cpu', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _assembly(method='distributed_sign_momentum', executor='simulated'):
  workers = 8 if executor == 'devices' else 2
  config = tiny.load({'eval_every': 12}, method=method, workers=workers)
  return assembly.build(config, executors.get(executor, workers))


def test_its_rounds_are_those_of_training(tmp_path, monkeypatch):
  monkeypatch.setattr(traffic, 'bits_per_parameter', lambda *_: 4.0)
  run = _assembly()
  loop.train(run.config, tmp_path, stop_at_step=9)
  with checkpoints.Checkpoints(tmp_path) as store:
    step, expected, _ = store.restore(run.state())
  assert step == 9
  program, state = run.program(), run.state()
  for done, rounds in ((0, 1), (1, 2)):
    state, laps = profile_rounds._in_a_row(run, program, state, done, rounds)
    assert len(laps) == rounds
  jax.tree.map(np.testing.assert_array_equal, state, expected)


@pytest.mark.parametrize(
  'method, executor, ends',
  [
    ('distributed_sign_momentum_one_bit', 'devices', True),
    ('distributed_lion_majority_vote', 'simulated', False),
  ],
)
def test_parts_add_up(method, executor, ends):
  """Where every step is alike there is no end of a round to be timed."""
  run = _assembly(method, executor)
  figures = profile_rounds.measure(run, rounds=3)
  whole, *parts = figures['parts_seconds'].values()
  assert sum(parts) == pytest.approx(whole)
  assert (figures['parts_seconds']['end of the round'] != 0) == ends
  host = figures['host_seconds']
  assert min(host.values()) >= 0
  assert figures['units_per_second'] == pytest.approx(
    3 * run.units_per_step / figures['round_seconds']
  )
  memory = figures['memory_bytes']
  assert memory['temporaries'] > 0
  # The state's buffers are reused: all of the arguments but the input.
  own = run.config.workers if executor == 'simulated' else 1
  inputs = 4 * own * 3 * 2 * 9 + 3 * 4
  assert memory['reused for results'] == memory['state and input'] - inputs


def test_a_compilation_after_the_first_round_is_an_error(monkeypatch):
  run = _assembly()
  arguments = assembly.Assembly.arguments

  def careless(self, batch, first, start, stop):
    inputs, *counts = arguments(self, batch, first, start, stop)
    return (inputs, *(map(int, counts) if first else counts))

  monkeypatch.setattr(assembly.Assembly, 'arguments', careless)
  with pytest.raises(RuntimeError, match='after the first round: .*run'):
    profile_rounds.measure(run, rounds=3)


def test_the_command(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'experiments.profile_rounds',
      f'--config={tiny.SPEC},sync_every=3,seed=5',
      *tiny.flags(),
      f'--workdir={tmp_path / "run"}',
      '--rounds=2',
      '--trace',
    ],
    cwd=ROOT,
    env=os.environ | ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  figures = json.loads((tmp_path / 'run/profile.json').read_text())
  assert done.stdout == profile_rounds.table(figures) + '\n'
  assert figures['seed'] == figures['config']['seed'] == 5
  assert figures['versions']['backend'] == 'cpu'
  assert 'longest operations' in done.stdout
  assert min(figures['operation_seconds'].values()) > 0
  assert list((tmp_path / 'run/trace').rglob('perfetto_trace.json.gz'))
