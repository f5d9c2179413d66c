"""Who runs where, on a machine of two processors."""

import os

import pytest

from experiments import processors


@pytest.mark.parametrize(
  'count, shares',
  [(1, [(0, 1)]), (2, [(0,), (1,)]), (3, [(0,), (1,), (0,)])],
)
def test_processors_are_shared_out(count, shares, monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1})
  assert processors.shares(count) == shares


@pytest.mark.parametrize(
  'share, flags',
  [
    ((), {}),
    ((0, 1), {}),
    ((1,), {'XLA_FLAGS': '--some --xla_cpu_multi_thread_eigen=false'}),
  ],
)
def test_a_process_keeps_to_its_processors(share, flags, monkeypatch):
  kept = []
  monkeypatch.setattr(os, 'sched_setaffinity', lambda *args: kept.append(args))
  monkeypatch.setenv('XLA_FLAGS', '--some')
  processors.pin(7, share)
  assert kept == ([(7, share)] if share else [])
  assert processors.environment(share) == flags
