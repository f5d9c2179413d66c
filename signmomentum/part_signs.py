"""Signs of parts as words on their way to everybody."""

from collections.abc import Iterable, Sequence
import math

import jax
import jax.numpy as jnp

from signmomentum import bits, collectives, kernels, parts, signs, trees

_NAN = 2  # among signs: what is above zero and yet no number but zero


def whole(
  own: list[jax.Array], axis_name: collectives.AxisName, like: list[jax.Array]
) -> list[jax.Array]:
  """Whole leaves of the signs of this worker's parts and everybody's.

  They are packed on the way: one bit for each element, and one for each block
  of 128 that says whether all of it is zero. Where that is not enough, which
  all workers then know, a second bit for each element follows. NaN stays NaN.

  Args:
    own: this worker's part of each leaf, see `parts.of`.
    axis_name: the axis of the workers.
    like: leaves of the shapes that come out.

  Returns:
    the signs, in the dtypes of the parts.
  """
  matrices = [
    i
    for i, part in enumerate(own)
    if part.ndim > 1 and part.shape[0] >= bits.WORD
  ]
  # Blocks of zeros should not straddle leaves: first those that fill blocks.
  others = sorted(
    (i for i, part in enumerate(own) if part.size and i not in matrices),
    key=lambda i: own[i].size % signs.BLOCK != 0,
  )
  forms = []
  if matrices:
    forms.append(_Matrices(own[i] for i in matrices))
  if others:
    forms.append(_Vectors(own[i].reshape(-1) for i in others))
  words = _everybody(forms, axis_name)
  # an empty leaf is the same for all
  results = [
    jnp.zeros(leaf.shape, part.dtype)
    for part, leaf in zip(own, like, strict=True)
  ]
  found = [
    sign
    for form, (positive, mask) in zip(forms, words, strict=True)
    for sign in jax.vmap(form.unpack)(positive, mask)
  ]
  for i, sign in zip([*matrices, *others], found, strict=True):
    sign = sign.reshape(-1, *own[i].shape)
    if sign.size > like[i].size:
      sign = kernels.written_down(sign, 'tpu')
    sign = parts.whole(sign, like[i])
    sign = jnp.where(sign == _NAN, jnp.nan, sign.astype(own[i].dtype))
    results[i] = sign
  return results


def _everybody(
  forms: list['_Matrices | _Vectors'], axis_name: collectives.AxisName
) -> list[tuple[jax.Array, jax.Array]]:
  """Words of all workers: where signs are positive, and where they are any."""
  if not forms:
    return []
  positive, nonzero = zip(*(form.pack() for form in forms), strict=True)
  some = [bits.any_lane(words) for words in nonzero]
  regular = [
    jnp.all(x == y).astype(jnp.int32)
    for x, y in zip(nonzero, some, strict=True)
  ]
  irregular = collectives.total(len(forms) - sum(regular), axis_name)
  gathered = _gather([*positive, *some], axis_name)
  positive, some = gathered[: len(forms)], gathered[len(forms) :]
  masks = jax.lax.cond(
    irregular > 0,
    lambda: _gather(nonzero, axis_name),
    lambda: [
      jnp.broadcast_to(x, y.shape) for x, y in zip(some, positive, strict=True)
    ],
  )
  return list(zip(positive, masks, strict=True))


def _gather(
  words: Sequence[jax.Array], axis_name: collectives.AxisName
) -> list[jax.Array]:
  """Grids of words of all workers, ``[n, ...]``, in one message."""
  message = jnp.concatenate([grid.reshape(-1) for grid in words])
  gathered = collectives.gather(message, axis_name)
  return [
    kernels.written_down(grid.reshape(-1, *like.shape), 'cpu')
    for grid, like in zip(
      parts.apart(gathered, [grid.size for grid in words]), words, strict=True
    )
  ]


class _Matrices:
  """Signs of matrices as words, packed where they lie."""

  def __init__(self, arrays: Iterable[jax.Array]):
    self._arrays = list(arrays)
    self._marks = [
      jnp.where(jnp.isnan(x), 1, -1).astype(jnp.int8) for x in self._arrays
    ]
    self._bucket = trees.plan(self._arrays)

  def pack(self) -> tuple[jax.Array, jax.Array]:
    """Where signs are positive, or NaN, and where they are -1 or 1.

    What fills up counts as not zero, like most of what is there.
    """
    positive, nonzero = self._bucket.pack(self._arrays)
    nan, there = self._bucket.pack(self._marks)
    return positive | nan, nonzero | ~there

  def unpack(self, positive: jax.Array, mask: jax.Array) -> list[jax.Array]:
    """The signs as small integers."""
    tally = signs.Tally(2, (positive,), (mask,))
    return self._bucket.unpack(tally, 1, like=self._marks)


class _Vectors:
  """The same of vectors, which share words: few of them would fill some."""

  def __init__(self, arrays: Iterable[jax.Array]):
    self._arrays = list(arrays)

  def pack(self) -> tuple[jax.Array, jax.Array]:
    """Where signs are positive, or NaN, and where they are -1 or 1."""
    sign = jnp.concatenate([_sign(array) for array in self._arrays])
    columns = min(signs.BLOCK, math.ceil(sign.size / bits.WORD))
    fill = -sign.size % (bits.WORD * columns)
    grid = jnp.pad(sign, (0, fill), constant_values=1).reshape(-1, columns)
    return bits.pack(grid > 0), bits.pack(jnp.abs(grid) == 1)

  def unpack(self, positive: jax.Array, mask: jax.Array) -> list[jax.Array]:
    """The signs as small integers."""
    tally = signs.Tally(2, (positive,), (mask,))
    sizes = [array.size for array in self._arrays]
    numbers = signs.decode_vector(tally, 1, jnp.int8)[: sum(sizes)]
    return parts.apart(numbers, sizes)


def _sign(array: jax.Array) -> jax.Array:
  """The sign as a small integer, and a fourth number for NaN."""
  return jnp.where(jnp.isnan(array), _NAN, jnp.sign(array)).astype(jnp.int8)
