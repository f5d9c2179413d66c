"""Random trees, values and numbers of workers against NumPy.

Examples are derived from the code: in each run of the same they are the same.
"""

import functools
import pathlib
import tempfile

import hypothesis
from hypothesis import configuration
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import signmomentum as sm
from signmomentum import bits, messages, signs, trees

# its cache, which pytest fills before any fixture, would be in the repository
configuration.set_hypothesis_home_dir(
  pathlib.Path(tempfile.gettempdir(), 'signmomentum-hypothesis')
)
examples = functools.partial(
  hypothesis.settings,
  database=None,
  deadline=None,
  derandomize=True,
  # to make an example that fails smaller would compile it for minutes
  phases=[hypothesis.Phase.generate],
  print_blob=True,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
BLOCK = 128
# Many programs that run a few times each. Without optimization the votes of 33
# workers would run for half a minute, though: adders are then not shared.
QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}

# Strategies.

WORKERS = st.sampled_from([*range(1, 10), 33])
SIZES = st.one_of(
  st.integers(0, 5),
  st.sampled_from([31, 32, 33, 127, 128, 129, 256]),
  st.integers(0, 700),
)
SHAPES = st.one_of(
  st.just(()),
  st.tuples(SIZES),
  st.lists(st.integers(0, 9), min_size=2, max_size=4).map(tuple),
  st.sampled_from(  # whole tiles of 32 rows, alone and with a rest
    [(64, 256), (33, 128), (2, 20, 128), (4096,), (4097,), (31, 256), (40, 3)]
  ),
)
FLOATS = [jnp.float32, jnp.bfloat16, jnp.float16]
INTEGERS = [jnp.int32, jnp.int8, jnp.bool_]


def leaves_of(dtypes):
  return st.builds(jax.ShapeDtypeStruct, SHAPES, st.sampled_from(dtypes))


def trees_of(dtypes):
  """Arrays and None in lists, tuples and dicts, or one array alone."""
  leaf = leaves_of(dtypes)
  branch = st.one_of(
    leaf,
    st.lists(leaf, max_size=3),
    st.tuples(leaf, st.none()),
    st.dictionaries(st.sampled_from('abc'), leaf, max_size=3),
  )
  tree = st.lists(branch, min_size=1, max_size=3)
  return st.one_of(leaf, tree, tree.map(tuple), tree.map(by_letter))


def by_letter(branches):
  return dict(zip('abc', branches, strict=False))


MEAN = ('mean', ())
VOTES = [
  (kind, (zeros,))
  for kind in ('majority_vote', 'sign_mean')
  for zeros in signs.ZEROS
]
QUANTIZED = [('quantized_mean', (bits,)) for bits in (8, 4, 2)]
# of how many kinds the numbers of a leaf are
PALETTES = st.lists(
  st.sampled_from(
    ['zero', 'normal', 'one', 'tiny', 'denormal', 'large', 'inf', 'nan']
  ),
  min_size=1,
  max_size=4,
)
SEEDS = st.integers(0, 2**32 - 1)


