"""Local steps joined by an outer step: when workers talk.

:func:`local_steps` is a product of two optimizers. The *inner* one runs on each
worker by itself; every ``sync_every`` steps the *outer* one, which is where the
communication is, makes one step from the shared *anchor*, with the displacement
of the round as its gradient:

==============================  ============================================
method                          outer
==============================  ============================================
local averaging                 ``chain(aggregate_by_mean, optax.sgd(1.0))``
SlowMo, Lookahead, DiLoCo       ``chain(aggregate_by_mean, slowmo() ...)``
Distributed Sign Momentum       ``chain(aggregate_by_mean, sign_momentum())``
one-bit local steps             ``chain(lion_momentum(),
                                aggregate_by_majority_vote, ...)``
==============================  ============================================
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import aggregator, arguments, collectives, trees


class LocalStepsState(NamedTuple):
  """State of :func:`local_steps`.

  Of each worker: the inner state. Shared: everything else.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.diloco(optax.sgd(0.1), sync_every=2)
    >>> state = tx.init(jnp.ones(3))
    >>> isinstance(state, sm.LocalStepsState), state.anchor
    (True, Array([1., 1., 1.], dtype=float32))
  """

  count: jax.Array  # local steps in all; shape=(), dtype=jnp.int32
  place: jax.Array  # local steps in this round; shape=(), dtype=jnp.int32
  rate: jax.Array  # mean learning rate of this round; shape=(), floating
  inner: optax.OptState
  outer: optax.OptState
  anchor: optax.Params  # where the round started, the synchronised parameters


def local_steps(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  sync_every: int,
  axis_name: collectives.AxisName,
  learning_rate: optax.ScalarOrSchedule | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs ``inner`` on every worker, and ``outer`` once a round for all.

  Worker :math:`i` makes :math:`\tau` steps
  :math:`x^i_{k+1} = x^i_k - \gamma d^i_k` from the anchor :math:`x_{t,0}`. Then

  .. math::
    g^i_t = (x_{t,0} - x^i_\tau) / \bar\gamma_t \\
    x_{t+1,0} = x_{t,0} + \bar\gamma_t \, \text{outer}(g^i_t)

  and every worker goes on from :math:`x_{t+1,0}`. :math:`\bar\gamma_t` is the
  mean of ``learning_rate`` over the steps of the round. (The paper has one
  constant a round, the authors' code takes the last step's.) A round whose rate
  is 0 throughout leaves parameters and outer state alone. Without
  ``learning_rate`` both factors are 1, as in DiLoCo.

  The returned ``update`` takes two extra arguments:

  * ``sync``: a Python bool says at trace time whether this step ends the round,
    so that a step without it compiles without any collective but those of
    ``inner``, which is not told and goes by its own count; None (default) goes
    by the count, with a ``lax.cond`` that all workers take alike.
  * ``present``: a boolean scalar of each worker, which ``inner`` gets at every
    step. At the end of the round the outer step is over those present, nobody
    leaves everything as it is, and who was absent goes on from the anchor like
    all others (unless its parameters are no longer finite: adding cannot mend
    that, :func:`synchronised` can).

  Updates are added to each worker's parameters, which can miss the new anchor
  by a rounding error. :func:`synchronised` gives the anchor itself, and the
  first step of a round takes the error back, so that a weight that nobody moves
  has a displacement of exactly zero. (It takes back any other change too: new
  parameters for a run that goes on need a new state.)

  Local steps inside ``inner``, such as those of an island, begin a new round at
  the new anchor. All of the island have the same one if ``axis_name`` has its
  axis too, as ``('workers', 'island')`` has.

  Args:
    inner: any optimizer; gets all other extra arguments, and ``present``.
    outer: an optimizer that aggregates, see ``aggregate_by_*``.
    sync_every: local steps in a round, :math:`\tau`.
    axis_name: the axis of the workers.
    learning_rate: the inner optimizer's :math:`\gamma`, or its schedule.

  Returns:
    the transformation.

  Raises:
    ValueError: ``sync_every`` is below 1, ``learning_rate`` below 0; in
      ``update``: by its type, what ``outer`` returns differs between workers in
      all leaves.
    TypeError: ``sync_every`` is not an int, ``learning_rate`` neither a number
      nor a schedule; in ``update``: ``sync`` is not a Python bool, or
      ``present`` no boolean.

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.local_steps(
    ...   inner=optax.sgd(0.5),
    ...   outer=optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(1.0)),
    ...   sync_every=2, axis_name='workers')
    >>> workers = sm.Workers(2)
    >>> state = workers.init(tx, jnp.array(0.0))
    >>> @workers.step
    ... def step(state, target):
    ...   params, opt_state = state.params, state.opt_state
    ...   updates, opt_state = tx.update(params - target, opt_state, params)
    ...   params = optax.apply_updates(params, updates)
    ...   return state.replace(params=params, opt_state=opt_state), params
    >>> state, params = step(state, jnp.array([1.0, 3.0]))
    >>> params
    Array([0.5, 1.5], dtype=float32)
    >>> state, params = step(state, jnp.array([1.0, 3.0]))
    >>> params
    Array([1.5, 1.5], dtype=float32)

  References:
    Yu et al., `Distributed Sign Momentum with Local Steps for Training
    Transformers <https://arxiv.org/abs/2411.17866>`_, 2024
  """
  arguments.require_int('local_steps', 'sync_every', sync_every, least=1)
  if learning_rate is not None:
    arguments.require_rate('local_steps', 'learning_rate', learning_rate)
  inner, outer = aggregator.on_floats(inner), aggregator.on_floats(outer)

  def init_fn(params):
    return LocalStepsState(
      count=jnp.zeros([], jnp.int32),
      place=jnp.zeros([], jnp.int32),
      rate=jnp.zeros([], jnp.result_type(float)),
      inner=inner.init(params),
      outer=outer.init(params),
      # a copy: parameters and state can then both be donated to a step
      anchor=jax.tree.map(jnp.array, params),
    )

  def update_fn(
    updates, state, params=None, *, sync=None, present=None, **extra_args
  ):
    if params is None:
      raise ValueError(
        'local_steps: update needs params: tx.update(updates, state, params).'
      )
    arguments.require_static_bool('local_steps', 'sync', sync)
    aggregator.require_scalar(present, 'local_steps')
    collectives.require_own(updates, axis_name, 'local_steps')
    updates, inner_state = inner.update(
      updates,
      state.inner,
      _for_nested(params, state),
      present=present,
      **extra_args,
    )
    updates = collectives.as_local(updates, axis_name)
    # gradients may be of another dtype, and both branches give the wider one
    updates = jax.tree.map(_widened, updates, params)
    updates = _from_anchor(updates, params, state)
    rate = learning_rate
    if rate is None:
      rate = 1.0
    elif callable(rate):
      rate = rate(state.count)
    # a running mean stays exactly at a constant rate, which a sum need not
    place = state.place + 1
    rate = state.rate + (rate - state.rate) / place
    state = state._replace(
      count=optax.safe_increment(state.count),
      place=place,
      rate=rate.astype(state.rate.dtype),
      inner=inner_state,
    )
    end = functools.partial(
      end_round, updates, state, params, present, extra_args
    )
    if sync is None:
      return jax.lax.cond(place >= sync_every, end, lambda: (updates, state))
    return end() if sync else (updates, state)

  def end_round(updates, state, params, present, extra_args):
    reached = optax.apply_updates(params, updates)
    # Each worker's own difference comes first, then the mean: of a weight that
    # nobody moved the difference is exactly 0, whereas the mean of equal
    # numbers need not be exactly that number, and a sign would blow that up.
    moved = jax.tree.map(_difference, state.anchor, reached)
    moved = collectives.as_local(moved, axis_name)
    go = jnp.array(True)
    if learning_rate is not None:
      # below the normal numbers 1 / rate is infinite
      go = jnp.abs(state.rate) >= jnp.finfo(state.rate.dtype).tiny
      inverse = 1 / jnp.where(go, state.rate, 1)
      moved = _scale(moved, inverse)
    if present is not None:
      go &= aggregator.somebody(present, axis_name)
    steps, outer_state = outer.update(
      moved, state.outer, state.anchor, present=present, **extra_args
    )
    if not collectives.differs(state.place, axis_name):
      # else all state is kept for each worker, and types say nothing
      _require_shared(steps, axis_name)
    if learning_rate is not None:
      steps = _scale(steps, state.rate)
    anchor = optax.apply_updates(state.anchor, steps)
    if learning_rate is not None or present is not None:
      held = functools.partial(jnp.where, go)
      anchor = jax.tree.map(held, anchor, state.anchor)
      outer_state = jax.tree.map(held, outer_state, state.outer)
    updates = jax.tree.map(
      lambda a, p, u: _difference(_widened(a, u), _widened(p, u)),
      anchor,
      params,
      updates,
    )
    return collectives.as_local(updates, axis_name), state._replace(
      place=jnp.zeros_like(state.place),
      rate=jnp.zeros_like(state.rate),
      inner=_restarted(state.inner, anchor, axis_name),
      outer=outer_state,
      anchor=anchor,
    )

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def synchronised(state: Any, params: optax.Params) -> optax.Params:
  """The parameters that all workers agree on: those to evaluate and to keep.

  Args:
    state: an optimizer state, with a :class:`LocalStepsState` in it or not.
    params: the worker's parameters.

  Returns:
    the anchor of the local steps, of nested ones the outermost; where there are
    none, as in leaves that ``optax.masked`` keeps from them, the parameters.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> params = jnp.array(1.0)
    >>> float(sm.synchronised(optax.sgd(0.1).init(params), params))
    1.0
  """
  leaves = jax.tree.leaves(state, is_leaf=_is_local_steps)
  found = list(filter(_is_local_steps, leaves))
  if len(found) > 1:
    raise ValueError(
      f'synchronised: {len(found)} local_steps in one state. Pass the state of'
      ' the one whose anchor you mean.'
    )
  if not found:
    return params
  return jax.tree.map(
    lambda a, p: p if _is_masked(a) else a,
    found[0].anchor,
    params,
    is_leaf=_is_masked,
  )


