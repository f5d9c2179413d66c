"""The only module that talks to other workers.

A *worker* is one index of a named axis: of ``shard_map``, ``vmap`` or ``pmap``.
Under a ``shard_map`` that checks (``check_vma=True``, the default), the type of
an array says whether it differs between workers. :func:`checked` asks the type
system whether that is so here; nothing above this module needs to know.
"""

from collections.abc import Callable, Hashable
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

AxisName = Hashable | tuple[Hashable, ...]


def worker_count(axis_name: AxisName) -> int:
  """Number of workers of the axis, a Python int."""
  return jax.lax.axis_size(axis_name)


def worker_index(axis_name: AxisName) -> jax.Array:
  """Which worker this is, from 0."""
  return jax.lax.axis_index(axis_name)


def total(array: jax.Array, axis_name: AxisName) -> jax.Array:
  """Sum over workers; the result is shared."""
  return jax.lax.psum(array, axis_name)


def maximum(array: jax.Array, axis_name: AxisName) -> jax.Array:
  """Largest over workers; the result is shared."""
  return jax.lax.pmax(array, axis_name)


def exchange(messages: jax.Array, axis_name: AxisName) -> jax.Array:
  """Sends row ``i`` to worker ``i``; row ``j`` of the result is from ``j``."""

  def send(messages):
    return jax.lax.all_to_all(messages, axis_name, 0, 0, tiled=True)

  arrived = _in_pieces(send, _sealed(messages), axis_name, new_axes=0)
  return _opened(arrived, messages.dtype)


def gather(message: jax.Array, axis_name: AxisName) -> jax.Array:
  """The messages of all workers, ``[workers, ...]``; the result is shared."""

  def send(message):
    filled = _filled(message)
    if checked(axis_name):
      gathered = jax.lax.all_gather(filled, axis_name, to='invarying')
    else:
      gathered = filled
      for axis in reversed(axes(axis_name)):  # vmap takes no two at once
        gathered = jax.lax.all_gather(gathered, axis)
    gathered = gathered.reshape(-1, *filled.shape)
    return gathered[..., : message.shape[-1]]

  gathered = _in_pieces(send, _sealed(message), axis_name, new_axes=1)
  return _opened(gathered, message.dtype)


def everywhere(array: jax.Array, axis_name: AxisName) -> jax.Array:
  """The array whole on each device of a worker, where the compiler decides."""
  mesh = jax.sharding.get_abstract_mesh()
  if not set(axes(axis_name)) <= set(mesh.manual_axes) or not mesh.auto_axes:
    return array
  return jax.lax.with_sharding_constraint(array, jax.P(*[None] * array.ndim))


def is_narrow(dtype: jax.typing.DTypeLike) -> bool:
  """Whether these are floats below f32, not to be added up as they are."""
  floating = jnp.issubdtype(dtype, jnp.floating)
  return floating and jnp.dtype(dtype).itemsize < 4


def checked(axis_name: AxisName) -> bool:
  """Whether types here tell what differs between workers.

  True exactly under a ``shard_map`` over the axis with ``check_vma=True``:
  there a worker's own index is the one thing that must differ.
  """
  return differs(worker_index(axis_name), axis_name)


def differs(array: Any, axis_name: AxisName) -> bool:
  """Whether the type of an array says that it differs between workers."""
  return set(axes(axis_name)) <= _varying(array)


def axes(axis_name: AxisName) -> tuple[Hashable, ...]:
  """The axes of a name, of which there may be several."""
  return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def as_local(tree: Any, axis_name: AxisName = 'workers') -> Any:
  """Gives a worker its own copy of a tree, to differentiate.

  Inside ``shard_map`` with ``check_vma=True``, ``jax.grad`` with respect to
  parameters that all workers share returns the gradient *summed over workers*:
  a full-precision all-reduce that nobody asked for, after which all workers
  vote alike. With respect to ``as_local(params)`` it returns the worker's own.
  Under ``vmap``, ``pmap`` and an unchecked ``shard_map`` it changes nothing.

  Args:
    tree: any pytree of arrays.
    axis_name: the axis of the workers.

  Returns:
    the same values, typed as this worker's own.

  Raises:
    NameError: there is no axis of this name here.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> auto = (jax.sharding.AxisType.Auto,)
    >>> @jax.shard_map(
    ...   mesh=jax.make_mesh((1,), ('workers',), auto),
    ...   in_specs=(jax.P(), jax.P('workers')),
    ...   out_specs=jax.P('workers'),
    ... )
    ... def local_gradient(w, x):
    ...   return jax.grad(lambda w: jnp.sum(w * x))(sm.as_local(w))
    >>> jax.jit(local_gradient)(jnp.ones(1), jnp.array([3.0]))
    Array([3.], dtype=float32)
  """
  if not checked(axis_name):
    return tree

  def cast(array: jax.Array) -> jax.Array:
    known = _varying(array)
    missing = tuple(a for a in axes(axis_name) if a not in known)
    return jax.lax.pcast(array, missing, to='varying') if missing else array

  return jax.tree.map(cast, tree)


def require_own(tree: Any, axis_name: AxisName, who: str) -> None:
  """Refuses updates that cannot be a worker's own.

  Args:
    tree: what a worker wants to send.
    axis_name: the axis of the workers.
    who: the factory, for the message.

  Raises:
    ValueError: by its type, a leaf is the same on every worker already; or the
      worker would only sometimes send it, by a decision of its own.
  """
  _refuse_own_branch(who)
  if not checked(axis_name):
    return
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if _has_gradient(leaf) and not differs(leaf, axis_name):
      raise ValueError(
        f'{who}: the update of {jax.tree_util.keystr(path) or "the leaf"} is'
        f' already the same on every worker of axis {axis_name!r}, so there is'
        ' nothing to aggregate. Inside shard_map, jax.grad with respect to'
        ' shared parameters sums over workers: differentiate with respect to'
        f' signmomentum.as_local(params, {axis_name!r}) instead.'
      )


