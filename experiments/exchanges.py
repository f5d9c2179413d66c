"""What workers can exchange to agree on an update, to compare its cost.

    name           what comes back         bits up / down for each parameter
    fp32_mean      mean                    32 / 32
    bf16_mean      mean                    16 / 16
    int8_mean      mean, rounded           8 + 1/8 / the same
    int4_mean      mean, rounded           4 + 1/8 / the same
    sign_mean      mean of signs           1 + 1/128 / ceil(log2(n + 1)) of it
    gathered_vote  majority of signs       1, to each of the n - 1 others
    vote           majority of signs       1 + 1/128 / the same
    vote_words     nothing of use          the same

`gathered_vote` is how a vote is usually sent, in one hop, and here to compare
with. It has no second bit for zeros, which count as minus. `vote_words` is no
way to agree: it sends the words of a vote and neither encodes nor decodes, to
see what the collectives themselves take.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import signmomentum as sm
from signmomentum import bits, collectives

AXIS = 'workers'
_MASKED = 1 + 1 / 128
_SCALE = 16 / 128
_COLUMNS = 128


class Exchange(NamedTuple):
  """A way to agree.

  Attributes:
    label: for people.
    make: makes the transformation.
    bits: from the number of workers to the bits that each of them sends for a
      parameter, of a tree that is large and fills its words.
  """

  label: str
  make: Callable[[], optax.GradientTransformation]
  bits: Callable[[int], float]


def _two_hops(width: float) -> Callable[[int], float]:
  return lambda n: 2 * width * (n - 1) / n


def _mean(wire_dtype: Any, width: int) -> Exchange:
  return Exchange(
    f'{jnp.dtype(wire_dtype).name} mean',
    lambda: sm.aggregate_by_mean(AXIS, wire_dtype),
    _two_hops(width),
  )


def _quantized(width: int) -> Exchange:
  return Exchange(
    f'{width}-bit mean',
    lambda: sm.aggregate_by_quantized_mean(AXIS, width),
    _two_hops(width + _SCALE),
  )


def gathered_vote() -> optax.GradientTransformation:
  """A majority vote in one hop: every worker gets and counts all votes."""

  def update_fn(updates, state, params=None):
    del params
    leaves, tree = jax.tree.flatten(updates)
    flat = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    rows = -(-flat.size // (bits.WORD * _COLUMNS)) * bits.WORD
    padded = jnp.pad(flat, (0, rows * _COLUMNS - flat.size))
    words = bits.pack(padded.reshape(rows, _COLUMNS) > 0)
    votes = collectives.gather(words, AXIS)
    plus = bits.count(votes)
    twice = (jnp.zeros_like(plus[0]), *plus)
    wins, ties = bits.compare(twice, bits.constant(votes.shape[0]))
    wins, ties = (bits.unpack(w).astype(jnp.int8) for w in (wins, ties))
    signs = (2 * wins - 1 + ties).astype(flat.dtype).reshape(-1)
    results, start = [], 0
    for leaf in leaves:
      part = signs[start : start + leaf.size]
      results.append(part.reshape(leaf.shape))
      start += leaf.size
    return jax.tree.unflatten(tree, results), state

  return optax.GradientTransformation(optax.init_empty_state, update_fn)


def vote_words() -> optax.GradientTransformation:
  """The collectives of a vote in two hops, of numbers as they are."""

  def update_fn(updates, state, params=None):
    del params
    flat = jnp.concatenate([leaf.reshape(-1) for leaf in updates])
    n = collectives.worker_count(AXIS)
    size = math.ceil(flat.size * _MASKED / bits.WORD / n)
    words = jax.lax.bitcast_convert_type(flat[: n * size], jnp.uint32)
    arrived = collectives.exchange(words.reshape(n, size), AXIS)
    mixed = jnp.sum(arrived, axis=0, dtype=jnp.uint32)
    return [collectives.gather(mixed, AXIS).reshape(-1)], state

  return optax.GradientTransformation(optax.init_empty_state, update_fn)


METHODS: Mapping[str, Exchange] = {
  'fp32_mean': _mean(jnp.float32, 32),
  'bf16_mean': _mean(jnp.bfloat16, 16),
  'int8_mean': _quantized(8),
  'int4_mean': _quantized(4),
  'sign_mean': Exchange(
    'mean of signs',
    lambda: sm.aggregate_by_sign_mean(AXIS),
    lambda n: (1 + math.ceil(math.log2(n + 1))) * _MASKED * (n - 1) / n,
  ),
  'gathered_vote': Exchange(
    'vote by all-gather', gathered_vote, lambda n: float(n - 1)
  ),
  'vote': Exchange(
    'vote in two hops',
    lambda: sm.aggregate_by_majority_vote(AXIS),
    _two_hops(_MASKED),
  ),
}
EXCHANGES: Mapping[str, Exchange] = {
  **METHODS,
  'vote_words': Exchange('... its words alone', vote_words, _two_hops(_MASKED)),
}


def leaf_sizes(parameters: int, leaves: int) -> list[int]:
  """Sizes of equal leaves, as nearly as may be."""
  return [
    parameters * (i + 1) // leaves - parameters * i // leaves
    for i in range(leaves)
  ]


def build(
  name: str, mesh: jax.sharding.Mesh, sizes: list[int]
) -> tuple[jax.stages.Compiled, Any]:
  """Compiles an exchange of a tree of vectors among the devices of a mesh.

  Args:
    name: a key of `EXCHANGES`.
    mesh: of one axis, `AXIS`.
    sizes: of the leaves.

  Returns:
    what takes the updates of all workers, a list of `[workers, size]`, and a
    state, and returns what they agree on and a state; and the first state.
  """
  tx = EXCHANGES[name].make()
  own = jax.NamedSharding(mesh, jax.P(AXIS))
  same = jax.NamedSharding(mesh, jax.P())
  updates = [
    jax.ShapeDtypeStruct((mesh.size, size), jnp.float32, sharding=own)
    for size in sizes
  ]
  init = jax.jit(lambda: tx.init([jnp.zeros(1)]), out_shardings=same)

  def exchange(updates, state):
    return tx.update([update[0] for update in updates], state)

  mapped = jax.shard_map(
    exchange,
    mesh=mesh,
    in_specs=(jax.P(AXIS), jax.P()),
    out_specs=(jax.P(), jax.P()),
  )
  state = init()
  return jax.jit(mapped).lower(updates, state).compile(), state


def mesh(devices: list[jax.Device]) -> jax.sharding.Mesh:
  """A mesh with a worker on each device."""
  auto = (jax.sharding.AxisType.Auto,)
  return jax.make_mesh((len(devices),), (AXIS,), auto, devices=devices)