def _from_anchor(updates, params, state: LocalStepsState):
  """Takes back, at the start of a round, what rounding left after the last."""
  # A select, since a branch would have all updates written to memory first.
  first = state.place == 0
  return jax.tree.map(
    lambda u, a, p: (
      jnp.where(first, u + (a - p).astype(u.dtype), u)
      if trees.is_inexact(u)
      else u
    ),
    updates,
    state.anchor,
    params,
  )


def _for_nested(params, state: LocalStepsState):
  """Parameters for the inner optimizer.

  What :func:`_from_anchor` takes back, local steps inside must not take back
  too: they begin their round from the anchor itself.
  """
  nodes = jax.tree.leaves(state.inner, is_leaf=_is_local_steps)
  if not any(map(_is_local_steps, nodes)):
    return params
  first = functools.partial(jnp.where, state.place == 0)
  return jax.tree.map(first, state.anchor, params)


def _require_shared(steps, axis_name) -> None:
  """Refuses an outer step that each worker would take by itself.

  Of a single leaf the type says too little: zeros made like an array that
  differs, as for a frozen leaf, are taken to differ too.
  """
  steps = [
    x for x in jax.tree.leaves(steps) if jnp.size(x) and trees.is_inexact(x)
  ]
  if steps and all(collectives.differs(x, axis_name) for x in steps):
    raise ValueError(
      'local_steps: what outer returns differs between workers of axis'
      f' {axis_name!r}, so that they would never agree. Begin outer with an'
      ' aggregate_by_*, as in optax.chain('
      f'signmomentum.aggregate_by_mean({axis_name!r}), optax.sgd(1.0)).'
    )


