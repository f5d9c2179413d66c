"""Shards: who sees what, and when."""

import numpy as np
import pytest

from experiments import errors
from experiments.data import shards


def test_each_example_once_an_epoch_by_its_own_worker():
  own = shards.Shards(12, 2, 3, seed=0)
  rows = own.indices(0, 2)  # 4 of 12 examples each: an epoch
  assert rows.shape == (3, 2, 2)
  for worker, row in enumerate(rows):
    assert sorted(row.ravel()) == list(range(worker, 12, 3))


def test_whole_everybody_sees_everything_in_another_order():
  own = shards.Shards(6, 2, 3, seed=0, sharding='whole')
  rows = own.indices(0, 3).reshape(3, 6)
  assert [sorted(row) for row in rows] == [list(range(6))] * 3
  assert len({tuple(row) for row in rows}) == 3
  assert own.epoch(3) == 3.0


def test_a_shard_that_ends_in_a_round_goes_straight_on():
  """Five examples, two a step: the third step is the end and a beginning."""
  own = shards.Shards(5, 2, 1, seed=0)
  row = own.indices(0, 5)[0].ravel()
  assert sorted(row[:5]) == sorted(row[5:]) == list(range(5))
  assert list(row[:5]) != list(row[5:])


def test_rounds_can_be_cut_anywhere_and_made_by_anybody():
  whole = shards.Shards(100, 4, 3, seed=7).indices(0, 40)
  some = shards.Shards(100, 4, 3, seed=7, only=[2, 0])
  for first, steps in [(13, 9), (0, 1), (22, 18)]:
    np.testing.assert_array_equal(
      some.indices(first, steps), whole[[2, 0], first : first + steps]
    )


def test_too_few_and_unknown():
  with pytest.raises(errors.UserError, match='11 examples are too few'):
    shards.Shards(11, 4, 3, seed=0)
  shards.Shards(11, 4, 3, seed=0, sharding='whole')
  with pytest.raises(errors.UserError, match="nearest is 'whole'"):
    shards.Shards(11, 1, 3, seed=0, sharding='hole')
