"""Figures of a vote that the design promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import vote_costs
from signmomentum import bits


def test_counting_in_bits_is_ten_times_as_fast():
  # beside other work on the same cores a turn of a millisecond is easily slow
  ratios = (
    vote_costs.counting(10_000_000, workers=8, repeats=7, seed=0)['ratio']
    for _ in range(6)
  )
  assert any(ratio >= 10 for ratio in ratios)


def test_a_vote_needs_two_bytes_per_parameter():
  assert 0 < vote_costs.temporary_bytes(10_000_000, workers=8) <= 2


@pytest.mark.parametrize('workers', [1, 2, 7, 8])
def test_the_ways_agree(workers):
  words = jax.random.bits(jax.random.key(0), (workers, 3, 128), jnp.uint32)
  plus, tie = map(bits.unpack, vote_costs._bit_sliced(words))
  signs = 2 * plus.astype(jnp.int32) + tie.astype(jnp.int32) - 1
  for dtype in (jnp.int32, jnp.int8):
    np.testing.assert_array_equal(
      signs, vote_costs._unpack_and_sum(words, dtype)
    )


def test_the_whole_vote_is_timed_part_by_part():
  figures = vote_costs.whole(40_000, workers=8, repeats=2, seed=0)
  assert all(seconds > 0 for seconds in figures.values())
  assert figures['vote_to_scale'] == pytest.approx(
    figures['vote_seconds'] / figures['scale_seconds']
  )


def test_a_step_of_distributed_lion_needs_little_more_memory_than_lion():
  kernels = enumerate(jnp.ones((4, 1024, 1024)))
  params = {f'layer_{i}': {'kernel': kernel} for i, kernel in kernels}
  params['bias'] = jnp.ones(300)
  figures = vote_costs.step(params, repeats=2)
  assert figures['distributed_lion_extra_bytes_per_parameter'] <= 0.25
  assert figures['distributed_lion_to_lion'] > 0
