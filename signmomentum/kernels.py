"""What compilers do not fuse by themselves, and what they had better not.

The compiler for TPU fuses a packing of signs with the arithmetic before it only
for some sizes (numbers of groups that are powers of two); else it writes 32-bit
words for every element to memory, twice, and reads them back. And it writes the
unpacked words of a leaf to memory if they are more than the leaf needs. On a
v5e, for a matrix of 50257 x 768 and per element, a packing of a sign that is
computed from two float32 arrays then accesses 24.2 bytes of memory instead of
8.2, and an unpacking with the update of the parameters 16.1 instead of 8.1.

The compiler for CPU fuses whatever it can. Where an array changes its shape in
between, it computes for every element where that comes from, which can take ten
times as long as to write the array down.
"""

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

_WORD = 32
_ROWS = 256  # of a block: words of 8 rows, as a tile of 32-bit numbers has
_COLUMNS = 1024


def is_on_one_device() -> bool:
  """Whether code that is traced here runs on whole arrays of one device.

  That is so in a ``shard_map`` over all axes of its mesh. Elsewhere the
  compiler may have to divide an array among devices, which with a kernel it
  can't.
  """
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and all(
    kind == jax.sharding.AxisType.Manual for kind in mesh.axis_types
  )


def pack_signs(
  values_RxC: jax.Array, groups: int, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
  """The same as ``bits.pack_signs``, as one kernel.

  What computes the values is fused into it. Blocks at the edges are larger than
  the array; what is packed of the rows beyond is not written.

  Args:
    values_RxC: numbers of shape ``[r, c]``, floating or int8.
    groups: how many groups of 32 rows to pack.
    interpret: run without a TPU, to test it.

  Returns:
    two arrays of words ``[groups, c]``: where values are above zero, and where
    they are above or below.
  """
  if values_RxC.dtype not in (jnp.float32, jnp.bfloat16, jnp.int8):
    # which a kernel can not read; signs, zeros and NaN stay what they are
    values_RxC = jnp.sign(values_RxC).astype(jnp.float32)
  columns = values_RxC.shape[1]
  width = min(columns, _COLUMNS)
  kind = jax.typeof(values_RxC)
  words = jax.ShapeDtypeStruct(
    (groups, columns), jnp.uint32, manual_axis_type=kind.manual_axis_type
  )
  return pl.pallas_call(
    _pack_signs,
    grid=(pl.cdiv(groups * _WORD, _ROWS), pl.cdiv(columns, width)),
    in_specs=[pl.BlockSpec((_ROWS, width), lambda i, j: (i, j))],
    out_specs=(pl.BlockSpec((_ROWS // _WORD, width), lambda i, j: (i, j)),) * 2,
    out_shape=(words, words),
    compiler_params=pltpu.CompilerParams(
      allow_input_fusion=[kind.dtype != jnp.int8],
      dimension_semantics=['parallel', 'parallel'],
    ),
    interpret=interpret,
    name='pack_signs',
  )(values_RxC)


def _pack_signs(values_ref, positive_ref, nonzero_ref):
  values = values_ref[...]
  wide = jnp.int32 if values.dtype == jnp.int8 else jnp.float32
  values, zero = values.astype(wide), jnp.zeros((), wide)
  rows, columns = values.shape
  bit = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0) % _WORD

  def pack(flags):
    # no two elements of a sum have a bit in common
    shifted = flags.astype(jnp.int32) << bit
    groups = shifted.reshape(rows // _WORD, _WORD, columns)
    words = jnp.sum(groups, axis=1, dtype=jnp.int32)
    return jax.lax.bitcast_convert_type(words, jnp.uint32)

  above, below = values > zero, values < zero
  positive_ref[...] = pack(above)
  nonzero_ref[...] = pack(above | below)


def written_down(
  array: jax.Array,
  *platforms: str,
  dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
  """The array, written to memory before it is used.

  Args:
    array: what a compiler would rather compute where it is used.
    platforms: on which it is written down, `'cpu'` and `'tpu'`.
    dtype: in which it is written, that holds all its numbers; None: its own.
  """
  how = {'cpu': _through_a_loop, 'tpu': jax.lax.optimization_barrier}

  def through(write, array):
    return write(array.astype(dtype or array.dtype)).astype(array.dtype)

  return jax.lax.platform_dependent(
    array,
    default=lambda array: array,
    **{name: functools.partial(through, how[name]) for name in platforms},
  )


def _through_a_loop(array: jax.Array) -> jax.Array:
  # XLA for CPU takes no notice of a barrier, but what a loop begins with is an
  # array to it. Two turns of this one are none, in place.
  kind = jnp.dtype(f'uint{8 * array.dtype.itemsize}')
  words = jax.lax.bitcast_convert_type(array, kind)
  words = jax.lax.fori_loop(0, 2, lambda _, words: ~words, words)
  return jax.lax.bitcast_convert_type(words, array.dtype)
