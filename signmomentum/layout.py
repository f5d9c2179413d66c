"""Which leaves of a training state differ between workers: found, not declared.

One update is traced over the named axis, without devices, and the difference
between workers is followed through the program from where it enters, in their
gradients and their own index, to where a collective ends it.

The types of a ``shard_map`` that checks follow much the same rules, and the
executors in ``workers`` rely on them for the proof. They cannot find the layout
alone, though: a ``lax.cond`` in which only one branch makes a leaf differ, as
in ``optax.MultiSteps``, has no type until the layout is known. Here it has one,
and the analysis also sees what the types let pass: a condition that differs.
What the types cannot prove shared is then added.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp
import optax

from signmomentum import collectives, trees

# what these return is the same on all workers of the axis
_SHARING = ('psum', 'pmax', 'pmin', 'all_gather', 'psum_invariant')
_SHARING += ('all_gather_invariant', 'pmax_invariant', 'pmin_invariant')
# what these return differs
_MOVING = ('all_to_all', 'ragged_all_to_all', 'ppermute', 'reduce_scatter')
_MOVING += ('psum_scatter', 'pgather', 'psend', 'precv')
# mention the axis and send nothing
_SILENT = ('axis_index', 'pvary', 'pcast')
_NAMED = _SHARING + _MOVING + _SILENT


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=('params', 'opt_state'),
  meta_fields=('varying',),
)
@dataclasses.dataclass(frozen=True)
class WorkerState:
  """Parameters and optimizer state: of all workers, or as one worker sees them.

  Attributes:
    params: the parameters.
    opt_state: the state of the optax transformation.
    varying: for each leaf of ``(params, opt_state)`` whether it is per-worker.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = optax.chain(sm.lion_momentum(), sm.aggregate_by_mean('workers'))
    >>> state = sm.Workers(4).init(tx, jnp.zeros(3))
    >>> state.params.shape, state.opt_state[0].mu.shape
    ((3,), (4, 3))
    >>> state.replace(params=jnp.ones(3)).params
    Array([1., 1., 1.], dtype=float32)
  """

  params: Any
  opt_state: Any
  varying: tuple[bool, ...] = ()

  def replace(self, **changes: Any) -> 'WorkerState':
    """A copy with some fields changed."""
    return dataclasses.replace(self, **changes)


def worker_varying(
  tx: optax.GradientTransformation,
  params: optax.Params,
  axis_name: collectives.AxisName = 'workers',
  **extra_args: Any,
) -> WorkerState:
  """Which leaves of the training state differ between workers.

  Workers start from the same parameters and bring their own gradients. What one
  update makes different is different in the next; this goes on until nothing is
  added.

  Args:
    tx: any transformation.
    params: parameters of one worker, or their shapes and dtypes.
    axis_name: the axis of the workers.
    **extra_args: passed on to ``tx.update``.

  Returns:
    a state with a bool in place of each leaf, True if it is per-worker.

  Raises:
    ValueError: ``tx`` communicates inside a branch or a loop that each worker
      takes by its own data, which would leave the others waiting.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = optax.chain(sm.lion_momentum(), sm.aggregate_by_mean('workers'))
    >>> sm.worker_varying(tx, jnp.zeros(3)).opt_state
    (LionMomentumState(mu=True), EmptyState())
    >>> sm.worker_varying(tx, jnp.zeros(3)).params
    False
  """
  tx = optax.with_extra_args_support(tx)
  params = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params
  )
  # the axis is bound to no devices, and how many workers there are won't matter
  axis_env = [(axis, 2) for axis in collectives.axes(axis_name)]
  begin, opt_state = jax.make_jaxpr(
    tx.init, axis_env=axis_env, return_shape=True
  )(params)
  state = WorkerState(params, opt_state)
  floating = [p for p in jax.tree.leaves(params) if trees.is_inexact(p)]

  def update(state, floats):
    own = iter(floats)
    gradients = jax.tree.map(
      # what moves an integer is no gradient: let it be something to add
      lambda p: (
        next(own) if trees.is_inexact(p) else jnp.zeros(p.shape, p.dtype)
      ),
      params,
    )
    updates, opt_state = tx.update(
      gradients, state.opt_state, state.params, **extra_args
    )
    return WorkerState(optax.apply_updates(state.params, updates), opt_state)

  program = jax.make_jaxpr(update, axis_env=axis_env)(state, floating)
  leaves, treedef = jax.tree.flatten(state)
  gradients = [True] * len(floating)
  same = [False] * len(jax.tree.leaves(params))
  varying = _fixed_point(
    lambda own: _follow(program, own + gradients, axis_name),
    # init may give each worker something else, as shard_over_workers does
    same + _follow(begin, same, axis_name),
  )

  def typed(own):
    def flat_update(leaves, floats):
      return jax.tree.leaves(
        update(jax.tree.unflatten(treedef, leaves), floats)
      )

    return _types(flat_update, leaves, own, floating, axis_name)

  return jax.tree.unflatten(treedef, _fixed_point(typed, varying))


def start(
  tx: optax.GradientTransformation,
  params: optax.Params,
  axis_name: collectives.AxisName,
  count: int,
) -> tuple[optax.OptState, list[bool]]:
  """The state of the optimizer that workers start with.

  Args:
    tx: any transformation.
    params: parameters of one worker.
    axis_name: the axis of the workers.
    count: the size of each axis in the name.

  Returns:
    the state, and for each leaf whether it is that of all workers,
    ``[workers, ...]``: so it is where ``init`` asks for the axis, and makes
    something else on each.
  """
  try:
    state = tx.init(params)
  except NameError:
    axes = collectives.axes(axis_name)
    program, state = jax.make_jaxpr(
      tx.init, axis_env=[(axis, count) for axis in axes], return_shape=True
    )(params)
    same = [False] * len(jax.tree.leaves(params))
    rows = _follow(program, same, axis_name)

    def init(params):
      return jax.tree.leaves(tx.init(params))

    places = [0 if row else None for row in rows]
    for axis in axes:
      init = jax.vmap(init, None, places, axis_name=axis, axis_size=count)
    return jax.tree.unflatten(jax.tree.structure(state), init(params)), rows
  return state, [False] * len(jax.tree.leaves(state))


def _types(update, leaves, own, floating, axis_name) -> list[bool]:
  """What differs after an update by the types of a shard_map that checks.

  They know less: zeros made like an array that differs are taken to differ too.
  The executor on devices goes by them, so the layout must.
  """
  around = jax.sharding.get_abstract_mesh()
  axes = collectives.axes(axis_name)
  # a mesh inside another that is set must have its size
  sizes = (2,) * len(axes)
  if not around.empty:
    sizes = (around.size, *(1,) * (len(axes) - 1))
  mesh = jax.sharding.AbstractMesh(sizes, axes)
  found = []

  def local(leaves, floats):
    leaves = [x[0] if v else x for x, v in zip(leaves, own, strict=True)]
    new = update(leaves, [x[0] for x in floats])
    found.extend(collectives.differs(x, axis_name) for x in new)
    return ()

  def stacked(aval):
    shape = (math.prod(sizes), *aval.shape)
    return jax.ShapeDtypeStruct(shape, aval.dtype)

  each = jax.P(axes)
  mapped = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=([each if v else jax.P() for v in own], each),
    out_specs=(),
  )
  leaves = [stacked(x) if v else x for x, v in zip(leaves, own, strict=True)]
  with jax.sharding.use_abstract_mesh(mesh):
    try:
      jax.eval_shape(mapped, leaves, [stacked(x) for x in floating])
    except TypeError:
      # A branch of somebody else's whose types don't match: vmap can run it,
      # and on devices the same error says what is wrong.
      return list(own)
  return found


def _follow(jaxpr, varying: list[bool], axis_name) -> list[bool]:
  """Follows what varies from the inputs of a program to its outputs."""
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  known = dict(zip(jaxpr.invars, varying, strict=True))

  def varies(atom) -> bool:  # constants and literals do not
    return not isinstance(atom, core.Literal) and known.get(atom, False)

  for equation in jaxpr.eqns:
    inputs = [varies(atom) for atom in equation.invars]
    outputs = _follow_equation(equation, inputs, axis_name)
    known.update(zip(equation.outvars, outputs, strict=True))
  return [varies(atom) for atom in jaxpr.outvars]


def _follow_equation(equation, inputs, axis_name) -> list[bool]:
  name, params = equation.primitive.name, equation.params
  number = len(equation.outvars)
  if _mentions(equation, axis_name):
    covered = set(collectives.axes(axis_name)) <= set(_mentioned(equation))
    if name in _SHARING and covered:
      return [False] * number
    return [any(inputs) if name in _SHARING else True] * number
  if name == 'cond':
    own, *operands = inputs
    _refuse(own, 'cond', params['branches'], axis_name)
    branches = [_follow(b, operands, axis_name) for b in params['branches']]
    return [own or any(out) for out in zip(*branches, strict=True)]
  if name == 'while':
    split = params['cond_nconsts'], params['body_nconsts']
    condition = inputs[: split[0]]
    constants = inputs[split[0] : sum(split)]
    carry = _fixed_point(
      lambda c: _follow(params['body_jaxpr'], constants + c, axis_name),
      inputs[sum(split) :],
    )
    (own,) = _follow(params['cond_jaxpr'], condition + carry, axis_name)
    inside = (params['cond_jaxpr'], params['body_jaxpr'])
    _refuse(own, 'while_loop', inside, axis_name)
    return [own or c for c in carry]
  if name == 'scan':
    fixed, end = (
      params['num_consts'],
      params['num_consts'] + params['num_carry'],
    )

    def body(carry):
      return _follow(
        params['jaxpr'], inputs[:fixed] + carry + inputs[end:], axis_name
      )

    size = params['num_carry']
    carry = _fixed_point(lambda c: body(c)[:size], inputs[fixed:end])
    return carry + body(carry)[size:]
  inside = _jaxprs(params)
  if len(inside) == 1 and len(inside[0].invars) == len(inputs):
    return _follow(inside[0], inputs, axis_name)
  own = any(inputs) or any(_communicates(j, axis_name) for j in inside)
  return [own] * number


def _fixed_point(step, carry: list[bool]) -> list[bool]:
  while True:
    joined = [a or b for a, b in zip(carry, step(carry), strict=True)]
    if joined == carry:
      return carry
    carry = joined


def _refuse(own: bool, kind: str, inside, axis_name) -> None:
  if own and any(_communicates(jaxpr, axis_name) for jaxpr in inside):
    raise ValueError(
      f'a lax.{kind} whose condition differs between workers of axis'
      f' {axis_name!r} has a collective inside: a worker that skips it leaves'
      ' the others waiting. Decide by something shared, such as a step count,'
      ' or always take part and use jnp.where on the result. Against gradients'
      ' that are not finite, signmomentum.ignore_non_finite() does that.'
    )


def _communicates(jaxpr, axis_name) -> bool:
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  return any(
    (_mentions(e, axis_name) and e.primitive.name not in _SILENT)
    or any(_communicates(inner, axis_name) for inner in _jaxprs(e.params))
    for e in jaxpr.eqns
  )


def _mentions(equation, axis_name) -> bool:
  return bool(set(collectives.axes(axis_name)) & set(_mentioned(equation)))


def _mentioned(equation) -> tuple:
  """The named axes of a collective."""
  if equation.primitive.name not in _NAMED:  # axes of a sum are numbers
    return ()
  params = equation.params
  return collectives.axes(params.get('axes', params.get('axis_name', ())))


def _jaxprs(params: dict[str, Any]) -> list[core.Jaxpr]:
  values = itertools.chain.from_iterable(
    value if isinstance(value, (tuple, list)) else (value,)
    for value in params.values()
  )
  closed = (v.jaxpr if isinstance(v, core.ClosedJaxpr) else v for v in values)
  return [value for value in closed if isinstance(value, core.Jaxpr)]
