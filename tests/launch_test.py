"""Many processes, as a user starts them: the same run, and none is left."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments import assembly, checkpoints, metrics
from experiments import config as config_lib
from experiments.data import text
import signmomentum as sm
from tests import needs, tiny

ROOT = pathlib.Path(__file__).parent.parent
SECONDS = 240  # on a busy machine
LONG = {
  'model.dropout': 0.2,
  # The bias of keys has no gradient but rounding errors, of random sign.
  'model.use_bias': False,
  'num_steps': 600,
  'log_every': 30,
  'eval_every': 300,
  'checkpoint_every': 300,
}
METHOD = 'distributed_lion_majority_vote'

pytestmark = pytest.mark.skipif(
  sys.platform != 'linux', reason='looks for processes in /proc'
)


@pytest.fixture(scope='module', autouse=True)
def _compile_quickly(tmp_path_factory):
  """Processes share what they compile, and XLA need not polish it."""
  with pytest.MonkeyPatch.context() as patch:
    cache = str(tmp_path_factory.mktemp('cache'))
    patch.setenv('JAX_COMPILATION_CACHE_DIR', cache)
    patch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
    patch.setenv('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
    patch.setenv('JAX_PLATFORMS', 'cpu')
    patch.setenv('TMPDIR', cache)
    yield


def _train(workdir, *flags, workers, overrides=()):
  spec = f'{tiny.SPEC},sync_every=3,method={METHOD},workers={workers}'
  return [
    f'--config={spec}',
    f'--workdir={workdir}',
    *tiny.flags(overrides),
    *flags,
  ]


@contextlib.contextmanager
def _launched(processes, arguments, *flags):
  """Starts the launcher; whatever happens, it is not left running."""
  command = [sys.executable, '-m', 'experiments.launch']
  command += [f'--processes={processes}', *flags, '--', *arguments]
  with subprocess.Popen(
    command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  ) as launcher:
    try:
      yield launcher
    finally:
      launcher.kill()


def _call(command):
  return subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
  )


def _wait_for(condition):
  deadline = time.monotonic() + SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def _read_until(launcher, text):
  for line in launcher.stdout:
    if text in line:
      return
  raise AssertionError(launcher.stderr.read())


def _children(launcher):
  """Ids of the processes, in order."""
  path = pathlib.Path(f'/proc/{launcher.pid}/task/{launcher.pid}/children')
  return list(map(int, path.read_text().split()))


def _gone(pid):
  with contextlib.suppress(FileNotFoundError):
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    return state.split()[0] in 'ZX'
  return True


def _log(workdir):
  return [
    {name: record[name] for name in record if 'second' not in name}
    for record in metrics.read(workdir)
  ]


def _last_params(workdir):
  """Those of the newest checkpoint, which are the same on all workers."""
  config = config_lib.read(workdir / 'config.json')
  tokens = text.load(config.data.corpus, config.data.tokenizer)
  objective = tiny.objective(config, tokens.vocab_size)
  state = sm.Workers(config.workers).init(
    assembly.optimizer(config, objective), objective.init(jax.random.key(1))
  )
  with checkpoints.Checkpoints(workdir) as store:
    _, state, _ = store.restore(state)
  return state.params


@pytest.mark.timeout(600)
def test_processes_make_the_run_of_one(tmp_path):
  """Four, stopped by a signal; then two with two workers each go on."""
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  flags = ['--workers=devices', '--cpu_devices=4']
  arguments = _train(whole, *flags, workers=4, overrides=LONG)
  done = _call([sys.executable, '-m', 'experiments.train', *arguments])
  assert done.returncode == 0, done.stderr

  arguments = _train(broken, workers=4, overrides=LONG)
  with _launched(4, arguments) as launcher:
    _wait_for(lambda: metrics.read(broken))
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=SECONDS)
  assert launcher.returncode == 0, err
  assert out.count('by SIGTERM, with a checkpoint') == 1
  assert metrics.read(broken)[-1]['step'] < LONG['num_steps']

  with _launched(2, [*arguments, '--cpu_devices=2']) as launcher:
    out, err = launcher.communicate(timeout=SECONDS)
  assert launcher.returncode == 0, err
  assert out.count('Goes on from step') == out.count('validation loss') == 1
  assert [r['step'] for r in _log(broken)] == [r['step'] for r in _log(whole)]
  for a, b in zip(_log(broken), _log(whole), strict=True):
    assert a == pytest.approx(b, rel=1e-5)
  jax.tree.map(
    np.testing.assert_array_equal, _last_params(broken), _last_params(whole)
  )
  processes = json.loads((broken / 'versions.json').read_text())
  assert [call['processes'] for call in processes] == [4, 2]


@pytest.mark.parametrize(
  'number, said',
  [
    (signal.SIGKILL, 'process 1 of 2 .* was killed by SIGKILL'),
    (signal.SIGSTOP, 'process 1 of 2 .* gave no sign of life'),
  ],
)
def test_one_that_dies_or_hangs_ends_all(number, said, tmp_path):
  arguments = _train(tmp_path, workers=2, overrides=LONG)
  with _launched(2, arguments, '--silence=5') as launcher:
    if number == signal.SIGKILL:
      _wait_for(lambda: metrics.read(tmp_path))
    else:  # before it computes
      _read_until(launcher, 'Compiling')
    children = _children(launcher)
    assert len(children) == 2
    os.kill(children[1], number)
    _, err = launcher.communicate(timeout=60)
  assert launcher.returncode == 1
  assert re.search(said, err), err
  assert all(map(_gone, children))


def test_an_error_of_one_ends_all(tmp_path):
  """The others wait for it, and it must not wait for them."""
  other = tiny.load(seed=9)
  config_lib.save(other, tmp_path / 'config.json')
  with _launched(2, _train(tmp_path, workers=2)) as launcher:
    children = []
    _wait_for(lambda: children or children.extend(_children(launcher)))
    _, err = launcher.communicate(timeout=60)
  assert launcher.returncode == 1
  assert 'has a run with another config' in err
  assert 'process 0 of 2' in err
  assert all(map(_gone, children))


def test_none_survives_the_launcher(tmp_path):
  arguments = _train(tmp_path, workers=2, overrides=LONG)
  with _launched(2, arguments) as launcher:
    _read_until(launcher, 'Compiling')
    children = _children(launcher)
    assert len(children) == 2
    launcher.kill()
    _wait_for(lambda: all(map(_gone, children)))


def test_over_links_and_a_signal_to_one_of_them(tmp_path):
  needs.hosts()
  arguments = _train(tmp_path, workers=2, overrides=LONG)
  with _launched(2, arguments, '--link=100mbit,2ms') as launcher:
    _wait_for(lambda: metrics.read(tmp_path))
    (one,) = [
      pid
      for pid in _children(launcher)
      if b'process_1.heartbeat'
      in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    ]
    os.kill(one, signal.SIGTERM)
    out, err = launcher.communicate(timeout=SECONDS)
  assert launcher.returncode == 0, err
  assert 'by SIGTERM, with a checkpoint' in out


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--'], 'nothing to run'),
    (['--link=fast', '--', '--workdir=x'], 'fast'),
    (['--processes=0', '--', '--workdir=x'], 'processes'),
  ],
)
def test_mistakes_are_explained(flags, message):
  command = [sys.executable, '-m', 'experiments.launch', '--processes=2']
  done = _call([*command, *flags])
  assert done.returncode == 1
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
