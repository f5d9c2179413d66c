"""What the benchmark of the wire refuses, and what it does before links."""

import subprocess
import sys

import pytest

from experiments import exchanges, wire_runs


def test_computing_of_every_exchange_takes_time():
  seconds = wire_runs.computing(list(exchanges.EXCHANGES), 4096)
  assert list(seconds) == list(exchanges.EXCHANGES)
  assert min(seconds.values()) > 0


@pytest.mark.parametrize(
  'flag, message',
  [
    ('--methods=votes', "The nearest is 'vote'"),
    ('--processes=1', '--processes takes whole numbers from 2'),
    ('--local_steps=0', '--local_steps takes whole numbers from 1'),
    ('--links=100', "Can not read the link '100'"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_measured(flag, message):
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.bench_wire', flag],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 1
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
