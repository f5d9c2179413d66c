"""Packed arithmetic against the same on unpacked integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import bits


def _words(seed, *shape):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 2**32, shape, dtype=np.uint32)


def _unpacked(words_NxC):
  """Bits of words as 0/1, with the bit position as a new last axis."""
  return (words_NxC[..., None] >> np.arange(32, dtype=np.uint32)) & 1


def _value(planes):
  return sum(
    _unpacked(np.asarray(p)).astype(int) << j for j, p in enumerate(planes)
  )


def test_pack_puts_row_b_of_a_group_at_bit_b():
  rows = np.random.default_rng(0).random((2, 96, 5)) < 0.5
  words = bits.pack(jnp.asarray(rows))
  assert words.shape == (2, 3, 5)
  expected = rows.reshape(2, 3, 32, 5).swapaxes(2, 3)
  np.testing.assert_array_equal(_unpacked(np.asarray(words)), expected)


def test_unpack_inverts_pack():
  rows = np.random.default_rng(1).random((64, 7)) < 0.5
  np.testing.assert_array_equal(bits.unpack(bits.pack(jnp.asarray(rows))), rows)


def test_pack_refuses_rows_that_fill_no_word():
  with pytest.raises(ValueError, match='33 rows'):
    bits.pack(jnp.zeros((33, 2), bool))


# around the number of voters at which a scan takes over, and its multiples
@pytest.mark.parametrize('n', [1, 2, 3, 4, 7, 8, 31, 32, 33, 64, 65, 300])
def test_count_has_the_fewest_planes_and_the_right_sum(n):
  words = _words(n, n, 6)
  words[:, 0] = 0xFFFFFFFF  # the largest count
  planes = jax.jit(bits.count)(words)
  assert len(planes) == n.bit_length()
  np.testing.assert_array_equal(_value(planes), _unpacked(words).sum(0))


def test_add_carries_through_all_planes():
  a, b = _words(2, 3, 4), _words(3, 2, 4)
  total = bits.add(tuple(a), tuple(b))
  np.testing.assert_array_equal(_value(total), _value(a) + _value(b))


def test_compare_position_by_position_with_different_lengths():
  a, b = _words(4, 3, 4), _words(5, 2, 4)
  a[2, :2] = 0  # else the longer one would nearly always win
  a[:2, 0] = b[:, 0]
  greater, equal = bits.compare(tuple(a), tuple(b))
  np.testing.assert_array_equal(
    _unpacked(np.asarray(greater)), _value(a) > _value(b)
  )
  np.testing.assert_array_equal(
    _unpacked(np.asarray(equal)), _value(a) == _value(b)
  )


@pytest.mark.parametrize('value', [0, 1, 2, 5, 300])
def test_constant_is_the_value_everywhere(value):
  assert (_value(bits.constant(value)) == value).all()


@pytest.mark.parametrize('columns', [1, 7, 100, 128])
def test_any_lane_ors_a_row(columns):
  words = _words(6, 4, columns) & _words(7, 4, columns)
  words &= _words(8, 4, columns) & 0xF0
  np.testing.assert_array_equal(
    bits.any_lane(jnp.asarray(words)),
    np.bitwise_or.reduce(words, axis=1, keepdims=True),
  )