def numbers(leaf, n, palette, draw):
  """Numbers ``[n, *shape]`` of a palette, with either sign, some blocks 0."""
  shape, dtype = (n, *leaf.shape), np.dtype(leaf.dtype)
  if not jnp.issubdtype(dtype, jnp.floating):
    return draw.integers(0, 2, shape).astype(dtype)
  limits = jnp.finfo(dtype)
  colours = {
    'zero': np.zeros(shape),
    'normal': draw.normal(size=shape),
    'one': np.ones(shape),
    'tiny': np.full(shape, float(limits.tiny)),
    'denormal': np.full(shape, float(limits.smallest_subnormal)),
    'large': np.full(shape, largest(dtype)),
    'inf': np.full(shape, np.inf),
    'nan': np.full(shape, np.nan),
  }
  which = draw.integers(0, len(palette), shape)
  chosen = np.choose(which, [colours[name] for name in palette])
  flat = (chosen * draw.choice([-1, 1], shape)).reshape(n, -1)
  blocks = -(-flat.shape[1] // BLOCK)
  idle = draw.random((n, blocks)) < draw.choice([0.0, 0.3, 0.8])
  flat = np.where(by_element(idle, flat.shape[1]), 0, flat)
  return flat.reshape(shape).astype(dtype)


def largest(dtype):
  """What even 33 workers can add up; f16 is divided first."""
  return float(jnp.finfo(dtype).max) / (2 if dtype == np.float16 else 64)


def by_element(blocks_NxB, size):
  return np.repeat(blocks_NxB, BLOCK, axis=1)[:, :size]


# What workers must get back, element by element.


def check_mean(result_D, x_NxD, present_N):
  limits = jnp.finfo(result_D.dtype)
  there = x_NxD[present_N].astype(np.float64)
  n = max(len(there), 1)
  with np.errstate(invalid='ignore'):  # inf - inf
    truth = there.sum(axis=0) / n
  finite = np.isfinite(truth)
  # each worker's number, each partial sum and the quotient are rounded
  largest = np.abs(there).max(axis=0, initial=0)
  error = (n + 2) * (float(limits.eps) * largest + float(limits.tiny))
  result = result_D.astype(np.float64)
  np.testing.assert_array_equal(result[~finite], truth[~finite])
  assert np.all(np.abs(result[finite] - truth[finite]) <= error[finite])


def check_quantized_mean(result_D, bits, x_NxD, present_N):
  """No further off than each hop can go; all of a block is NaN, or nothing."""
  limits, most = jnp.finfo(result_D.dtype), 2 ** (bits - 1) - 1
  there = x_NxD[present_N].astype(np.float64)
  n, size = max(len(there), 1), there.shape[1]
  padded = np.pad(there, ((0, 0), (0, -size % BLOCK)))
  blocks = np.abs(padded).reshape(len(there), padded.shape[1] // BLOCK, BLOCK)
  largest = blocks.max(axis=2, initial=0)
  largest[largest > 3.38e38 * most] = np.inf  # no bfloat16 reaches it
  finite = by_element(np.isfinite(largest).all(axis=0)[None], size)[0]
  result = result_D.astype(np.float64)
  assert np.isnan(result[~finite]).all()
  # a sum may leave the range of f32 at both ends
  extreme = largest.max(axis=0, initial=0) > 1e36
  finite &= ~(np.isnan(result) & by_element(extreme[None], size)[0])
  # a scale is rounded up by 1/128 at most, and is never below the smallest
  # normal f32; then the mean of numbers that are a scale too large
  tiny = float(jnp.finfo(jnp.float32).tiny)
  unit = np.where(largest > 0, np.maximum(largest / most * 129 / 128, tiny), 0)
  step = unit.sum(axis=0) / n
  again = ((largest * 129 / 128).sum(axis=0) / n / most + tiny) * 129 / 128
  bound = by_element((step + again)[None], size)[0]
  rounding = float(limits.eps) * np.abs(result) + float(limits.tiny)
  with np.errstate(invalid='ignore'):  # inf - inf
    off = np.abs(result - there.sum(axis=0) / n)
  assert np.all(off[finite] <= (bound + rounding)[finite])
  idle = by_element((largest == 0).all(axis=0)[None], size)[0]
  assert np.all(result[idle] == 0)


def check_majority_vote(result_D, zeros, x_NxD, present_N):
  total, coins, voters = count(zeros, x_NxD, present_N)
  result = result_D.astype(np.float64)
  decided = np.abs(total) > coins  # whatever the coins say
  np.testing.assert_array_equal(result[decided], np.sign(total)[decided])
  if zeros == 'exact':
    assert np.all(result[~decided] == 0)
  else:
    np.testing.assert_array_equal(
      np.abs(result[~decided]), voters[~decided] > 0
    )


def check_sign_mean(result_D, zeros, x_NxD, present_N):
  total, coins, _ = count(zeros, x_NxD, present_N)
  n = max(present_N.sum(), 1)
  result = result_D.astype(np.float64)
  # of the quotient in f32, and once more to a narrower dtype
  error = 2 * float(jnp.finfo(result_D.dtype).eps)
  found = np.rint(result * n)
  np.testing.assert_allclose(result, found / n, rtol=error, atol=0)
  assert np.all(np.abs(found - total) <= coins)
  assert np.all((found - total - coins) % 2 == 0)


def count(zeros, x_NxD, present_N):
  """The sum of signs without coins, the number of coins, and of voters."""
  sign = signs_of(x_NxD) * present_N[:, None]
  abstains = np.broadcast_to(~present_N[:, None], sign.shape)
  if zeros == 'exact':
    abstains = sign == 0
  if zeros == 'block':
    n, size = sign.shape
    padded = np.pad(sign, ((0, 0), (0, -size % BLOCK)))
    moves = padded.reshape(n, -1, BLOCK).any(axis=2)
    abstains = by_element(~moves, size)
  coins = ((sign == 0) & ~abstains).sum(axis=0)
  return sign.sum(axis=0), coins, (~abstains).sum(axis=0)


def signs_of(x):
  """Mathematical signs; of a NaN, 0.

  XLA on CPU takes a denormal number for 0, as ``jnp.sign`` shows, except those
  of f16, which it turns to f32 first.
  """
  limits = jnp.finfo(x.dtype)
  wide = x.astype(np.float64)
  sign = np.where(np.isnan(wide), 0, np.sign(wide))
  if limits.dtype != np.float16:
    sign[np.abs(wide) < float(limits.tiny)] = 0
  return sign.astype(int)


CHECKS = {
  'mean': check_mean,
  'quantized_mean': check_quantized_mean,
  'majority_vote': check_majority_vote,
  'sign_mean': check_sign_mean,
}


def compiled(aggregator, n):
  kind, zeros = aggregator
  tx = getattr(sm, f'aggregate_by_{kind}')('workers', *zeros)

  def worker(updates, present):
    return tx.update(updates, tx.init(updates), present=present)[0]

  # every worker's own result: integers are not shared
  run = jax.vmap(worker, axis_size=n, axis_name='workers')
  return jax.jit(run, compiler_options=QUICK if n < 10 else None)


def check(kind, zeros, tree, result, present):
  """All of a result; without a mask everybody is present."""
  assert jax.tree.structure(result) == jax.tree.structure(tree)
  for x, own in zip(
    jax.tree.leaves(tree), jax.tree.leaves(result), strict=True
  ):
    own = np.asarray(own)
    assert (own.shape, own.dtype) == (x.shape, x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.floating):
      np.testing.assert_array_equal(own, x)
      continue
    wide = own.astype(np.float64)
    np.testing.assert_array_equal(wide, np.broadcast_to(wide[:1], wide.shape))
    n = len(x)
    here = np.ones(n, bool) if present is None else present
    CHECKS[kind](own[0].reshape(-1), *zeros, x.reshape(n, -1), here)


def check_tree(tree, n, aggregator, masked, palettes, seed):
  run = compiled(aggregator, n)
  for palette in palettes:  # to compile is what takes long
    draw = np.random.default_rng(seed)
    fill = functools.partial(numbers, n=n, palette=palette, draw=draw)
    drawn = jax.tree.map(fill, tree)
    present = draw.random(n) < 0.6 if masked else None
    check(*aggregator, drawn, run(drawn, present), present)


def any_tree(dtypes):
  return hypothesis.given(
    tree=trees_of(dtypes),
    n=WORKERS,
    masked=st.booleans(),
    palettes=st.lists(PALETTES, min_size=3, max_size=3),
    seed=SEEDS,
  )


@pytest.mark.parametrize('aggregator', QUANTIZED, ids=str)
@examples(max_examples=4)
@any_tree(FLOATS * 3 + INTEGERS)
def test_quantized_mean_of_any_tree_is_near_it(aggregator, **example):
  check_tree(aggregator=aggregator, **example)


@pytest.mark.parametrize('aggregator', VOTES, ids=str)
@examples(max_examples=4)
@any_tree(FLOATS * 3 + INTEGERS)
def test_vote_on_any_tree_equals_numpy(aggregator, **example):
  check_tree(aggregator=aggregator, **example)


@examples(max_examples=10)
@any_tree(FLOATS * 3 + INTEGERS)
def test_mean_of_any_tree_equals_numpy(**example):
  check_tree(aggregator=MEAN, **example)


@pytest.mark.parametrize(
  'aggregator', [MEAN, QUANTIZED[1], VOTES[1], VOTES[3]], ids=str
)
@examples(max_examples=3)
@any_tree([jnp.float64, jnp.float32, jnp.int64])
def test_any_tree_with_float64_equals_numpy(aggregator, **example):
  with jax.enable_x64(True):
    check_tree(aggregator=aggregator, **example)


def numbers_of(dtype, shape):
  """Any at all, in any place."""
  bound, width = largest(dtype), 8 * np.dtype(dtype).itemsize
  elements = st.one_of(
    st.floats(-bound, bound, width=width),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, bound, np.inf, -np.inf, np.nan]),
  )
  return npst.arrays(dtype, shape, elements=elements)


