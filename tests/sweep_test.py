"""Making the runs of a sweep: which, where, and what ends them."""

from concurrent import futures
from concurrent.futures import process
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments import (
  errors,
  loop,
  metrics,
  outcomes,
  settings,
  sweep,
)
from tests import fake_runs

ROOT = pathlib.Path(__file__).parent.parent
SECONDS = 240

MAIN = fake_runs.study(tuned=True, seeds=(0, 1))
OTHER = fake_runs.study('other', 'sync_every=6', rates_of='main')
EVERYTHING = settings.choose([MAIN, OTHER], ['all'], ['all'])


class Fake:
  """Makes runs without training, and remembers which."""

  def __init__(self, loss=lambda config: config.optimizer.learning_rate):
    self.loss = loss
    self.tasks = []

  def __call__(self, task):
    """Makes a run, whose loss may be an error to raise, or None to stop."""
    self.tasks.append(task)
    loss = self.loss(task.config)
    if isinstance(loss, Exception):
      raise loss
    if loss is not None:
      fake_runs.finish(task.config, task.folder, loss)

  def made(self, workdir):
    return [str(task.folder.relative_to(workdir)) for task in self.tasks]


def _run(workdir, make, chosen=EVERYTHING, jobs=1, publish=lambda: None):
  results = outcomes.Results([MAIN, OTHER], workdir)
  crew = sweep.Crew(jobs, make=make, pool=futures.ThreadPoolExecutor(jobs))
  return sweep.run(results, chosen, publish, crew)


def _near_two_thousandths(config):
  return abs(config.optimizer.learning_rate - 0.002)


def test_makes_all_that_is_needed_once_and_in_order(tmp_path):
  fake = Fake(_near_two_thousandths)
  assert _run(tmp_path, fake)
  assert fake.made(tmp_path) == [
    'main/adamw/rate_0.001/seed_0',
    'main/adamw/rate_0.002/seed_0',
    'main/adamw/rate_0.004/seed_0',
    'main/lion/rate_0.00015/seed_0',
    'main/lion/rate_0.0003/seed_0',
    'main/lion/rate_0.0006/seed_0',
    'main/lion/rate_0.0012/seed_0',
    'main/lion/rate_0.0024/seed_0',
    'main/lion/rate_0.0048/seed_0',
    'main/adamw/rate_0.002/seed_1',
    'main/lion/rate_0.0024/seed_1',
    'other/adamw/rate_0.002/seed_0',
    'other/lion/rate_0.0024/seed_0',
  ]
  again = Fake()
  assert _run(tmp_path, again)
  assert again.tasks == []


def test_a_row_is_made_anew(tmp_path):
  _run(tmp_path, Fake(_near_two_thousandths))
  (tmp_path / 'other/lion/rate_0.0024/seed_0/summary.json').unlink()
  fake = Fake()
  _run(tmp_path, fake, [('other', 'lion')])
  assert fake.made(tmp_path) == ['other/lion/rate_0.0024/seed_0']


def test_a_run_that_diverges_is_made_once(tmp_path):
  def loss(config):
    rate = config.optimizer.learning_rate
    return fake_runs.DIVERGED if rate > 0.001 else 1.0

  fake = Fake(loss)
  assert _run(tmp_path, fake, [('main', 'adamw')])
  assert fake.made(tmp_path) == [
    'main/adamw/rate_0.001/seed_0',
    'main/adamw/rate_0.002/seed_0',
    'main/adamw/rate_0.004/seed_0',
    'main/adamw/rate_0.0005/seed_0',
    'main/adamw/rate_0.00025/seed_0',
    'main/adamw/rate_0.000125/seed_0',
    'main/adamw/rate_0.000125/seed_1',
  ]
  again = Fake()
  assert _run(tmp_path, again, [('main', 'adamw')])
  assert again.tasks == []


def test_publishes_after_each_study_and_at_the_end(tmp_path):
  lefts = []
  results = outcomes.Results([MAIN, OTHER], tmp_path)
  _run(
    tmp_path,
    Fake(_near_two_thousandths),
    publish=lambda: lefts.append(results.left(EVERYTHING)),
  )
  assert lefts == [{'main': 0, 'other': 2}] + 2 * [{'main': 0, 'other': 0}]


def test_as_many_at_a_time_as_there_are_jobs(tmp_path, monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {3, 4, 5, 6, 7})
  third = threading.Event()

  def loss(config):
    rate = config.optimizer.learning_rate
    if len(fake.tasks) == 3:
      third.set()
    if rate == 0.002:  # the second run, beside which the third is made
      assert third.wait(SECONDS)
    return rate

  fake = Fake(loss)
  assert _run(tmp_path, fake, [('other', 'adamw')], jobs=2)
  made = fake.made(tmp_path)
  assert len(made) == len(set(made))
  assert {task.processors for task in fake.tasks} == {(3, 5, 7), (4, 6)}


def test_a_mistake_ends_all(tmp_path):
  fake = Fake(lambda config: errors.UserError('what is wrong'))
  with pytest.raises(errors.UserError, match='what is wrong'):
    _run(tmp_path, fake)
  assert len(fake.tasks) == 1


def test_a_killed_process_is_explained(tmp_path):
  fake = Fake(lambda config: process.BrokenProcessPool('gone'))
  with pytest.raises(errors.UserError, match='main/adamw.*by force.*train.log'):
    _run(tmp_path, fake)


