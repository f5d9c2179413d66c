"""Levels: what is on the grid, next to it, out of reach; words of messages."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import draws, levels

pytestmark = pytest.mark.usefixtures('quick_compilation')

BITS = [8, 4, 2]


def _there_and_back(form, values, key=0, dtype=jnp.float32):
  """Blocks ``[number, block_size]``, in as few groups as hold them."""
  fill = -len(values) % form.group
  padded = jnp.pad(jnp.asarray(values), ((0, fill), (0, 0)))
  grid = padded.reshape(-1, form.group, form.block_size)
  encode = jax.jit(form.encode)
  back = form.decode(encode(grid, draws.key(key)), dtype)
  return np.asarray(back).reshape(padded.shape)[: len(values)]


@pytest.mark.parametrize('bits', BITS)
def test_every_level_comes_back(bits):
  form = levels.Format(bits, 255)
  grid = np.arange(-form.most, form.most + 1)
  scales = np.array([1.0, 2.0**-100, 1.5, 129 / 128, 2.0**100])
  values = np.resize(grid, (len(scales), 255)) * scales[:, None]
  values = values.astype(np.float32)
  np.testing.assert_array_equal(_there_and_back(form, values), values)


@pytest.mark.parametrize('bits', BITS)
def test_result_is_one_of_two_neighbours(bits):
  form = levels.Format(bits, 128)
  values = np.random.default_rng(0).normal(size=(50, 128)).astype(np.float32)
  back = _there_and_back(form, values)
  scale = np.abs(values).max(1, keepdims=True) / form.most
  # 8 bits of a significand, rounded up
  assert np.all(np.abs(back - values) < scale * (1 + 2**-7))
  assert np.all(np.sign(back) * np.sign(values) >= 0)
  assert np.any(np.abs(back) < np.abs(values))
  assert np.any(np.abs(back) > np.abs(values))


@pytest.mark.parametrize('bits', BITS)
def test_nothing_overflows(bits):
  form = levels.Format(bits, 4)
  for dtype in (np.float16, jnp.bfloat16, np.float32):
    limits = jnp.finfo(dtype)
    largest = min(float(limits.max), 3.3e38, form.most * 2.0**126)
    values = np.full((40, 4), largest, np.float32) * [1, -0.99, 0.5, 0.0]
    back = _there_and_back(form, values.astype(np.float32), dtype=dtype)
    assert np.isfinite(back.astype(np.float32)).all(), dtype
    error = np.abs(back.astype(np.float64) - values)
    assert np.all(error <= largest / form.most * (1 + 2**-7))


@pytest.mark.parametrize('bad', [np.nan, -np.nan, np.inf, -np.inf, 'all bits'])
def test_what_is_not_finite_spoils_its_block_only(bad):
  bad = np.uint32(0xFFFFFFFF).view(np.float32) if bad == 'all bits' else bad
  form = levels.Format(4, 128)
  values = np.full((160, 128), 7, np.float32)
  values[3, 5] = bad
  back = _there_and_back(form, values)
  assert np.isnan(back[3]).all()
  scales = form.encode(jnp.asarray(values).reshape(-1, 8, 128), draws.key(0))
  assert (np.ravel(scales.scales) == 0x7FC0).sum() == 1
  np.testing.assert_array_equal(np.delete(back, 3, axis=0), 7)


def test_what_is_too_large_for_a_scale_is_not_lost():
  values = np.full((16, 4), 2.0**126, np.float32)
  values[1] *= 1.01
  values[2, 1] = -3.3e38
  back = _there_and_back(levels.Format(2, 4), values)
  assert np.isnan(back[1:3]).all()
  np.testing.assert_array_equal(back[0], values[0])


def test_small_numbers_are_not_lost():
  form = levels.Format(8, 1000)
  tiny = float(np.finfo(np.float32).tiny)
  values = np.full((4, 1000), 2.5 * tiny, np.float32)
  back = _there_and_back(form, values)
  assert set(np.unique(back)) == {
    np.float32(2 * tiny),
    np.float32(3 * tiny),
  }
  with jax.enable_x64(True):  # far below what f32 has
    back = _there_and_back(form, np.full((4, 1000), 1e-300), dtype=jnp.float64)
  assert np.all(back == 0)


def test_chances_are_right_and_hardly_depend_on_each_other():
  """Four elements share a word, and all must be right for any chance."""
  form = levels.Format(4, 4096)
  chance = np.array([0.5, 0.25 + 2**-9, 0.001, 1 / 3, 0.75, 0.5, 0.9, 0.1])
  values = np.tile(chance, (64, 1)).reshape(64, 8, 1)
  values = np.tile(values, (1, 1, 4096)).astype(np.float32)
  values[..., 0] = 7  # so that the scale is 1
  back = form.decode(jax.jit(form.encode)(jnp.asarray(values), draws.key(1)))
  up = np.asarray(back)[..., 1:].swapaxes(0, 1).reshape(8, -1)
  number = up.shape[1]
  error = np.sqrt(chance * (1 - chance) / number)
  assert np.all(np.abs(up.mean(axis=1) - chance) < 5 * error)
  for i, j in itertools.combinations(range(8), 2):
    together = np.mean(up[i] * up[j]) - chance[i] * chance[j]
    assert abs(together) < 1 / 256 + 5 * np.sqrt(chance[i] / number)
  # from one group to the next, and from one place in a block to the next
  odd = up.reshape(8, 64, 4095)
  for a, b in ((odd[:, 1:], odd[:, :-1]), (odd[..., 1:], odd[..., :-1])):
    together = np.mean(a * b, axis=(1, 2)) - chance**2
    assert np.all(np.abs(together) < 10 * np.sqrt(chance / number))


@pytest.mark.parametrize('bits', BITS)
@pytest.mark.parametrize('block_size', [1, 7, 128])
def test_messages_come_back(bits, block_size):
  form = levels.Format(bits, block_size)
  rng = np.random.default_rng(0)
  said = levels.Levels(
    jnp.asarray(rng.integers(0, 2**32, (3, 5, block_size), np.uint32)),
    jnp.asarray(rng.integers(0, 2**16, (3, 5, form.group), np.uint16)),
  )
  messages = form.write(said)
  numbers = 5 * form.group * block_size
  scales = 5 * form.group
  assert 32 * messages.shape[1] == bits * numbers + 16 * scales
  jax.tree.map(np.testing.assert_array_equal, form.read(messages), said)
