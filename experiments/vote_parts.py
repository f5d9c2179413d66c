"""The parts of a vote, timed against a copy of as many bytes.

Each reads its inputs once and writes its outputs once, at best. Where nothing
but memory limits it, it takes as long as `x * 1.5` on an array that has as many
bytes to read and to write.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments import turns
from signmomentum import bits, signs

_COLUMNS = 1024  # of the matrix of parameters
ROW = bits.WORD * _COLUMNS  # parameters in a row of its words


class Part(NamedTuple):
  """A part of a vote: a function, and what makes its arguments from a key."""

  run: Callable[..., Any]
  make: Callable[[jax.Array], tuple[Any, ...]]


def parts(parameters: int, voters: int) -> dict[str, Part]:
  """The parts of a vote, by name.

  Args:
    parameters: that are voted on, rounded down to whole rows of words.
    voters: how many.
  """
  groups = parameters // ROW
  words = (groups * _COLUMNS // signs.BLOCK, signs.BLOCK)
  random = functools.partial(jax.random.bits, dtype=jnp.uint32)

  def values(key):
    return (jax.random.normal(key, (32 * groups, _COLUMNS)),)

  def votes(key):
    elements, blocks = jax.random.split(key)
    elements = random(elements, (voters, *words))
    blocks = random(blocks, (voters, words[0], 1))
    return signs.Grids((elements,), (blocks,)), key

  def decided(key):
    same = jnp.broadcast_to(random(key, words), (voters, *words))
    everyone = jnp.full((voters, words[0], 1), 0xFFFFFFFF, jnp.uint32)
    return signs.Grids((same,), (everyone,)), key

  def result(key):
    elements, blocks = jax.random.split(key)
    blocks = random(blocks, (groups, _COLUMNS // signs.BLOCK))
    # Where nobody has voted, plus has not won.
    plus = random(elements, (groups, _COLUMNS))
    plus &= jnp.repeat(blocks, signs.BLOCK, axis=1)
    return (signs.Grids((plus,), (blocks,)),)

  def unpack(result):
    return signs.decode(signs.majority_tally(result), 1, jnp.float32)

  return {
    'pack': Part(functools.partial(bits.pack_signs, groups=groups), values),
    'pack_by_slices': Part(_pack_by_slices, values),
    'vote': Part(signs.majority, votes),
    'vote_decided': Part(signs.majority, decided),
    'unpack': Part(unpack, result),
  }


def measure(
  part: Part, repeats: int, calls: int, seed: int
) -> dict[str, float]:
  """Times a part of a vote in turns with a copy of as many bytes.

  Args:
    part: what to time.
    repeats: turns of each.
    calls: in a turn.
    seed: of the arguments.

  Returns:
    bytes that have to be moved, and those that XLA says it moves; seconds of
    both; the rate of the part, and its share of the copy's.
  """
  arguments = jax.jit(part.make)(jax.random.key(seed))
  run = jax.jit(part.run).lower(*arguments).compile()
  moved = sum(map(_nbytes, jax.tree.leaves((arguments, run.out_info))))
  array = jnp.ones(moved // 8, jnp.float32)  # which is read and written
  copy = jax.jit(lambda x: x * 1.5)
  seconds = turns.medians(
    {
      'part': functools.partial(run, *arguments),
      'copy': functools.partial(copy, array),
    },
    repeats,
    calls,
  )
  return {
    'bytes': moved,
    'compiler_bytes': (run.cost_analysis() or {}).get('bytes accessed'),
    'seconds': seconds['part'],
    'copy_seconds': seconds['copy'],
    'bytes_per_second': moved / seconds['part'],
    'share': seconds['copy'] / seconds['part'],
  }


def check(seed: int) -> None:
  """Sees that a small vote is right, by adding signs up.

  Raises:
    RuntimeError: it is wrong on this device.
  """
  values = jax.random.normal(jax.random.key(seed), (7, 64, _COLUMNS))
  key = jax.random.key(seed)

  @jax.jit
  def vote(values):
    pack = functools.partial(bits.pack_signs, groups=2)
    cast = [signs.cast(*pack(v), 'coin', key) for v in values]
    votes = jax.tree.map(lambda *grids: jnp.stack(grids), *cast)
    tally = signs.majority_tally(signs.majority(votes, key))
    return signs.decode(tally, 1, jnp.float32)

  expected = jnp.sign(jnp.sum(jnp.sign(values), axis=0))
  if not jnp.array_equal(vote(values), expected):
    raise RuntimeError('A vote on this device differs from the sum of signs.')


def _pack_by_slices(values_RxC: jax.Array) -> tuple[jax.Array, jax.Array]:
  """`bits.pack_signs` without a reduction."""
  rows = values_RxC.reshape(-1, 32, values_RxC.shape[1])
  positive = jnp.zeros(rows[:, 0].shape, jnp.uint32)
  nonzero = positive
  for bit in range(32):
    above, below = rows[:, bit] > 0, rows[:, bit] < 0
    positive |= above.astype(jnp.uint32) << bit
    nonzero |= (above | below).astype(jnp.uint32) << bit
  return positive, nonzero


def _nbytes(array: Any) -> int:
  if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
    return 8
  return array.size * array.dtype.itemsize