def require_own_like(tree: Any, state: Any, who: str, what: str) -> None:
  """Refuses a shared gradient where the state to add it to is each worker's.

  After the sum its type would no longer show that it has been summed over
  workers, and they would all send the same.

  Args:
    tree: what comes in.
    state: a tree like it, of which each worker has its own.
    who: the factory, for the message.
    what: what the state is, for the message.

  Raises:
    ValueError: by its type, a leaf is the same on every worker already.
  """

  def check(path, leaf, own):
    missing = _varying(own) - _varying(leaf)
    if missing and _has_gradient(leaf):
      raise ValueError(
        f'{who}: the gradient of {jax.tree_util.keystr(path) or "the leaf"} is'
        f' the same on all workers of axis {", ".join(map(repr, missing))},'
        f" while the {what} is each worker's own. Inside shard_map, jax.grad"
        ' with respect to shared parameters sums over workers: differentiate'
        ' with respect to signmomentum.as_local(params) instead.'
      )

  jax.tree_util.tree_map_with_path(check, tree, state)


def _has_gradient(leaf: Any) -> bool:
  # An empty leaf is the same for all, and some functions make it so by type.
  return bool(jnp.size(leaf)) and jnp.issubdtype(
    jnp.result_type(leaf), jnp.inexact
  )


def _in_pieces(
  send: Callable[[jax.Array], jax.Array],
  message: jax.Array,
  axis_name: AxisName,
  new_axes: int,
) -> jax.Array:
  """Sends a message, of which each device of a worker sends its piece.

  Where a worker is several devices, the compiler would give each of them the
  whole message, and each would send all of it.

  Args:
    send: a collective that leaves the last axis as it is.
    message: what a worker sends.
    axis_name: the axis of the workers.
    new_axes: how many axes the result has in addition.
  """
  mesh = jax.sharding.get_abstract_mesh()
  others = (*mesh.auto_axes, *mesh.explicit_axes)
  if not others or not set(axes(axis_name)) <= set(mesh.manual_axes):
    return send(message)

  def placed(array, last):  # where the types say what lies where
    spec = jax.P(*[None] * (array.ndim - 1), last)
    return jax.sharding.reshard(array, spec) if mesh.explicit_axes else array

  devices = math.prod(mesh.shape[axis] for axis in others)
  width, before = message.shape[-1], [None] * (message.ndim - 1)
  fill = [(0, 0)] * len(before) + [(0, -width % devices)]
  sent = jax.shard_map(
    send,
    in_specs=jax.P(*before, others),
    out_specs=jax.P(*before, *[None] * new_axes, others),
    axis_names=set(others),
  )(placed(jnp.pad(message, fill), mesh.explicit_axes))
  return placed(sent, None)[..., :width]


def _sealed(message: jax.Array) -> jax.Array:
  """Narrow floats as integers: XLA on CPU would send bf16 as f32."""
  if not is_narrow(message.dtype):
    return message
  words = jnp.dtype(f'uint{8 * message.dtype.itemsize}')
  return jax.lax.bitcast_convert_type(message, words)


def _filled(message: jax.Array) -> jax.Array:
  """A long vector, filled up to whole rows of 128.

  Else XLA on TPU may make an all-reduce of the gathering, which sends twice as
  much.
  """
  fill = -message.size % 128
  if message.ndim > 1 or message.size < 64 * 128 or not fill:
    return message
  return jnp.pad(message, (0, fill))


def _opened(message: jax.Array, dtype: jnp.dtype) -> jax.Array:
  if message.dtype == dtype:  # a conversion would have no derivative
    return message
  return jax.lax.bitcast_convert_type(message, dtype)


def _varying(leaf: Any) -> frozenset:
  return jax.typeof(leaf).manual_axis_type.varying


def _refuse_own_branch(who: str) -> None:
  """Refuses to talk from a branch that each worker takes by its own data.

  On devices, one worker that skips a collective leaves the others waiting for
  ever. Which condition guards the call that is being traced can't be asked of
  JAX, so the optax wrappers that branch on the updates are recognised by name.
  ``workers.worker_varying`` finds every other such branch, by its types.
  """
  frame = inspect.currentframe()
  while frame is not None:
    wrapper = frame.f_code.co_qualname.split('.<locals>')[0]
    if frame.f_globals.get('__name__', '').startswith('optax.') and (
      wrapper == 'apply_if_finite' or _skips_by_data(wrapper, frame.f_locals)
    ):
      raise ValueError(
        f'{who} inside optax.{wrapper}: a worker whose gradient is not finite'
        ' would skip the exchange and leave the others waiting. Put'
        ' signmomentum.ignore_non_finite() first in the chain instead: it'
        ' drops such a gradient and still takes part.'
      )
    frame = frame.f_back


def _skips_by_data(wrapper: str, variables: dict[str, Any]) -> bool:
  if not wrapper.startswith('MultiSteps'):
    return False
  skip = getattr(variables.get('self'), '_should_skip_update_fn', None)
  # the default, which never skips, is a closure of the constructor
  return skip is not None and '__init__' not in getattr(
    skip, '__qualname__', ''
  )
