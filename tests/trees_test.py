"""The bucket: where elements go, what fills up, what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import messages, signs, trees

SHAPES = [
  (),
  (0,),
  (3, 0),
  (1,),
  (127,),
  (128,),
  (129,),
  (4096,),
  (4097,),
  (33, 256),
  (64, 128),
  (2, 40, 128),
  (70, 30),
]


def _leaves(seed):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.choice([-1.0, 1.0], s), jnp.float32) for s in SHAPES]


def test_what_is_packed_comes_back():
  leaves = _leaves(0)
  bucket = trees.plan(leaves)
  positive, _ = bucket.pack(leaves)
  assert positive.shape == (bucket.rows, signs.BLOCK)
  back = bucket.unpack(signs.Tally(2, (positive,), 1), 1, like=leaves)
  for leaf, result in zip(leaves, back, strict=True):
    np.testing.assert_array_equal(result, leaf)
    assert result.dtype == leaf.dtype


def test_no_two_leaves_share_a_block():
  """A leaf that is idle must not get the coins of its neighbours."""
  leaves = _leaves(1)
  bucket = trees.plan(leaves)
  for i, shape in enumerate(SHAPES):
    only = [x if j == i else jnp.zeros_like(x) for j, x in enumerate(leaves)]
    _, grid = bucket.pack(only)
    votes = signs.cast(grid, grid, 'block', jax.random.key(0))
    counted = signs.majority_tally(votes)._replace(
      planes=votes.blocks, weight=1
    )
    counted = counted._replace(
      planes=(jnp.broadcast_to(votes.blocks[0], grid.shape),), offset=0
    )
    touched = bucket.unpack(counted, 1, like=leaves)
    for j, result in enumerate(touched):
      np.testing.assert_array_equal(result, float(i == j), err_msg=str(shape))


def test_padding_is_less_than_a_row_and_a_block_a_leaf():
  leaves = [jnp.zeros(s) for s in SHAPES]
  needed = sum(-(-x.size // signs.BLOCK) for x in leaves)
  assert trees.plan(leaves).rows == -(-needed // 32)


def test_blocks_are_128_consecutive_elements_of_a_row():
  leaf = jnp.zeros((64, 256)).at[5, 128:].set(1.0)
  grid, _ = trees.plan([leaf]).pack([leaf])
  votes = signs.cast(grid, grid, 'block', jax.random.key(0))
  flags = np.asarray(votes.blocks[0]).reshape(2, 2)  # groups x blocks of a row
  np.testing.assert_array_equal(flags, [[0, 1 << 5], [0, 0]])


def test_split_leaves_integers_alone_and_refuses_complex_by_path():
  tree = {'i': jnp.arange(2), 'f': jnp.ones(2), 'n': None, 'b': jnp.array(True)}
  floats, rebuild = trees.split(tree)
  assert [f.shape for f in floats] == [(2,)]
  rebuilt = rebuild([floats[0] * 2])
  assert rebuilt['n'] is None
  np.testing.assert_array_equal(rebuilt['i'], tree['i'])
  with pytest.raises(TypeError, match=r"\['z'\].*complex64"):
    trees.split({'z': jnp.ones(2, jnp.complex64)})


@pytest.mark.parametrize('rows', [1, 9, 40])
@pytest.mark.parametrize('workers', [1, 3, 8, 130])
def test_messages_cut_and_join(rows, workers):
  rng = np.random.default_rng(rows)

  def words(*shape):
    return jnp.asarray(rng.integers(0, 2**32, shape, dtype=np.uint32))

  grids = signs.Grids(
    (words(rows, 128), words(rows, 128)), (words(rows, 1),), (words(1, 1),)
  )
  cut = messages.cut(rows, workers)
  assert cut.workers == workers
  sent = cut.cut(grids)
  joined = cut.join(sent, grids)
  jax.tree.map(np.testing.assert_array_equal, joined, grids)
  # the mask by block that a worker gets is the one of its elements
  chunks = cut.read(sent, grids)
  spread = grids._replace(
    elements=tuple(jnp.broadcast_to(g, (rows, 128)) for g in grids.blocks)
  )
  own = cut.read(cut.cut(spread), spread).elements[0]
  lanes = own.shape[2]
  expected = np.broadcast_to(chunks.blocks[0], own.shape)
  filled = np.asarray(own) != 0  # beyond the last column there is nothing
  assert lanes == cut.width
  np.testing.assert_array_equal(np.asarray(own)[filled], expected[filled])


@pytest.mark.parametrize('workers', [2, 3, 8])
def test_cut_wastes_little(workers):
  for rows in (1, 5, 9, 30, 100, 1000):
    cut = messages.cut(rows, workers)
    words = workers * cut.height * (cut.width + 1)
    assert words <= 1.1 * rows * 129 + 129
