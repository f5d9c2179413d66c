"""A tree of arrays as one bucket of packed words, and back.

One bucket makes one message: the number of collectives does not depend on the
number of leaves. A bucket is a grid of words ``[rows, 128]``, 4096 elements or
32 blocks a row (see ``signs``), filled in two ways:

* the whole tiles of a leaf, 32 rows by a multiple of 128 columns, are packed
  where they lie, and only their words, 1/32 of the size, are flattened;
* what is left of each leaf (biases, scalars, the last rows of an embedding) is
  filled up to whole blocks, so that no two leaves share a block, and joined
  with what is left of the others.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from signmomentum import bits, kernels, signs

_TILE = bits.WORD * signs.BLOCK  # elements in a row of a grid


@dataclasses.dataclass(frozen=True)
class _Leaf:
  """Where a leaf's elements are in the bucket."""

  size: int
  columns: int  # of the two-dimensional form in which the leaf is packed
  row: int  # of the grid, where its whole tiles start
  block: int  # of the joint rest, where the rest of it starts

  @property
  def groups(self) -> int:
    """Whole groups of 32 rows of ``columns``."""
    return self.size // (bits.WORD * self.columns)

  @property
  def packed(self) -> int:
    """Elements in whole tiles."""
    return self.groups * bits.WORD * self.columns

  @property
  def rows(self) -> int:
    """Rows of the grid that they take."""
    return self.packed // _TILE

  @property
  def blocks(self) -> int:
    """Blocks that the other elements take."""
    return -(-(self.size - self.packed) // signs.BLOCK)

  @property
  def height(self) -> int:
    """Whole rows of its two-dimensional form."""
    return self.size // self.columns

  def matrix(self, array: jax.Array) -> jax.Array:
    """Its whole rows: the array itself, unless it is packed as a vector."""
    if self.size % self.columns:
      array = array.reshape(-1)[: self.height * self.columns]
    return array.reshape(self.height, self.columns)

  def rest(self, array: jax.Array) -> jax.Array:
    """The elements that are in no whole group of rows, as a vector."""
    if self.size % self.columns:
      return array.reshape(-1)[self.packed :]
    return self.matrix(array)[self.groups * bits.WORD :].reshape(-1)


@dataclasses.dataclass(frozen=True)
class Bucket:
  """The static plan of a bucket: made from shapes, the same on every worker.

  Attributes:
    leaves: the place of each leaf.
    whole: rows of the grid that whole tiles take.
    rows: rows of the grid.
  """

  leaves: tuple[_Leaf, ...]
  whole: int
  rows: int

  def pack(self, arrays: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Packs the signs of all elements; what fills up is zero.

    Args:
      arrays: the leaves, of the planned sizes.

    Returns:
      two grids ``[rows, 128]``: where elements are above zero, and where they
      are above or below.
    """
    positive, nonzero, rests = [], [], []
    for leaf, array in zip(self.leaves, arrays, strict=True):
      array = gathered(array)
      if leaf.blocks:
        array = _sign(array)
      if leaf.groups and leaf.blocks:  # which is read twice
        array = kernels.written_down(array, 'tpu')
      if leaf.groups:
        words = bits.pack_signs(leaf.matrix(array), leaf.groups)
        positive.append(words[0].reshape(-1, signs.BLOCK))
        nonzero.append(words[1].reshape(-1, signs.BLOCK))
      if leaf.blocks:
        rest = leaf.rest(array)
        rests.append(jnp.pad(rest, (0, -rest.size % signs.BLOCK)))
    if rests:
      joint = jnp.concatenate(rests)
      joint = jnp.pad(joint, (0, -joint.size % _TILE)).reshape(-1, signs.BLOCK)
      words = bits.pack_signs(joint, joint.shape[0] // bits.WORD)
      positive.append(words[0])
      nonzero.append(words[1])
    return jnp.concatenate(positive), jnp.concatenate(nonzero)

  def unpack(
    self,
    tally: signs.Tally,
    divisor: int | jax.Array,
    like: Sequence[jax.Array],
  ) -> list[jax.Array]:
    """Decodes a sum of signs over the bucket.

    Args:
      tally: planes of this bucket's grid (or of masks of it, by block).
      divisor: of the sum, an integer scalar.
      like: arrays that give each result its shape, dtype and sharding.

    Returns:
      the leaves.
    """
    rest = _planes(lambda plane: self._rest(plane), tally)
    joint = functools.cache(
      lambda dtype: signs.decode_vector(rest, divisor, dtype)
    )
    results = []
    for leaf, array in zip(self.leaves, like, strict=True):
      if leaf.groups:
        words = _planes(
          lambda plane, leaf=leaf: self._words(leaf, plane), tally
        )
        if array.shape[-1] == leaf.columns:
          rows = leaf.height
          numbers = signs.decode(words, divisor, array.dtype, rows)
        else:
          numbers = signs.decode_vector(words, divisor, array.dtype)
          numbers = numbers[: leaf.size]
      else:
        start = leaf.block * signs.BLOCK
        numbers = joint(array.dtype)[start : start + leaf.size]
      results.append(sharded_like(numbers.reshape(array.shape), array))
    return results

  def _rest(self, plane: jax.Array) -> jax.Array:
    """The joint rest in a plane ``[rows, 128]`` or ``[rows, 1]``."""
    return plane[self.whole :] if plane.shape[0] == self.rows else plane

  def _words(self, leaf: _Leaf, plane: jax.Array) -> jax.Array:
    """A leaf's words of a plane of the grid ``[rows, 128]`` or ``[rows, 1]``.

    The rest of the leaf is packed anew as one group of rows and joined to the
    others as words: numbers are then written once, and only where they belong.
    """
    rows, width = plane.shape
    if rows != self.rows:  # one row for all
      return plane
    columns = leaf.columns * width // signs.BLOCK
    words = plane[leaf.row : leaf.row + leaf.rows].reshape(-1, columns)
    if not leaf.blocks:
      return words
    rest = bits.unpack(self._rest(plane))
    rest = rest[leaf.block : leaf.block + leaf.blocks]
    fill = bits.WORD * leaf.columns // signs.BLOCK - leaf.blocks
    rest = jnp.pad(rest, ((0, fill), (0, 0))).reshape(bits.WORD, columns)
    return jnp.concatenate([words, bits.pack(rest)])


def plan(arrays: Sequence[jax.Array]) -> Bucket:
  """Plans the bucket of a list of arrays.

  Args:
    arrays: anything with shapes; scalars and empty arrays are fine.

  Returns:
    the plan.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import trees
    >>> trees.plan([jnp.zeros((64, 256)), jnp.zeros(5)]).rows
    5
  """
  leaves, row, block = [], 0, 0
  for array in arrays:
    columns = array.shape[-1] if len(array.shape) > 1 else signs.BLOCK
    if columns == 0 or columns % signs.BLOCK:
      columns = signs.BLOCK  # blocks would straddle rows: packed as a vector
    leaf = _Leaf(math.prod(array.shape), columns, row, block)
    leaves.append(leaf)
    row += leaf.rows
    block += leaf.blocks
  return Bucket(tuple(leaves), row, row + -(-block // bits.WORD))


def split(tree: Any) -> tuple[list[jax.Array], Callable[[list], Any]]:
  """Takes the floating leaves out of a tree.

  Integer, boolean and float0 leaves have no sign to vote on: they stay where
  they are.

  Args:
    tree: any pytree of arrays.

  Returns:
    the floating leaves, and a function that puts their successors in place.

  Raises:
    TypeError: a leaf is complex; the message has its path.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import trees
    >>> leaves, rebuild = trees.split({'step': jnp.int32(3), 'w': jnp.ones(2)})
    >>> rebuild([-leaf for leaf in leaves])
    {'step': Array(3, dtype=int32), 'w': Array([-1., -1.], dtype=float32)}
  """
  everything, treedef = jax.tree.flatten(tree)
  floating = list(_floating(tree))

  def rebuild(leaves: list) -> Any:
    result = list(everything)
    for i, leaf in zip(floating, leaves, strict=True):
      result[i] = leaf
    return jax.tree.unflatten(treedef, result)

  return [jnp.asarray(everything[i]) for i in floating], rebuild


def paths(tree: Any) -> list[str]:
  """Where the leaves that :func:`split` takes out are in the tree.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import trees
    >>> trees.paths({'step': jnp.int32(3), 'w': jnp.ones(2)})
    ["['w']"]
  """
  return list(_floating(tree).values())


def _floating(tree: Any) -> dict[int, str]:
  """Places and paths of the floating leaves; a complex one is refused."""
  found = {}
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  for i, (path, leaf) in enumerate(leaves):
    dtype = np.dtype(jnp.result_type(leaf)) if np.isscalar(leaf) else leaf.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
      raise TypeError(
        f'leaf {jax.tree_util.keystr(path)} is {dtype}: a complex number has no'
        ' sign. Split it into real and imaginary parts, which'
        ' optax.contrib.split_real_and_imaginary does around a transformation.'
      )
    if jnp.issubdtype(dtype, jnp.floating):
      found[i] = jax.tree_util.keystr(path)
  return found


def is_inexact(leaf: Any) -> bool:
  """Whether a leaf can have a gradient, which an integer (float0) has not."""
  return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def gathered(array: jax.Array) -> jax.Array:
  """The array on every device of a worker, if the mesh says it is spread.

  With explicit sharding a reshape must know where each element goes. Where a
  worker is one device, or the compiler decides (auto axes), nothing happens.
  """
  if any(axis is not None for axis in _spec(array)):
    return jax.sharding.reshard(array, jax.P(*[None] * array.ndim))
  return array


def sharded_like(array: jax.Array, like: jax.Array) -> jax.Array:
  """The array where another one lies: undoes :func:`gathered`."""
  spec = _spec(like)
  if any(axis is not None for axis in spec):
    return jax.sharding.reshard(array, spec)
  return array


def _sign(array: jax.Array) -> jax.Array:
  """The sign as a small integer; a NaN is neither above nor below zero."""
  return (array > 0).astype(jnp.int8) - (array < 0).astype(jnp.int8)


def _planes(fn: Callable, tally: signs.Tally) -> signs.Tally:
  """Applies a function to every plane of a tally."""
  return jax.tree.map(
    lambda plane: plane if isinstance(plane, int) else fn(plane), tally
  )


def _spec(array: jax.Array) -> jax.sharding.PartitionSpec:
  return jax.typeof(array).sharding.spec
