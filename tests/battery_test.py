"""Every property of every method: the columns over the rows of ``table``."""

import functools
import io
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problem
import pytest
import reference
import table

import signmomentum as sm
from signmomentum import wire

pytestmark = pytest.mark.usefixtures('quick_compilation')

COUNT = 4
F64 = {'rtol': 1e-11, 'atol': 1e-11}
F32 = {'rtol': 1e-5, 'atol': 1e-5}


def only_if(condition):
  """For the rows that meet a condition.

  The scope makes pytest take the methods one after the other, so that the
  properties of a method share its runs.
  """
  names = [name for name in table.METHODS if condition(name)]
  return pytest.mark.parametrize('name', names, scope='module')


def is_local(name):
  return table.METHODS[name].local


def has_plain(name):
  return table.METHODS[name].plain is not None


for_every_method = only_if(lambda name: True)


@functools.cache
def simulated(name):
  """The run that several properties look at: vmap, 4 workers, f32."""
  tx = table.METHODS[name].make(table.RATES['constant'])
  targets = problem.targets(problem.SHAPES, COUNT)
  return problem.run(tx, sm.Workers(COUNT), problem.SHAPES, targets)


@functools.cache
def compiled(name, count, sync=None):
  """A step for a device for each worker, and the state that it starts with.

  The state is to be put in place anew for each run, which consumes it.
  """
  tx = table.METHODS[name].make(table.RATES['constant'])
  types = jax.sharding.AxisType
  workers = sm.Workers(
    count, problem.mesh(count, types.Explicit if count == COUNT else types.Auto)
  )
  state = workers.init(tx, problem.start(problem.SHAPES, np.float32))
  target = problem.in_dtype(problem.targets(problem.SHAPES, count, 1))[0]
  step = workers.step(problem.one_worker_step(tx, sync))
  layout = jax.tree.map(lambda leaf: leaf.sharding, state)
  return step.lower(state, target).compile(), jax.device_get(state), layout


@functools.cache
def on_devices(name):
  """The same run as ``simulated``."""
  step, state, layout = compiled(name, COUNT)
  targets = problem.in_dtype(problem.targets(problem.SHAPES, COUNT))
  return step, *problem.advance(step, jax.device_put(state, layout), targets)


# 1 and 2: the numbers are those of the papers.


@for_every_method
def test_equals_reference(name):
  method, rate = table.METHODS[name], table.RATES['scheduled']
  # 7 equal numbers need not have themselves as their mean, unlike 3 or 4
  targets = problem.targets(problem.SHAPES, 7)
  with jax.enable_x64(True):
    _, _, actual = problem.run(
      method.make(rate), sm.Workers(7), problem.SHAPES, targets
    )
  truth = method.reference(table.function(rate))
  assert actual.dtype == np.float64
  np.testing.assert_allclose(
    actual, problem.expected(truth, problem.SHAPES, 7, targets), **F64
  )


@only_if(has_plain)
def test_one_worker_equals_the_plain_optimizer(name):
  method, rate = table.METHODS[name], table.RATES['scheduled']
  targets = problem.targets(problem.SHAPES, 1)
  with jax.enable_x64(True):
    _, _, actual = problem.run(
      method.make(rate), sm.Workers(1), problem.SHAPES, targets
    )
    gradient = problem.vector_gradient(problem.SHAPES, targets)
    plain = method.plain(rate)(
      problem.vector(problem.start(problem.SHAPES)),
      functools.partial(gradient, 0),
      problem.STEPS,
    )
  np.testing.assert_allclose(actual[:, 0], plain, **F64)


# 3: executors agree.


@for_every_method
def test_devices_equal_simulation(name):
  check_same(name, simulated(name)[1:], on_devices(name)[1:])


