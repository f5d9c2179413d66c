"""Every worker's text: disjoint, complete, in a reproducible order."""

import itertools
import time

import numpy as np
import pytest

from experiments import errors
from experiments.data import batches

CONTEXT = 5


def _stream(windows, rest=3):
  """Tokens that are their own positions."""
  return np.arange(windows * CONTEXT + 1 + rest, dtype=np.uint16)


def _make(windows=53, batch_size=2, workers=3, seed=0, **kwargs):
  return batches.Batches(
    _stream(windows, **kwargs), CONTEXT, batch_size, workers, seed
  )


def _windows(array):
  """Returns the indices of windows."""
  assert not (array[..., 0] % CONTEXT).any()
  return array[..., 0] // CONTEXT


def _sequence(data, worker, count):
  """Returns the first `count` windows of a worker, in order."""
  return _windows(data.round(0, -(-count // 2)))[worker].ravel()[:count]


def test_windows_are_consecutive_text():
  data = _make()
  batch = data.at(0)
  assert batch.shape == (3, 2, CONTEXT + 1)
  assert batch.dtype == np.int32
  offsets = np.arange(CONTEXT + 1)
  np.testing.assert_array_equal(batch - batch[..., :1], offsets + 0 * batch)


@pytest.mark.parametrize('workers', [1, 2, 3, 4, 7])
@pytest.mark.parametrize('rest', [0, 4])
def test_shards_are_disjoint_and_cover_the_corpus(workers, rest):
  data = _make(workers=workers, rest=rest)
  sizes = [len(range(worker, 53, workers)) for worker in range(workers)]
  shards = [
    _sequence(data, worker, size).tolist() for worker, size in enumerate(sizes)
  ]
  # Together every window once; so every token but the first is a target once.
  assert sorted(itertools.chain(*shards)) == list(range(53))


def test_next_epoch_follows_without_a_gap():
  data = _make(workers=3)
  size = len(range(2, 53, 3))
  assert size % 2, 'the epoch should end within a batch'
  seen = _sequence(data, 2, 3 * size).reshape(3, size)
  for epoch in seen:
    assert sorted(epoch) == list(range(2, 53, 3))
  assert seen[0].tolist() != seen[1].tolist()
  assert seen[1].tolist() != seen[2].tolist()


def test_order_is_a_permutation_of_seed_and_worker():
  first = _sequence(_make(windows=300), 0, 100)
  assert first.tolist() == _sequence(_make(windows=300), 0, 100).tolist()
  assert first.tolist() != sorted(first)
  other_seed = _sequence(_make(windows=300, seed=1), 0, 100)
  assert first.tolist() != other_seed.tolist()
  other_worker = _sequence(_make(windows=300), 1, 100)
  assert (first // 3).tolist() != (other_worker // 3).tolist()


def test_round_is_its_steps():
  data = _make()
  for first, steps in [(0, 1), (3, 4), (5, 20)]:
    together = data.round(first, steps)
    assert together.shape == (3, steps, 2, CONTEXT + 1)
    one_by_one = [_make().at(first + i) for i in range(steps)]
    np.testing.assert_array_equal(together, np.stack(one_by_one, axis=1))


@pytest.mark.parametrize('only', [(1,), (2, 0), (0, 1, 2)])
def test_rows_of_some_workers_are_those_of_all(only):
  some = batches.Batches(_stream(53), CONTEXT, 2, 3, 0, only)
  everything = _make().round(7, 20)
  np.testing.assert_array_equal(some.round(7, 20), everything[list(only)])


def test_a_step_does_not_depend_on_the_calls_before():
  fresh = {step: _make().at(step) for step in range(40)}
  used = _make()
  for step in [39, 0, 20, 20, 3, 38, 1]:
    np.testing.assert_array_equal(used.at(step), fresh[step])


def test_epoch_counts_passes_over_the_corpus():
  data = _make(windows=60)
  assert data.epoch(0) == 0.0
  assert data.epoch(5) == 0.5
  assert data.epoch(15) == 1.5


def test_corpus_too_small():
  assert _make(windows=6, rest=0).at(0).shape == (3, 2, CONTEXT + 1)
  with pytest.raises(errors.UserError, match='batch of 2 on each of 3 workers'):
    _make(windows=5)
  with pytest.raises(errors.UserError, match='0 windows'):
    batches.Batches(np.zeros(0, np.uint8), CONTEXT, 1, 1, 0)


def test_fast():
  data = batches.Batches(np.zeros(10**6, np.uint8), 32, 4, 4, seed=0)
  data.round(0, 12)
  start = time.perf_counter()
  for i in range(100):
    data.round(12 * i, 12)
  # 0.06 ms on an idle core; the bound leaves room for a busy machine.
  assert (time.perf_counter() - start) / 100 < 1e-3


@pytest.mark.parametrize('targets', [1, 4, 5, 6, 40, 43])
@pytest.mark.parametrize('batch_size', [1, 3, 100])
def test_evaluation_has_every_target_once(targets, batch_size):
  tokens = np.arange(100, 100 + targets + 1, dtype=np.uint8)
  found = batches.evaluation_windows(tokens, CONTEXT, batch_size)
  assert found.tokens.shape[1:] == (batch_size, CONTEXT + 1)
  assert found.tokens.dtype == np.int32
  assert found.mask.shape == found.tokens[..., 1:].shape
  assert found.tokens[..., 1:][found.mask].tolist() == tokens[1:].tolist()
  inputs = found.tokens[..., :-1][found.mask]
  assert inputs.tolist() == tokens[:-1].tolist()


def test_evaluation_of_a_part_is_spread():
  tokens = np.arange(201, dtype=np.uint8)
  found = batches.evaluation_windows(tokens, CONTEXT, 3, max_tokens=40)
  targets = found.tokens[..., 1:][found.mask]
  assert targets.size == 40
  assert np.unique(targets).size == 40
  assert targets.min() < 10
  assert targets.max() > 170
  everything = batches.evaluation_windows(tokens, CONTEXT, 3, max_tokens=10**9)
  assert everything.mask.sum() == 200


def test_evaluation_of_nothing():
  with pytest.raises(errors.UserError, match='nothing to predict'):
    batches.evaluation_windows(np.zeros(1, np.uint8), CONTEXT, 3)
