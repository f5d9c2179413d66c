"""Commands, as a user gives them: stop, go on, mistakes."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from experiments import metrics
from tests import tiny

ROOT = pathlib.Path(__file__).parent.parent
ENVIRONMENT = os.environ | {'JAX_PLATFORMS': 'cpu'}
SECONDS = 120
LONG = {
  'num_steps': 6000,
  'log_every': 30,
  'eval_every': 3000,
  'checkpoint_every': 3000,
}


def _command(module, *flags, overrides=(), arguments=''):
  return [
    sys.executable,
    '-m',
    f'experiments.{module}',
    f'--config={tiny.SPEC},sync_every=3{arguments}',
    *tiny.flags(overrides),
    *flags,
  ]


def _call(command):
  return subprocess.run(
    command,
    cwd=ROOT,
    env=ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=SECONDS,
  )


def _log(workdir):
  return [
    {name: record[name] for name in record if 'second' not in name}
    for record in metrics.read(workdir)
  ]


def test_sigterm_saves_and_the_same_command_goes_on(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  done = _call(_command('train', f'--workdir={whole}', overrides=LONG))
  assert done.returncode == 0, done.stderr
  assert 'validation loss' in done.stdout

  command = _command('train', f'--workdir={broken}', overrides=LONG)
  process = subprocess.Popen(
    command,
    cwd=ROOT,
    env=ENVIRONMENT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + SECONDS
  while len(metrics.read(broken)) < 3 and time.monotonic() < deadline:
    time.sleep(0.01)
  process.send_signal(signal.SIGTERM)
  out, err = process.communicate(timeout=SECONDS)
  assert process.returncode == 0, err
  assert 'by SIGTERM, with a checkpoint' in out
  assert not (broken / 'summary.json').exists()
  reached = metrics.read(broken)[-1]['step']
  assert reached < LONG['num_steps']

  done = _call(command)
  assert done.returncode == 0, done.stderr
  assert _log(broken) == _log(whole)
  measures = [
    json.loads((folder / 'summary.json').read_text())['measures']
    for folder in (whole, broken)
  ]
  assert measures[0] == measures[1]


def test_ctrl_c_while_it_compiles(tmp_path):
  """Is heard at once, and ends the process when it comes again."""
  with subprocess.Popen(
    _command('train', f'--workdir={tmp_path}'),
    cwd=ROOT,
    env=ENVIRONMENT
    | {'PYTHONUNBUFFERED': '1', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      for line in process.stdout:
        if line.startswith('Compiling'):
          break
      process.send_signal(signal.SIGINT)
      assert process.stderr.readline() == (
        'Stopping after this round, with a checkpoint. Once more: stop now,'
        ' without.\n'
      )
      process.send_signal(signal.SIGINT)
      out, err = process.communicate(timeout=SECONDS)
    finally:
      process.kill()
  assert process.returncode == 128 + signal.SIGINT
  assert out + err == ''


def test_devices_of_the_cpu(tmp_path):
  done = _call(
    _command(
      'train',
      f'--workdir={tmp_path}',
      '--workers=devices',
      '--cpu_devices=4',
      '--stop_at_step=3',
    )
  )
  assert done.returncode == 0, done.stderr
  assert 'Stopped at step 3 of 12' in done.stdout


@pytest.mark.parametrize(
  'module, flags, arguments, message',
  [
    ('train', [], ',method=slomo', "nearest is 'slowmo'"),
    ('train', ['--config.model.widht=3'], '', "nearest is 'model.width'"),
    ('train', ['--workers=device'], '', 'simulated|devices'),
    ('compare', ['--methods=adamw,slomo'], '', "nearest is 'slowmo'"),
    ('train', ['--config.workers=0'], '', 'workers=0 must be at least 1'),
    ('compare', ['--seeds=0,one'], '', 'seeds'),
    ('compare', ['--seeds=0,-1'], '', 'seeds must be at least 0, not -1'),
  ],
)
def test_mistakes_are_explained(module, flags, arguments, message, tmp_path):
  done = _call(
    _command(
      module, f'--workdir={tmp_path / "run"}', *flags, arguments=arguments
    )
  )
  assert done.returncode not in (0, -signal.SIGABRT)
  assert message in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'run').exists()


def test_compare_and_generate(tmp_path):
  flags = [f'--workdir={tmp_path}', '--methods=adamw,lion', '--seeds=3']
  overrides = {'num_steps': 6, 'eval_every': 3}
  done = _call(_command('compare', *flags, overrides=overrides))
  assert done.returncode == 0, done.stderr
  assert '| adamw | 1 |' in done.stdout
  done = _call(
    [
      sys.executable,
      '-m',
      'experiments.generate',
      f'--workdir={tmp_path / "comparison/lion/rate_0.0003/seed_3"}',
      '--prompt=The ',
      '--length=5',
    ]
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('The ')
