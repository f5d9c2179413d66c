"""Processes that end together, whatever happens to one of them."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from experiments import processes

SECONDS = 60
# What a test's jobs do, by their names.
JOBS = """
import atexit, os, pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
(folder / f'{os.getpid()}.pid').touch()

def wait_for_all(count):
  while len(list(folder.glob('*.pid'))) < count:
    time.sleep(0.01)

def hear(number, frame):
  (folder / f'{os.getpid()}.heard').write_text(signal.Signals(number).name)
  sys.exit(0)

if name == 'good':
  print('it is done')
elif name == 'sleeps':
  time.sleep(600)
elif name == 'stubborn':
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  time.sleep(600)
elif name == 'fails':
  wait_for_all(3)
  print('the reason')
  sys.exit(3)
elif name == 'killed':
  wait_for_all(3)
  os.kill(os.getpid(), signal.SIGKILL)
elif name == 'stopped':
  os.kill(os.getpid(), signal.SIGSTOP)
elif name == 'says':
  # It has been said before this, and the process stays until it is ended.
  atexit.register(lambda: ((folder / 'said').touch(), time.sleep(600)))
  sys.exit('error: the mistake')
elif name.startswith('agrees'):
  while not (folder / 'said').exists():
    time.sleep(0.01)
  sys.exit('error: the mistake' + name.removeprefix('agrees'))
elif name == 'computes':
  end = time.monotonic() + 5
  while time.monotonic() < end:
    pass
elif name == 'listens':
  signal.signal(signal.SIGTERM, hear)
  signal.signal(signal.SIGINT, hear)
  (folder / f'{os.getpid()}.listens').touch()
  time.sleep(600)
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
  """Makes processes by the names of their jobs."""
  (tmp_path / 'jobs_of_a_test.py').write_text(JOBS)
  paths = [str(tmp_path), os.environ.get('PYTHONPATH')]
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, paths)))
  monkeypatch.setattr(processes, '_GRACE', 1.0)
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  return lambda *names: [
    processes.Process('jobs_of_a_test', [name, str(tmp_path)]) for name in names
  ]


def _pids(folder):
  return [int(path.stem) for path in folder.glob('*.pid')]


def _gone(pid):
  """Whether a process has ended, if somebody has asked for its end or not."""
  with contextlib.suppress(ProcessLookupError, FileNotFoundError):
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    return state.split()[0] in 'ZX'
  return True


def _wait_for(condition):
  deadline = time.monotonic() + SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def _assert_all_gone(folder, count):
  pids = _pids(folder)
  assert len(pids) == count
  assert [pid for pid in pids if not _gone(pid)] == []


def test_one_shows_what_it_prints_and_all_may_compute(jobs, tmp_path, capfd):
  """A process that is busy is not taken for one that hangs."""
  processes.run(jobs('good', 'computes', 'good'), silence=3)
  assert capfd.readouterr().out == 'it is done\n'
  assert list(tmp_path.glob('processes_*')) == []
  _assert_all_gone(tmp_path, 3)


@pytest.mark.parametrize(
  'names, named',
  [
    ('sleeps sleeps fails', 'process 2 of 3 .* exit code 3.*\n  the reason'),
    ('stubborn killed good', 'process 1 of 3 .* killed by SIGKILL'),
    ('stopped stubborn sleeps', 'process 0 of 3 .* no sign of life for 3 s'),
  ],
)
def test_the_one_that_fails_is_named_and_none_is_left(
  names, named, jobs, tmp_path
):
  with pytest.raises(processes.ProcessError, match=named):
    processes.run(jobs(*names.split()), silence=3)
  _assert_all_gone(tmp_path, 3)


def test_all_may_fail_between_two_looks(jobs, monkeypatch):
  monkeypatch.setattr(processes, '_POLL', 1.0)
  with pytest.raises(processes.ProcessError, match='exit code 3'):
    processes.run(jobs('fails', 'fails', 'fails'))


@pytest.mark.parametrize('name, shown', [('agrees', 1), ('agrees_not', 2)])
def test_a_mistake_that_all_find_is_shown_once(name, shown, jobs, capfd):
  with pytest.raises(
    processes.ProcessError, match='1 of 2 .* code 1'
  ) as caught:
    processes.run(jobs('says', name))
  said = capfd.readouterr().err + str(caught.value)
  assert said.count('error: the mistake') == shown


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(number, jobs, tmp_path):
  before = signal.getsignal(number)

  def send():
    _wait_for(lambda: len(list(tmp_path.glob('*.listens'))) == 2)
    os.kill(os.getpid(), number)

  sender = threading.Thread(target=send)
  sender.start()
  processes.run(jobs('listens', 'listens'))
  sender.join()
  heard = [path.read_text() for path in tmp_path.glob('*.heard')]
  assert heard == [number.name] * 2
  assert signal.getsignal(number) == before


def test_none_survives_who_started_it(jobs, tmp_path):
  program = (
    'import sys; from experiments import processes;'
    'processes.run([processes.Process("jobs_of_a_test", [name, sys.argv[1]])'
    ' for name in ("sleeps", "stopped", "stubborn")])'
  )
  parent = subprocess.Popen([sys.executable, '-c', program, str(tmp_path)])
  _wait_for(lambda: len(_pids(tmp_path)) == 3)
  time.sleep(0.2)  # for the one that stops itself
  parent.kill()
  parent.wait()
  _wait_for(lambda: all(map(_gone, _pids(tmp_path))))