@pytest.mark.parametrize(
  'aggregator, n, masked',
  [
    (MEAN, 3, True),
    (('majority_vote', ('block',)), 4, False),
    (('majority_vote', ('coin',)), 2, True),
    (('sign_mean', ('exact',)), 5, True),
  ],
  ids=str,
)
def test_any_numbers_equal_numpy(aggregator, n, masked):
  run = compiled(aggregator, n)

  @examples(max_examples=40, phases=hypothesis.Phase)
  @hypothesis.given(
    tree=st.fixed_dictionaries(
      {
        'wide': numbers_of(np.float32, (n, 7)),
        'narrow': numbers_of(np.float16, (n, 3)),
      }
    ),
    present=npst.arrays(bool, n) if masked else st.none(),
  )
  def check_numbers(tree, present):
    check(*aggregator, tree, run(tree, present), present)

  check_numbers()


# What is packed comes back.

quick = functools.partial(jax.jit, compiler_options=QUICK)


@examples(max_examples=10)
@hypothesis.given(
  tree=st.lists(leaves_of(FLOATS), max_size=6), palette=PALETTES, seed=SEEDS
)
def test_any_bucket_comes_back(tree, palette, seed):
  draw = np.random.default_rng(seed)
  leaves = [numbers(leaf, 1, palette, draw)[0] for leaf in tree]
  bucket = trees.plan(leaves)
  hypothesis.assume(bucket.rows)
  mask = words(draw, bucket.rows, 1)

  @quick
  def pack_and_unpack(leaves):
    grids = bucket.pack(leaves)
    by_block = jnp.broadcast_to(mask, (bucket.rows, BLOCK))
    tallies = [
      *(signs.Tally(1, (grid,), 0) for grid in grids),
      signs.Tally(1, (by_block,), 0),
      signs.Tally(1, (by_block,), (mask,)),
    ]
    return grids, [bucket.unpack(tally, 1, leaves) for tally in tallies]

  grids, unpacked = jax.device_get(pack_and_unpack(leaves))
  assert {grid.shape for grid in grids} == {(bucket.rows, BLOCK)}
  filled = sum(np.count_nonzero(signs_of(leaf)) for leaf in leaves)
  assert np.bitwise_count(grids[1]).sum() == filled  # the rest is zero
  for leaf, positive, nonzero, by_block, nothing in zip(
    leaves, *unpacked, strict=True
  ):
    assert (positive.shape, positive.dtype) == (leaf.shape, leaf.dtype)
    np.testing.assert_array_equal(positive, signs_of(leaf) > 0)
    np.testing.assert_array_equal(nonzero, signs_of(leaf) != 0)
    # a mask stands for 128 elements of one leaf, one after the other
    flat = by_block.reshape(1, -1)
    first = by_element(flat[:, ::BLOCK], leaf.size)
    np.testing.assert_array_equal(flat, first)
    assert not nothing.any()