def test_a_run_that_is_stopped_stops_all(tmp_path, capsys):
  published = []
  fake = Fake(lambda config: None)
  assert not _run(tmp_path, fake, publish=lambda: published.append(True))
  assert len(fake.tasks) == len(published) == 1
  assert 'The same command goes on.' in capsys.readouterr().out


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all(number, tmp_path, capsys):
  def loss(config):
    os.kill(os.getpid(), number)
    return 1.0

  fake = Fake(loss)
  assert not _run(tmp_path, fake)
  assert len(fake.tasks) == 1
  assert f'Stopped by {number.name}.' in capsys.readouterr().out


def _stubborn(task):
  """A run that has other things to do than to write a checkpoint."""
  (task.folder / 'begun').touch()
  time.sleep(SECONDS)


def test_a_second_signal_ends_the_runs_by_force(tmp_path, capsys):
  """In real processes: one that is asked to stop, and does not."""
  published = []
  results = outcomes.Results([MAIN, OTHER], tmp_path)
  (run, *_) = results.next(EVERYTHING)
  results.folder(run).mkdir(parents=True)
  crew = sweep.Crew(make=_stubborn)

  def press_twice():
    begun = results.folder(run) / 'begun'
    while not begun.exists():
      time.sleep(0.05)
    for _ in range(2):
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(1.5 * sweep._SECONDS_BETWEEN_LOOKS)

  presses = threading.Thread(target=press_twice, daemon=True)
  presses.start()
  began = time.monotonic()
  try:
    ended = sweep.run(results, EVERYTHING, lambda: published.append(1), crew)
  except KeyboardInterrupt:
    pytest.fail('the second signal was not heard')
  presses.join()
  assert not ended
  assert time.monotonic() - began < SECONDS / 2
  assert multiprocessing.active_children() == []
  assert published == []
  out, err = capsys.readouterr()
  assert 'Stopped by SIGINT, at once. The same command goes on.' in out
  assert err.count('Once more: end them now, without.') == 1


def test_a_line_for_each_run_and_the_time_left(tmp_path, capsys):
  def loss(config):
    rate = config.optimizer.learning_rate
    return fake_runs.DIVERGED if rate > 0.003 else rate

  _run(tmp_path, Fake(loss), [('other', 'adamw')])
  first, *lines = capsys.readouterr().out.splitlines()
  assert first == 'Runs to make: at least 4; 1 at a time.'
  # A fake run says that it took a minute.
  assert lines[0] == (
    'main/adamw/rate_0.001/seed_0: validation 0.001, 60 s;'
    ' 3 left, about 0 h 3 min'
  )
  assert lines[2] == (
    'main/adamw/rate_0.004/seed_0: diverged. It is nan.; 2 left, about 0 h 2'
    ' min'
  )
  assert lines[-1].endswith('; 0 left')
  assert len(lines) == 7


def test_divergence_is_recorded_where_it_happens(tmp_path, monkeypatch):
  def diverge(*_):
    raise FloatingPointError('The loss is inf.')

  monkeypatch.setattr(loop, 'train', diverge)
  monkeypatch.setattr(sweep, '_print_into', lambda path: None)
  config = MAIN.load('adamw')
  folder = tmp_path / 'run'
  sweep.train(sweep.Task(config, folder, 'simulated', None, ()))
  assert outcomes.read(folder).diverged == 'The loss is inf.'


# With real processes: two runs that end, then one that would take days.
_SWEEP = """
from tests import fake_runs

def get_sweep():
  days = 3 * 10**7
  long = {
    'num_steps': days,
    'log_every': 300,
    'eval_every': days,
    'checkpoint_every': days,
  }
  return [
    fake_runs.study('short'),
    fake_runs.study('long', overrides=long, methods=['lion']),
  ]
"""


@pytest.mark.timeout(4 * SECONDS)
def test_stops_and_goes_on(tmp_path):
  (tmp_path / 'sweep.py').write_text(_SWEEP)
  workdir = tmp_path / 'runs'
  long = workdir / 'long/lion/rate_0.0003/seed_0'

  def until_stopped(send, number):
    reached = len(metrics.read(long))
    running = subprocess.Popen(
      [
        sys.executable,
        '-m',
        'experiments.compare',
        f'--sweep={tmp_path / "sweep.py"}',
        f'--workdir={workdir}',
        '--jobs=2',
      ],
      cwd=ROOT,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    try:
      deadline = time.monotonic() + SECONDS
      while running.poll() is None and time.monotonic() < deadline:
        if len(metrics.read(long)) > reached:
          break
        time.sleep(0.1)
      send(running.pid, number)
      out, err = running.communicate(timeout=SECONDS)
    finally:
      if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, err
    assert 'Traceback' not in out + err
    assert f'Stopped by {number.name}' in out
    return out

  out = until_stopped(os.kill, signal.SIGTERM)
  assert 'Runs to make: at least 3; 2 at a time.' in out
  assert 'short/adamw/rate_0.002/seed_0: ' in out
  short, _ = json.loads((workdir / 'results.json').read_text())['studies']
  assert {row['method'] for row in short['rows']} == {'adamw', 'lion'}
  assert (workdir / 'short.png').exists()
  # A terminal sends Ctrl-C to the children as well.
  out = until_stopped(os.killpg, signal.SIGINT)
  assert 'Runs to make: at least 1; 2 at a time.' in out
  log = (long / 'train.log').read_text()
  assert log.count('by SIGINT, with a checkpoint') == 2
  assert log.count('Goes on from step') == 1
