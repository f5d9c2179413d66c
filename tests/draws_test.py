"""Draws: the generator that is written out is JAX's own."""

import jax
from jax.extend import random as jax_random
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import draws


@pytest.mark.parametrize('number', [1, 2, 3, 4])
def test_words_are_those_of_threefry(number):
  key = draws.key(5, 6, 7)
  counter = jnp.array([0, 1, 2**31, 2**32 - 1], jnp.uint32)
  words = np.stack(draws.words(key, counter, number))
  for block in range(-(-number // 2)):
    counts = jnp.concatenate([counter, jnp.full(4, block, jnp.uint32)])
    pairs = jax_random.threefry_2x32(jax.random.key_data(key), counts)
    pairs = np.reshape(pairs, (2, 4))[: number - 2 * block]
    np.testing.assert_array_equal(words[2 * block :][:2], pairs)


def test_leaves_do_not_draw_what_votes_draw():
  """Votes split the same key, if a seed is used twice."""
  key = draws.key(5, 6, 7)
  split = np.asarray(jax.random.key_data(jax.random.split(key, 4)))
  for path in ('', "['w']"):
    (leaf,) = draws.leaf_keys(key, [path])
    drawn = np.asarray(jax.random.key_data(leaf))
    assert not np.any(np.all(split == drawn, axis=1)), path