@examples(max_examples=10)
@hypothesis.given(
  rows=st.integers(1, 300),
  n=st.one_of(st.integers(1, 40), st.integers(1, 400)),
  numbers_of_planes=st.tuples(
    st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
  ),
  seed=SEEDS,
)
def test_any_message_comes_back(rows, n, numbers_of_planes, seed):
  draw = np.random.default_rng(seed)
  grids = signs.Grids(
    *(
      tuple(words(draw, *shape) for _ in range(number))
      for number, shape in zip(
        numbers_of_planes, [(rows, BLOCK), (rows, 1), (1, 1)], strict=True
      )
    )
  )
  cut = messages.cut(rows, n)

  @quick
  def send(grids):
    sent = cut.cut(grids)
    written = jax.vmap(cut.write)(cut.read(sent, grids))
    return sent, written, cut.join(written, grids)

  sent, written, joined = send(grids)
  assert len(sent) == n
  np.testing.assert_array_equal(written, sent)
  jax.tree.map(np.testing.assert_array_equal, joined, grids)


@examples(max_examples=10)
@hypothesis.given(
  lead=st.lists(st.integers(0, 3), max_size=2),
  groups=st.integers(0, 3),
  columns=st.integers(0, 130),
  seed=SEEDS,
)
def test_any_rows_of_bits_come_back(lead, groups, columns, seed):
  packed = words(np.random.default_rng(seed), *lead, groups, columns)
  unpacked = quick(bits.unpack)(packed)
  assert unpacked.shape == (*lead, bits.WORD * groups, columns)
  np.testing.assert_array_equal(quick(bits.pack)(unpacked > 0), packed)


@examples(max_examples=20)
@hypothesis.given(a=st.integers(1, 40), b=st.integers(1, 9), seed=SEEDS)
def test_any_count_adds_up_and_compares(a, b, seed):
  draw = np.random.default_rng(seed)
  voters = words(draw, a, 3), words(draw, b, 3)
  counts = [bits.count(words) for words in voters]
  assert [len(c) for c in counts] == [a.bit_length(), b.bit_length()]
  total, (greater, equal) = bits.add(*counts), bits.compare(*counts)
  x, y = map(value, counts)
  np.testing.assert_array_equal(x, unpacked_bits(voters[0]).sum(axis=0))
  np.testing.assert_array_equal(value(total), x + y)
  np.testing.assert_array_equal(unpacked_bits(greater), x > y)
  np.testing.assert_array_equal(unpacked_bits(equal), x == y)


def words(draw, *shape):
  return draw.integers(0, 2**32, shape, np.uint32)


def unpacked_bits(words):
  return np.asarray(words)[..., None] >> np.arange(32, dtype=np.uint32) & 1


def value(planes):
  """The numbers in the planes of a count."""
  return sum(unpacked_bits(p).astype(int) << j for j, p in enumerate(planes))