def _restarted(inner, anchor, axis_name):
  """The inner state, where all local steps begin a round at a new anchor.

  From the old one they would take back, and count as their own, what the outer
  step has moved.
  """

  def follow(old, new):
    if _is_masked(old):
      return old
    for axis in collectives.axes(axis_name):
      if collectives.differs(old, axis):
        new = collectives.as_local(new, axis)
    return new

  def restart(node):
    if not _is_local_steps(node):
      return node
    return node._replace(
      place=jnp.zeros_like(node.place),
      rate=jnp.zeros_like(node.rate),
      inner=_restarted(node.inner, anchor, axis_name),
      anchor=jax.tree.map(follow, node.anchor, anchor, is_leaf=_is_masked),
    )

  return jax.tree.map(restart, inner, is_leaf=_is_local_steps)


def _is_local_steps(node) -> bool:
  return isinstance(node, LocalStepsState)


def _is_masked(node) -> bool:
  return isinstance(node, optax.MaskedNode)


def _difference(a, b):
  return a - b if trees.is_inexact(a) else jnp.zeros_like(a)


def _widened(a, b):
  """The first, in the wider of two floating dtypes."""
  if not (trees.is_inexact(a) and trees.is_inexact(b)):
    return a
  return a.astype(jnp.promote_types(a.dtype, b.dtype))


def _scale(tree, factor):
  return jax.tree.map(
    lambda x: (x * factor).astype(x.dtype) if trees.is_inexact(x) else x, tree
  )