@pytest.mark.parametrize('kind', ['checked', 'unchecked', 'pmap'])
@only_if(table.is_first_of_its_kind)
def test_any_mapping_equals_reference(name, kind):
  method, rate = table.METHODS[name], table.RATES['constant']
  targets = problem.targets(problem.SMALL, 3)
  with jax.enable_x64(True):
    actual = problem.run_mapped(method.make(rate), kind, targets)
  truth = method.reference(table.function(rate))
  np.testing.assert_allclose(
    actual, problem.expected(truth, problem.SMALL, 3, targets), **F64
  )


def check_same(name, one, two):
  """Votes bit for bit, means to rounding."""
  if table.METHODS[name].exact:
    jax.tree.map(np.testing.assert_array_equal, one, two)
  else:
    jax.tree.map(functools.partial(np.testing.assert_allclose, **F32), one, two)


# 4: who is who does not matter.


@only_if(lambda name: not table.METHODS[name].random)
def test_permuting_workers_changes_nothing(name):
  step, states, trajectory = simulated(name)
  order = np.array([2, 0, 3, 1])
  tx = table.METHODS[name].make(table.RATES['constant'])
  start = problem.start(problem.SHAPES, np.float32)
  targets = problem.in_dtype(problem.targets(problem.SHAPES, COUNT))
  permuted, after = problem.advance(
    step,
    sm.Workers(COUNT).init(tx, start),
    jax.tree.map(lambda x: x[order], targets),
  )
  truth = jax.tree.unflatten(
    jax.tree.structure(states[-1]),
    [
      leaf[order] if own else leaf
      for leaf, own in zip(
        jax.tree.leaves(states[-1]), states[-1].varying, strict=True
      )
    ],
  )
  if table.METHODS[name].parts:  # which worker has which does not change
    truth, permuted[-1] = truth.params, permuted[-1].params
  check_same(name, (trajectory[:, order], truth), (after, permuted[-1]))


# 5: replicas are equal.


@for_every_method
def test_shared_is_stored_once(name):
  method = table.METHODS[name]
  _, states, _ = simulated(name)
  start = problem.start(problem.SHAPES)
  for state in states:
    lead = (COUNT,) if method.local else ()
    for params, shape in (
      (state.params, lead),
      (sm.synchronised(state.opt_state, state.params), ()),
    ):
      jax.tree.map(
        lambda leaf, first, shape=shape: np.testing.assert_equal(
          leaf.shape, (*shape, *first.shape)
        ),
        params,
        start,
      )


@for_every_method
def test_workers_are_equal_after_each_sync(name):
  method = table.METHODS[name]
  _, states, trajectory = simulated(name)
  every = table.SYNC_EVERY if method.local else 1
  for t in range(every - 1, problem.STEPS, every):
    anchor = problem.vector(
      sm.synchronised(states[t].opt_state, states[t].params)
    )
    # params + (anchor - params) rounds twice
    moved = np.abs(anchor - trajectory[t - 1]) if t else 0.0
    error = np.finfo(np.float32).eps * (np.abs(anchor) + moved)
    assert np.all(np.abs(trajectory[t] - anchor) <= error)
  if method.local:  # and between, they are not
    assert np.ptp(trajectory[every], axis=0).max() > 1e-3


# 6: nothing is compiled twice.


@for_every_method
def test_traces_and_compiles_once(name):
  # Other properties have used the step again. On devices a step is compiled
  # ahead in `on_devices`, and would refuse its own outputs as inputs.
  step, states, _ = simulated(name)
  target = problem.in_dtype(problem.targets(problem.SHAPES, COUNT, 1))[0]
  step(jax.tree.map(jnp.asarray, states[-1]), target)
  assert step._cache_size() == 1
  assert problem.TRACES[step] == 1


# 7 and 10: what is sent is what the formula says, and nothing else is.


@for_every_method
def test_bytes_equal_the_formula(name):
  program, _, _ = compiled(name, COUNT)
  # of what has stages or averages now and then, some is and some is not
  whole = table.METHODS[name].wire in ('mean', 'majority_vote', 'sign_mean')
  conditional = table.METHODS[name].local if whole else None
  check_bytes(name, program, COUNT, conditional)


