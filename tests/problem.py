"""The problem that methods are tried on, and runs of it.

Each worker has a quadratic loss of its own, with noise, on a small tree of
leaves of all kinds.
"""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import reference

import signmomentum as sm
from signmomentum import draws

AXIS = 'workers'
STEPS = 11  # three rounds, and a part of one
TRACES = collections.Counter()  # of the steps of runs

SHAPES = {
  'matrix': (40, 128),  # a whole tile of 32 x 128, and a rest
  'odd': (5, 7),
  'bias': (9,),
  'scalar': (),
  'empty': (0, 3),
  'idle': (130,),  # nobody moves it: it shows what is done with zeros
}
SMALL = {'odd': (5, 7), 'bias': (9,)}


def start(shapes, dtype=np.float64):
  """The parameters from which all start; one leaf is None."""
  draw = np.random.default_rng(1)
  tree = {k: draw.normal(size=s).astype(dtype) for k, s in shapes.items()}
  return {**tree, 'none': None}


def targets(shapes, workers, steps=STEPS):
  """Where each worker wants to go: a tree ``[workers, ...]`` per step."""
  draw = np.random.default_rng(2)
  far = {k: draw.normal(size=(workers, *s)) for k, s in shapes.items()}

  def at_one_step():
    near = {k: v + draw.normal(size=v.shape) for k, v in far.items()}
    if 'idle' in near:
      near['idle'] *= 0
    return {**near, 'none': None}

  return [at_one_step() for _ in range(steps)]


def gradients(params, target):
  """Of ``(params - target)^2 / 2``; of the idle leaf, its zero target."""

  def loss(params):
    return sum(
      jnp.sum(leaf * target[name])  # the compiler must not know that it is 0
      if name == 'idle'
      else jnp.sum((leaf - target[name]) ** 2) / 2
      for name, leaf in params.items()
      if leaf is not None
    )

  return jax.grad(loss)(params)


