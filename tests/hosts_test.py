"""One of many processes: whom it asks, and what it does alone or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import errors, executors, hosts
import signmomentum as sm


@pytest.fixture
def calls(monkeypatch):
  """What `jax.distributed.initialize` is called with."""
  calls = []
  monkeypatch.setattr(
    jax.distributed, 'initialize', lambda *args, **_: calls.append(args)
  )
  monkeypatch.setattr(jax.config, 'update', lambda *_: None)
  for name in hosts.VARIABLES:
    monkeypatch.delenv(name, raising=False)
  return calls


def test_a_process_on_its_own_asks_nobody(calls):
  with hosts.joined(False):
    assert calls == []


def test_a_cluster_is_asked(calls):
  with hosts.joined(True):
    assert calls == [()]


def test_the_environment_says_it(calls, monkeypatch):
  for name, value in hosts.environment('host:1234', 4, 2).items():
    monkeypatch.setenv(name, value)
  with hosts.joined(True):
    assert calls == [('host:1234', 4, 2)]


@pytest.mark.parametrize('missing', hosts.VARIABLES)
def test_half_an_environment_is_refused(missing, calls, monkeypatch):
  for name, value in hosts.environment('host:1234', 4, 2).items():
    if name != missing:
      monkeypatch.setenv(name, value)
  with pytest.raises(errors.UserError, match='set all'), hosts.joined(True):
    pass
  assert calls == []


def test_nobody_to_ask(calls, monkeypatch):
  def initialize():
    raise ValueError('coordinator_address should be defined.')

  monkeypatch.setattr(jax.distributed, 'initialize', initialize)
  with (
    pytest.raises(errors.UserError, match='JAX_PROCESS_ID.*experiments.launch'),
    hosts.joined(True),
  ):
    pass


def test_only_the_first_says_and_makes_things(monkeypatch, capsys):
  assert hosts.only_first(lambda: 7) == 7
  hosts.say('the first')
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  with hosts.only_first(lambda: 1 / 0) as nothing:
    nothing.write('into no file', step=3)
  hosts.say('another')
  assert capsys.readouterr().out == 'the first\n'


def test_alone_nothing_is_moved():
  exchange = hosts.Exchange(sm.Workers(3))
  rows, outputs = np.ones((3, 2)), (jnp.ones((3, 2)), jnp.zeros((3, 2)))
  assert exchange.alone
  assert exchange.own == (0, 1, 2)
  assert exchange.scatter(rows) is rows
  *same, notes = exchange.gather(outputs, note=15)
  assert same == list(outputs)
  np.testing.assert_array_equal(notes, np.full((3, 2), 15))
  hosts.require_same('anything', 3)


def test_simulated_workers_are_in_one_process(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(errors.UserError, match='--workers=devices'):
    executors.get('simulated', 4)
