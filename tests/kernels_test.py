"""Kernels compute what the library computes without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import bits, kernels


def _values(shape, dtype):
  values = jax.random.randint(jax.random.key(0), shape, -1, 2).astype(dtype)
  if jnp.issubdtype(dtype, jnp.floating):
    tiny = jnp.finfo(dtype).tiny
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf, -0.0, tiny, -tiny])
    values = values.at[0, : len(special)].set(special.astype(dtype))
  return values


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16', 'int8'])
@pytest.mark.parametrize(
  'shape, groups',
  [
    ((32, 128), 1),
    ((33, 1152), 1),  # a row too much, a block of columns at the edge
    ((300, 128), 9),
    ((576, 256), 18),  # three blocks of rows, the last one in part
  ],
)
def test_packing_in_a_kernel(shape, groups, dtype):
  values = _values(shape, jnp.dtype(dtype))
  words = kernels.pack_signs(values, groups, interpret=True)
  expected = bits.pack_signs(values, groups)
  for one, other in zip(words, expected, strict=True):
    np.testing.assert_array_equal(one, other)


def test_packing_reads_zeros_and_nan_right():
  positive, nonzero = bits.pack_signs(_values((32, 128), jnp.float32), 1)
  assert [int(word) & 1 for word in positive[0, :5]] == [0, 1, 0, 0, 1]
  assert [int(word) & 1 for word in nonzero[0, :6]] == [0, 1, 1, 0, 1, 1]


def test_a_kernel_is_for_whole_arrays_of_one_device():
  auto, manual = jax.sharding.AxisType.Auto, jax.P('a')
  mesh = jax.make_mesh((2, 2), ('a', 'b'), (auto, auto))
  seen = []

  def look(x):
    seen.append(kernels.is_on_one_device())
    return x

  jax.jit(look)(jnp.zeros(4))
  for names in ({'a'}, {'a', 'b'}):
    jax.jit(
      jax.shard_map(
        look, mesh=mesh, in_specs=manual, out_specs=manual, axis_names=names
      )
    )(jnp.zeros(4))
  assert seen == [False, False, True]