@only_if(table.is_first_of_its_kind)
def test_bytes_of_more_workers_equal_the_formula(name):
  sync = True if table.METHODS[name].local else None
  program, _, _ = compiled(name, 8, sync)
  check_bytes(name, program, 8, conditional=None)


def check_bytes(name, program, count, conditional):
  found = [c for c in wire.collectives(program) if c.sent_bytes]
  sent = WIRES[table.METHODS[name].wire](count)
  kinds = {(c.kind, *c.dtypes) for c in found}
  assert kinds == set(sent)
  assert all(c.group_size == count for c in found)
  if conditional is not None:
    assert all(c.conditional == conditional for c in found)
  for kind in kinds:
    bits = sum(8 * c.sent_bytes for c in found if (c.kind, *c.dtypes) == kind)
    np.testing.assert_allclose(bits, sent[kind], err_msg=str(kind))
  np.testing.assert_allclose(
    wire.sent_bits_per_parameter(program, problem.start(problem.SHAPES)),
    sum(sent.values()) / problem.size(problem.SHAPES),
  )


@only_if(is_local)
def test_local_steps_send_nothing(name):
  program, _, _ = compiled(name, COUNT, sync=False)
  assert wire.collectives(program) == ()


# Bits that a worker sends, from shapes alone, by what carries them.


def sent_as_mean(n):
  return {
    ('all-reduce', 'f32'): 64 * problem.size(problem.SHAPES) * (n - 1) / n
  }