def vector(tree, lead=0):
  """All elements in one vector, after ``lead`` axes."""
  leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(
    [leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=lead
  )


def is_idle(shapes):
  """Which elements of the vector belong to the idle leaf."""
  return vector({k: np.full(s, k == 'idle') for k, s in shapes.items()})


def vector_gradient(shapes, steps_targets):
  """The gradient for ``reference.run``."""
  there = [vector(tree, lead=1) for tree in steps_targets]
  moves = ~is_idle(shapes)
  return lambda i, t, x: moves * (x - there[t][i])


def size(shapes):
  """Elements of all leaves together."""
  return sum(math.prod(shape) for shape in shapes.values())


def tree_of(number):
  """The shapes, of all trees that are used, that have so many elements."""
  trees = (SHAPES, SMALL, *({name: SMALL[name]} for name in SMALL))
  (shapes,) = (tree for tree in trees if size(tree) == number)
  return shapes


def layers(number):
  """The slices of such a vector that are not empty leaves."""
  slices, start = [], 0
  for _, shape in sorted(tree_of(number).items()):
    end = start + math.prod(shape)
    if end > start:
      slices.append(slice(start, end))
    start = end
  return slices


def dice(seed):
  """The library's draws, for the reference: by worker, step, and leaf."""

  def throw(worker, t, number):
    shapes = tree_of(number)
    paths = [f"['{name}']" for name in sorted(shapes)]
    keys = draws.leaf_keys(draws.key(seed, t, worker), paths)
    words = np.concatenate(
      [
        draws.words(key, np.arange(math.prod(shapes[name]), dtype=np.uint32), 1)
        for name, key in zip(sorted(shapes), keys, strict=True)
      ],
      axis=1,
    )[0]
    return (words >> 1) / 2**31, words & 1 == 1

  return throw


class Rounding:
  """The library's blocks, and its draws to round them, for the reference.

  Args:
    bits: of a level.
    block_size: elements in a block.
    sharded: whether a worker's part is one of each leaf, not of all of them.
    seed: of the draws.
  """

  def __init__(self, bits, block_size=128, sharded=False, seed=0):
    self.group, self.block_size = 32 // bits, block_size
    self.sharded, self.seed = sharded, seed

  def blocks(self, number, n):
    return [block for block in self._rows(number, n) if block.stop]

  def up(self, worker, t, number, n):
    rows = self._rows(number, n)
    key, _ = jax.random.split(draws.key(self.seed, t, worker))
    return self._uniform(key, rows, number)

  def down(self, t, number, n):
    rows = self._rows(number, n)
    share = self.group * math.ceil(len(rows) / self.group / n)
    result = np.zeros(number)
    for owner in range(n):
      own = rows[owner * share : (owner + 1) * share]
      _, key = jax.random.split(draws.key(self.seed, t, owner))
      result += self._uniform(key, own, number)
    return result

  def _rows(self, number, n):
    """Slices in the order of rows of the grid; what fills up is empty."""
    rows, joint = [], []
    if self.sharded:
      for worker in range(n):
        for leaf in layers(number):
          width = math.ceil((leaf.stop - leaf.start) / n)
          start = min(leaf.start + worker * width, leaf.stop)
          end = min(start + width, leaf.stop)
          cut = self._cut(slice(start, end))
          rows += cut + [slice(0, 0)] * (
            math.ceil(width / self.block_size) - len(cut)
          )
        self._fill(rows)
      return rows
    for leaf in layers(number):
      cut = self._cut(leaf)
      if len(cut) >= 32 * self.group:
        rows += cut
        self._fill(rows)
      else:
        joint += cut
    rows += joint
    self._fill(rows)
    return rows

  def _cut(self, part):
    return [
      slice(start, min(start + self.block_size, part.stop))
      for start in range(part.start, part.stop, self.block_size)
    ]

  def _fill(self, rows):
    rows += [slice(0, 0)] * (-len(rows) % self.group)

  def _uniform(self, key, rows, number):
    groups = len(rows) // self.group
    counter = jnp.arange(groups * self.block_size, dtype=jnp.uint32)
    words = np.stack(draws.words(key, counter, self.group // 4))
    result = np.zeros(number)
    for i, block in enumerate(rows):
      group, place = divmod(i, self.group)
      word = words[place // 4].reshape(-1, self.block_size)[group]
      by = np.uint32(8 * (place % 4))
      turned = word << by | word >> (np.uint32(32) - by) if by else word
      result[block] = turned[: block.stop - block.start] / 2**32
    return result


# Runs.


def initial(tx, params, workers):
  """State of one worker, also of what must know how many there are."""
  stacked = jax.vmap(tx.init, None, axis_name=AXIS, axis_size=workers)(params)
  return jax.tree.map(lambda leaf: leaf[0], stacked)


def one_worker_step(tx, sync=None):
  """A training step as a user writes it; returns also its own parameters."""
  extra = {} if sync is None else {'sync': sync}

  def step(state, target):
    own = gradients(sm.as_local(state.params), target)
    updates, opt_state = tx.update(own, state.opt_state, state.params, **extra)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), params

  return step


def advance(step, state, targets):
  """States and each worker's parameters ``[steps, workers, size]``, on host."""
  states, trajectory = [], []
  for target in targets:
    state, params = step(state, target)
    states.append(jax.device_get(state))
    trajectory.append(vector(params, lead=1))
  return states, np.stack(trajectory)


def run(tx, workers, shapes, targets):
  """From the start; with the dtype that the moment's settings have."""
  dtype = jnp.result_type(float)
  state = workers.init(tx, start(shapes, dtype))
  inner = one_worker_step(tx)

  def counted(state, target):
    TRACES[step] += 1
    return inner(state, target)

  step = workers.step(counted)
  return step, *advance(step, state, in_dtype(targets))


def in_dtype(targets):
  return optax.tree.cast(targets, jnp.result_type(float))


def expected(method, shapes, workers, targets):
  """The trajectory of a NumPy transcription."""
  return reference.run(
    method,
    vector(start(shapes)),
    vector_gradient(shapes, targets),
    workers,
    len(targets),
  )


def mesh(count, kind):
  return jax.make_mesh(
    (count,), (AXIS,), (kind,), devices=jax.devices()[:count]
  )


def run_mapped(tx, kind, targets):
  """A trajectory over 3 devices without the help of ``sm.Workers``."""
  params = start(SMALL)
  state = sm.WorkerState(params, initial(tx, params, 3))
  leaves, treedef = jax.tree.flatten(state)
  own = jax.tree.leaves(sm.worker_varying(tx, params))
  leaves = [
    np.broadcast_to(leaf, (3, *np.shape(leaf))) if mine else leaf
    for leaf, mine in zip(leaves, own, strict=True)
  ]

  def step(leaves, target):
    state = jax.tree.unflatten(treedef, leaves)
    state, params = one_worker_step(tx)(state, target)
    return jax.tree.leaves(state), params

  mapped, trajectory = mapping(kind, step, own), []
  for target in targets:
    leaves, params = mapped(leaves, target)
    trajectory.append(vector(params, lead=1))
  return np.stack(trajectory)


def mapping(kind, step, own):
  if kind == 'pmap':
    axes = [0 if mine else None for mine in own]
    return jax.pmap(step, AXIS, in_axes=(axes, 0), out_axes=(axes, 0))

  def on_one_device(leaves, target):
    leaves = [
      leaf[0] if mine else leaf for leaf, mine in zip(leaves, own, strict=True)
    ]
    leaves, params = step(leaves, jax.tree.map(lambda x: x[0], target))
    leaves = [
      leaf[None] if mine else leaf
      for leaf, mine in zip(leaves, own, strict=True)
    ]
    return leaves, jax.tree.map(lambda x: x[None], sm.as_local(params))

  specs = [jax.P(AXIS) if mine else jax.P() for mine in own]
  specs = (specs, jax.P(AXIS))
  return jax.jit(
    jax.shard_map(
      on_one_device,
      mesh=mesh(3, jax.sharding.AxisType.Auto),
      in_specs=specs,
      out_specs=specs,
      check_vma=kind == 'checked',
    )
  )
