"""What votes cost on this machine, each compared in one run."""

import functools

import jax
import jax.numpy as jnp
import optax

from experiments import lion_steps, turns
import signmomentum as sm
from signmomentum import bits, messages, signs, trees


def counting(
  parameters: int, workers: int, repeats: int, seed: int
) -> dict[str, float]:
  """Compares ways to turn packed votes into a majority.

  Args:
    parameters: how many are voted on, rounded up to whole rows of words.
    workers: number of voters.
    repeats: how often each way has its turn.
    seed: of the votes.

  Returns:
    parameters per second of each, and how much faster bit-sliced counting is.
  """
  shape = (workers, -(-parameters // 4096), 128)
  words = jax.random.bits(jax.random.key(seed), shape, jnp.uint32)
  ways = {
    'bit_sliced': _bit_sliced,
    'unpack_and_sum': functools.partial(_unpack_and_sum, dtype=jnp.int32),
    'unpack_and_sum_bytes': functools.partial(_unpack_and_sum, dtype=jnp.int8),
  }
  seconds = _medians(
    {name: (way, words) for name, way in ways.items()}, repeats
  )
  voted = 32 * words[0].size
  return {
    **{f'{name}_parameters_per_second': voted / seconds[name] for name in ways},
    'ratio': seconds['unpack_and_sum'] / seconds['bit_sliced'],
    'ratio_bytes': seconds['unpack_and_sum_bytes'] / seconds['bit_sliced'],
  }


def whole(
  parameters: int, workers: int, repeats: int, seed: int
) -> dict[str, float]:
  """Times what one worker computes in a vote, against scaling an array.

  Args:
    parameters: how many are voted on, rounded up to whole rows of 1024.
    workers: number of voters.
    repeats: how often each has its turn.
    seed: of the values.

  Returns:
    seconds of each, and their ratio; also those of the three parts.
  """
  shape = (-(-parameters // 1024), 1024)
  values = jax.random.normal(jax.random.key(seed), shape)
  bucket = trees.plan([values])
  cut = messages.cut(bucket.rows, workers)
  key = jax.random.key(seed)

  def encode(values):
    cast = signs.cast(*bucket.pack([values]), 'block', key)
    return cut.cut(cast), cast

  def count(arrived):
    return cut.write(signs.majority(cut.read(arrived, like), key))

  def decode(answers, values):
    tally = signs.majority_tally(cut.join(answers, like))
    return bucket.unpack(tally, 1, [values])

  sent, like = jax.jit(encode)(values)
  like = jax.tree.map(lambda grid: jnp.zeros(grid.shape[1:]), like)
  answers = jnp.broadcast_to(jax.jit(count)(sent), sent.shape)

  def vote(values, answers):
    message, _ = encode(values)
    return count(message), decode(answers, values)

  seconds = _medians(
    {
      'scale': (lambda values: values * 1.5, values),
      'vote': (vote, values, answers),
      'encode': (lambda values: encode(values)[0], values),
      'count': (count, sent),
      'decode': (decode, answers, values),
    },
    repeats,
  )
  return {
    **{f'{name}_seconds': taken for name, taken in seconds.items()},
    'vote_to_scale': seconds['vote'] / seconds['scale'],
  }


def step(params: optax.Params, repeats: int) -> dict[str, float]:
  """Times a step of Distributed Lion on one worker, against one of Lion.

  Args:
    params: the parameters.
    repeats: how often each has its turn.

  Returns:
    seconds of each and their ratio; bytes per parameter that Distributed Lion
    needs for a while beyond those that Lion needs.
  """
  auto = (jax.sharding.AxisType.Auto,)
  axes = (1,), (lion_steps.AXIS,), auto
  mesh = jax.make_mesh(*axes, devices=jax.devices()[:1])
  figures = lion_steps.measure_update(params, mesh, repeats, calls=1)
  memory = figures['temporary_bytes']
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  return {
    **{f'{name}_seconds': taken for name, taken in figures['seconds'].items()},
    'distributed_lion_to_lion': figures['ratio'],
    'distributed_lion_extra_bytes_per_parameter': (
      memory['distributed_lion'] - memory['lion']
    )
    / count,
  }


def temporary_bytes(parameters: int, workers: int) -> float:
  """Bytes per parameter that a vote needs on each device for a while.

  Args:
    parameters: how many are voted on.
    workers: number of voters, each a device.
  """
  auto = (jax.sharding.AxisType.Auto,)
  devices = jax.devices()[:workers]
  mesh = jax.make_mesh((workers,), ('workers',), auto, devices=devices)
  tx = sm.aggregate_by_majority_vote('workers')
  state = tx.init(jnp.zeros(()))
  specs = jax.tree.map(lambda _: jax.P(), state)

  @jax.jit
  @jax.shard_map(
    mesh=mesh,
    in_specs=(jax.P('workers'), specs),
    out_specs=(jax.P(), specs),
  )
  def vote(gradients, state):
    return tx.update(gradients[0], state)

  gradients = jax.ShapeDtypeStruct(
    (workers, parameters),
    jnp.float32,
    sharding=jax.NamedSharding(mesh, jax.P('workers')),
  )
  compiled = vote.lower(gradients, state).compile()
  return compiled.memory_analysis().temp_size_in_bytes / parameters


def _bit_sliced(words_NxGxC: jax.Array) -> tuple[jax.Array, jax.Array]:
  plus = bits.count(words_NxGxC)
  # Plus wins where twice its count is above the number of voters.
  twice = (jnp.zeros_like(plus[0]), *plus)
  return bits.compare(twice, bits.constant(words_NxGxC.shape[0]))


def _unpack_and_sum(words_NxGxC: jax.Array, dtype) -> jax.Array:
  signs = 2 * bits.unpack(words_NxGxC).astype(dtype) - 1
  return jnp.sign(jnp.sum(signs, axis=0, dtype=dtype))


def _medians(ways: dict[str, tuple], repeats: int) -> dict[str, float]:
  """Returns the median time of each function of its arguments, in turns."""
  return turns.medians(
    {
      name: functools.partial(jax.jit(way), *arguments)
      for name, (way, *arguments) in ways.items()
    },
    repeats,
  )