def sent_as_votes(up, down, masks, n):
  """Words of the bucket; ``up`` and ``down`` are bits for each element."""
  rows = blocks = 0
  for shape in problem.SHAPES.values():
    size = math.prod(shape)
    wide = len(shape) > 1 and shape[-1] and shape[-1] % 128 == 0
    tile = 32 * (shape[-1] if wide else 128)
    rows += size // tile * tile // 4096
    blocks += math.ceil(size % tile / 128)
  rows += math.ceil(blocks / 32)
  # a chunk is `height` rows of `width` words, and a mask of one word a row
  height, width = min(
    (
      (math.ceil(rows / (n // across)), math.ceil(128 / across))
      for across in range(1, n + 1)
      if n % across == 0
    ),
    key=lambda chunk: chunk[0] * (chunk[1] + 1),
  )
  return {
    ('all-to-all', 'u32'): 32 * height * (width + masks) * up * (n - 1),
    ('all-gather', 'u32'): 32 * height * (width + masks) * down * (n - 1),
  }


def sent_as_majority(n):
  return sent_as_votes(1, 1, 1, n)


def sent_as_sign_mean(n):
  return sent_as_votes(1, math.ceil(math.log2(n + 1)), 1, n)


def sent_as_ternary(n):
  scales = 64 * len(problem.SHAPES) * (n - 1) / n
  signs = sent_as_votes(2, math.ceil(math.log2(2 * n + 1)), 0, n)
  return signs | {('all-reduce', 'f32'): scales}


def sent_as_top_k(densities, n):
  def sent(density):
    sizes = map(math.prod, problem.SHAPES.values())
    size = 8 * sum(math.ceil(density * size) for size in sizes)
    # a long vector is filled up to rows of 128
    return size if size < 64 * 128 else size + -size % 128

  return {('all-gather', 'u8'): 8 * (n - 1) * sum(map(sent, densities))}


def sent_as_sharded_mean(n):
  parts = sum(math.ceil(math.prod(s) / n) for s in problem.SHAPES.values())
  columns = min(128, math.ceil(parts / 32))
  rows = math.ceil(parts / (32 * columns))
  # signs and a mask by row; then, where zeros are in between, all zeros
  words = rows * (columns + 1) + rows * columns
  return {
    ('all-to-all', 'f32'): 32 * parts * (n - 1),
    ('all-gather', 'u32'): 32 * words * (n - 1),
    ('all-reduce', 's32'): 64 * (n - 1) / n,
  }


def sent_as_quantized(bits, block_size, n):
  """The words of groups of blocks and, for two blocks, a word of scales."""
  group, groups, joint = 32 // bits, 0, 0
  for shape in problem.SHAPES.values():
    blocks = math.ceil(math.prod(shape) / block_size)
    if blocks >= 32 * group:
      groups += math.ceil(blocks / group)
    else:
      joint += blocks
  groups = math.ceil((groups + math.ceil(joint / group)) / n)
  sent = 32 * groups * (block_size + group // 2) * (n - 1)
  return {('all-to-all', 'u32'): sent, ('all-gather', 'u32'): sent}


def sent_as_quantized_sharded_mean(bits, block_size, n):
  group = 32 // bits
  blocks = sum(
    math.ceil(math.ceil(math.prod(shape) / n) / block_size)
    for shape in problem.SHAPES.values()
  )
  words = math.ceil(blocks / group) * (block_size + group // 2)
  sent = sent_as_sharded_mean(n)
  del sent['all-to-all', 'f32']
  return sent | {('all-to-all', 'u32'): 32 * words * (n - 1)}


WIRES = {
  'mean': sent_as_mean,
  'majority_vote': sent_as_majority,
  'sign_mean': sent_as_sign_mean,
  'majority_vote_and_mean': lambda n: sent_as_majority(n) | sent_as_mean(n),
  'ternary': sent_as_ternary,
  'top_k': functools.partial(sent_as_top_k, (0.3,)),
  'top_k_in_stages': functools.partial(sent_as_top_k, (0.25, 0.0625, 0.02)),
  'sharded_mean': sent_as_sharded_mean,
  'quantized': functools.partial(sent_as_quantized, 4, 8),
  'quantized_sharded_mean': functools.partial(
    sent_as_quantized_sharded_mean, 4, 128
  ),
}


# 8: a run that was saved goes on as if it had not been.


@pytest.mark.parametrize('devices', [False, True])
@for_every_method
def test_restored_run_equals_uninterrupted(name, devices):
  step, states, trajectory = (on_devices if devices else simulated)(name)
  targets = problem.in_dtype(problem.targets(problem.SHAPES, COUNT))
  layout = compiled(name, COUNT)[2] if devices else jax.devices()[0]
  middle = 4  # of a round
  file = io.BytesIO()
  np.savez(file, *jax.tree.leaves(states[middle]))
  file.seek(0)
  with np.load(file) as saved:
    leaves = [saved[key] for key in saved.files]
  restored = jax.tree.unflatten(jax.tree.structure(states[middle]), leaves)
  later, rest = problem.advance(
    step, jax.device_put(restored, layout), targets[middle + 1 :]
  )
  np.testing.assert_array_equal(rest, trajectory[middle + 1 :])
  jax.tree.map(np.testing.assert_array_equal, later[-1], states[-1])


# 9: at home in optax.


def accumulated(method, other, rate):
  del other
  tx = optax.MultiSteps(
    method.make(rate), 2, accumulator_dtype=jnp.float64
  ).gradient_transformation()
  return tx, reference.Accumulated(method.reference(table.function(rate)), 2)


def partitioned(method, other, rate):
  tx = optax.partition(
    {'one': method.make(rate), 'two': other.make(rate)},
    {'odd': 'one', 'bias': 'two', 'none': None},
  )
  mask = problem.vector({'odd': np.ones((5, 7)), 'bias': np.zeros(9)}) > 0
  first, second = (m.reference(table.function(rate)) for m in (method, other))
  return tx, reference.Partitioned(mask, first, second)


def masked(method, other, rate):
  del other
  tx = optax.masked(
    method.make(rate), {'odd': True, 'bias': False, 'none': None}
  )
  mask = problem.vector({'odd': np.ones((5, 7)), 'bias': np.zeros(9)}) > 0
  truth = method.reference(table.function(rate))
  return tx, reference.Partitioned(mask, truth, reference.PassedThrough())


@pytest.mark.parametrize('wrapped', [accumulated, partitioned, masked])
@for_every_method
def test_inside_optax(name, wrapped):
  names = list(table.METHODS)
  other = names[(names.index(name) + 1) % len(names)]
  targets = problem.targets(problem.SMALL, 3)
  start = problem.vector(problem.start(problem.SMALL))
  gradient = problem.vector_gradient(problem.SMALL, targets)
  with jax.enable_x64(True):
    tx, truth = wrapped(
      table.METHODS[name], table.METHODS[other], table.RATES['scheduled']
    )
    _, _, actual = problem.run(tx, sm.Workers(3), problem.SMALL, targets)
  np.testing.assert_allclose(
    actual,
    reference.run(truth, start, gradient, 3, problem.STEPS),
    **F64,
  )


@for_every_method
def test_clipped_and_injected_rate_can_be_changed(name):
  method = table.METHODS[name]
  targets = problem.targets(problem.SMALL, 3)
  with jax.enable_x64(True):
    tx = optax.chain(
      optax.clip_by_global_norm(1.0),
      optax.inject_hyperparams(method.make)(learning_rate=0.02),
    )
    step, states, before = problem.run(
      tx, sm.Workers(3), problem.SMALL, targets[:4]
    )
    hyperparams = states[-1].opt_state[1].hyperparams
    assert hyperparams['learning_rate'].shape == ()
    hyperparams['learning_rate'] = np.full_like(
      hyperparams['learning_rate'], 0.05
    )
    state = jax.tree.map(jnp.asarray, states[-1])
    _, after = problem.advance(step, state, targets[4:])
  gradient = problem.vector_gradient(problem.SMALL, targets)

  def clipped(i, t, x):
    g = gradient(i, t, x)
    return g / max(1.0, np.linalg.norm(g))

  truth = reference.run(
    method.reference(lambda t: 0.02 if t < 4 else 0.05),
    problem.vector(problem.start(problem.SMALL)),
    clipped,
    3,
    problem.STEPS,
  )
  np.testing.assert_allclose(np.concatenate([before, after]), truth, **F64)


@pytest.mark.parametrize(
  'dtype, params_dtype',
  [
    (jnp.bfloat16, jnp.bfloat16),
    (jnp.float16, jnp.float16),
    (jnp.float32, jnp.float32),
    (jnp.bfloat16, jnp.float32),
    (jnp.float32, jnp.bfloat16),
  ],
)
@for_every_method
def test_dtypes_and_shapes_are_kept(name, dtype, params_dtype):
  method = table.METHODS[name]
  tx = method.make(table.RATES['constant'])
  start = problem.start(problem.SHAPES)
  params = optax.tree.cast(start, params_dtype)
  gradients = optax.tree.cast(start, dtype)
  for sync in (None, True, False) if method.local else (None,):
    extra = {} if sync is None else {'sync': sync}

    def update(state, gradients, params, extra=extra):
      return tx.update(gradients, state, params, unheard_of=1.0, **extra)

    state = jax.eval_shape(lambda p: problem.initial(tx, p, COUNT), params)
    mapped = jax.vmap(update, (None, 0, None), axis_name=problem.AXIS)
    everyones = jax.tree.map(lambda g: np.stack([g] * COUNT), gradients)
    updates, new = jax.eval_shape(mapped, state, everyones, params)
    if dtype != params_dtype:
      continue  # it need only work: optax's own parts give one or the other
    for many, one in zip(
      jax.tree.leaves((updates, new)),
      jax.tree.leaves((gradients, state)),
      strict=True,
    ):
      assert (many.shape, many.dtype) == ((COUNT, *one.shape), one.dtype)


# 11: what is whose is found out.


@for_every_method
def test_own_parts_are_found(name):
  method = table.METHODS[name]
  tx = method.make(table.RATES['constant'])
  marks = sm.worker_varying(tx, problem.start(problem.SHAPES))
  own, shared = set(), set()
  for path, mark in jax.tree_util.tree_leaves_with_path(marks):
    (own if mark else shared).add(
      '.'.join(
        key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)
      )
    )
  assert own == method.own
  assert not own & shared
