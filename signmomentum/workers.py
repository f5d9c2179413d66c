"""Executors: the same one-worker function, simulated or on devices.

A leaf of the training state either differs between workers, and is stored as
``[workers, ...]``, or is the same on all of them, and is stored once.
``layout`` finds out which; the executors do not take its word: ``vmap`` with
``out_axes=None`` and ``shard_map`` with ``check_vma=True`` refuse a shared
output that is not provably shared.
"""

from collections.abc import Callable
import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import optax

from signmomentum import arguments, collectives, layout


class Workers:
  """Runs a function that is written for one worker on all of them.

  Without a mesh, ``vmap`` simulates any number of workers on one device; with
  one, ``shard_map`` gives each worker a device, or an island of devices where
  the mesh has more axes. Both check that what is stored once is the same on all
  workers, and give the same votes bit for bit.

  Args:
    count: number of workers.
    mesh: a mesh with the axis ``axis_name``, of size ``count``.
    axis_name: the axis of the workers.

  Raises:
    TypeError: ``count`` is not an int.
    ValueError: ``count`` is below 1, or not the size of the mesh's axis.

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> import signmomentum as sm
    >>> tx = sm.distributed_lion(learning_rate=0.25, weight_decay=0.0)
    >>> workers = sm.Workers(4)
    >>> state = workers.init(tx, jnp.zeros(()))
    >>> @workers.step
    ... def step(state, slope):
    ...   gradient = jax.grad(lambda w: slope * w)(sm.as_local(state.params))
    ...   updates, opt_state = tx.update(
    ...     gradient, state.opt_state, state.params
    ...   )
    ...   params = optax.apply_updates(state.params, updates)
    ...   return state.replace(params=params, opt_state=opt_state), params
    >>> state, _ = step(state, jnp.array([1.0, 1.0, 1.0, -10.0]))
    >>> state.params
    Array(-0.25, dtype=float32)
  """

  def __init__(
    self,
    count: int,
    mesh: jax.sharding.Mesh | None = None,
    axis_name: str = 'workers',
  ):
    arguments.require_int('Workers', 'count', count, least=1)
    if mesh is not None and axis_name not in mesh.shape:
      raise ValueError(
        f'Workers: the mesh has axes {mesh.axis_names}, none named'
        f' {axis_name!r}. Pass axis_name, or make the mesh with'
        f' jax.make_mesh(({count},), ({axis_name!r},)).'
      )
    if mesh is not None and mesh.shape[axis_name] != count:
      raise ValueError(
        f'Workers: axis {axis_name!r} of the mesh has size'
        f' {mesh.shape[axis_name]}, but count is {count}.'
      )
    self.count = count
    self.mesh = mesh
    self.axis_name = axis_name

  def init(
    self,
    tx: optax.GradientTransformation,
    params: optax.Params,
    **extra_args: Any,
  ) -> layout.WorkerState:
    """The state in which all workers start from the same parameters.

    Without a mesh it can be traced, as by ``jax.eval_shape``; with one, which
    decides where the state lies, it makes the state itself.

    Args:
      tx: the transformation; decides which leaves are per-worker.
      params: the parameters of one worker. On islands, state that is made like
        a parameter is spread over the island as the parameter is.
      **extra_args: that ``tx.update`` cannot do without.

    Returns:
      the state; per-worker leaves ``[workers, ...]``, shared leaves once.

    Raises:
      ValueError: it is traced, and there is a mesh.
    """
    marks = layout.worker_varying(tx, params, self.axis_name, **extra_args)
    varying = tuple(jax.tree.leaves(marks))
    params = jax.tree.map(_strong, params)
    with self._around():
      opt_state, rows = layout.start(tx, params, self.axis_name, self.count)
      # which have a row for each worker already
      rows = [False] * len(jax.tree.leaves(params)) + rows
      leaves, treedef = jax.tree.flatten(
        layout.WorkerState(params, opt_state, varying)
      )
      # One at a time, and what nobody else holds is then given up: else all of
      # the state would be there twice.
      del params, opt_state
      for i, (own, each) in enumerate(zip(varying, rows, strict=True)):
        leaves[i] = self._stored(_strong(leaves[i]), own, each)
    return jax.tree.unflatten(treedef, leaves)

  def step(
    self,
    fn: Callable[..., tuple[layout.WorkerState, Any]],
  ) -> Callable[..., tuple[layout.WorkerState, Any]]:
    """Compiles a one-worker step for all workers.

    Args:
      fn: takes a worker's view of the state, its inputs, and whatever else is
        the same for all workers, such as a step count; returns the new state
        and any outputs. It may communicate over the axis.

    Returns:
      a ``jax.jit`` function of the state of all workers, inputs
      ``[workers, ...]``, and further arguments which are passed on as they are;
      it returns the new state and outputs ``[workers, ...]``. It reuses the
      buffers of the state it is given.

    Raises:
      ValueError: from the first call, a leaf that is stored once would differ
        between workers; or the state is not one of :meth:`init`, or rows are
        not one for each worker.
      TypeError: from the first call, the state is no :class:`WorkerState`.
    """

    def run(
      state: layout.WorkerState, inputs: Any, *shared: Any
    ) -> tuple[layout.WorkerState, Any]:
      self._require_state(state)
      self._require_rows('inputs', jax.tree_util.tree_leaves_with_path(inputs))
      leaves, treedef = jax.tree.flatten(state)

      def one_worker(leaves, inputs, shared):
        view = jax.tree.unflatten(treedef, leaves)
        new, outputs = fn(view, inputs, *shared)
        new_leaves, new_treedef = jax.tree.flatten(new)
        if new_treedef != treedef:
          raise ValueError(
            'Workers.step: the function must return a state of the structure'
            f' it got, {treedef}, not {new_treedef}.'
          )
        return new_leaves, outputs

      mapped = self._vmap if self.mesh is None else self._shard_map
      try:
        new_leaves, outputs = mapped(one_worker, state.varying)(
          leaves, inputs, shared
        )
      except ValueError as error:
        error.add_note(
          'Workers.step: if this is about out_axes or out_specs, the function'
          ' lets something differ between workers that is stored once, since'
          ' updates of the transformation given to init keep it the same.'
          ' Random numbers and other per-worker values belong in the outputs.'
        )
        raise
      return jax.tree.unflatten(treedef, new_leaves), outputs

    return jax.jit(run, donate_argnums=0)

  def _stored(self, leaf: jax.Array, own: bool, rows: bool) -> jax.Array:
    """A leaf of the state as it is kept, from that of one worker or of all."""
    count = self.count if own and not rows else None
    sharding = None
    if self.mesh is not None:
      sharding = self._sharding(leaf, own, rows)
      if not leaf.size:  # XLA would give all rows to each device
        return _put(_copies(leaf, count), sharding)
      leaf = _put(leaf, self._sharding(leaf, own and rows, rows))
    copies = jax.jit(_copies, static_argnums=1, out_shardings=sharding)
    return copies(leaf, count)

  def _around(self) -> contextlib.AbstractContextManager:
    if self.mesh is None:
      return contextlib.nullcontext()
    try:
      return jax.set_mesh(self.mesh)
    except ValueError as error:  # JAX tells in no other way
      raise ValueError(
        'Workers.init on a mesh cannot be traced, by jax.jit or jax.eval_shape:'
        ' call it outside. To restore a state, take shapes and shardings from'
        ' one that is made so. Shapes alone are the same without a mesh, where'
        f' Workers({self.count}, axis_name={self.axis_name!r}).init can be'
        ' traced.'
      ) from error

  def _vmap(self, fn: Callable, varying: tuple[bool, ...]) -> Callable:
    axes = [0 if own else None for own in varying]
    return jax.vmap(
      fn,
      in_axes=(axes, 0, None),
      out_axes=(axes, 0),
      axis_name=self.axis_name,
      axis_size=self.count,
    )

  def _shard_map(self, fn: Callable, varying: tuple[bool, ...]) -> Callable:
    one, all_workers = jax.P(), jax.P(self.axis_name)

    def local(leaves, inputs, shared):
      leaves = [
        jnp.squeeze(leaf, 0) if own else leaf
        for leaf, own in zip(leaves, varying, strict=True)
      ]
      inputs = jax.tree.map(lambda x: jnp.squeeze(x, 0), inputs)
      leaves, outputs = fn(leaves, inputs, shared)
      outputs = collectives.as_local(outputs, self.axis_name)
      leaves = [
        leaf[None] if own else leaf
        for leaf, own in zip(leaves, varying, strict=True)
      ]
      return leaves, jax.tree.map(lambda x: jnp.asarray(x)[None], outputs)

    specs = [all_workers if own else one for own in varying]
    mapped = jax.shard_map(
      local,
      mesh=self.mesh,
      in_specs=(specs, all_workers, one),
      out_specs=(specs, all_workers),
      axis_names={self.axis_name},
    )

    def run(leaves, inputs, shared):
      # an explicit mesh takes no input that lies elsewhere; others move it
      inputs = jax.tree.map(lambda x: self._placed(x, True), inputs)
      shared = jax.tree.map(lambda x: self._placed(x, False), shared)
      return mapped(leaves, inputs, shared)

    return run

  def _require_state(self, state: Any) -> None:
    if not isinstance(state, layout.WorkerState):
      raise TypeError(
        'Workers.step: the state must be a WorkerState, from Workers.init, not'
        f' {type(state).__name__}.'
      )
    leaves = jax.tree_util.tree_leaves_with_path(state)
    if len(leaves) != len(state.varying):
      raise ValueError(
        f'Workers.step: the state has {len(leaves)} leaves, but its varying,'
        f' whether each is per-worker, has {len(state.varying)}. Take the state'
        ' from Workers.init, and change values only, by state.replace: another'
        ' transformation, or other parameters, need an init of their own.'
      )
    own = [x for x, v in zip(leaves, state.varying, strict=True) if v]
    self._require_rows('per-worker leaf state', own)

  def _require_rows(self, what: str, leaves: list[tuple[Any, Any]]) -> None:
    for path, leaf in leaves:
      if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != self.count:
        raise ValueError(
          f'Workers.step: {what}{jax.tree_util.keystr(path)} must have a'
          f' leading axis of {self.count}, a row for each worker, but has'
          f' shape {jnp.shape(leaf)}.'
        )

  def _sharding(
    self, leaf: jax.Array, own: bool, rows: bool
  ) -> jax.NamedSharding:
    """Where a leaf of one worker lies, and where the rows of all workers do."""
    spec = jax.P()
    mesh = getattr(leaf.sharding, 'mesh', None)
    like = mesh is not None and mesh.axis_names == self.mesh.axis_names
    if like and not rows:  # made like a parameter
      spec = leaf.sharding.spec
    if self._is_explicit() and not rows:  # as it will be in the types of steps
      spec = jax.P(*spec, *[None] * (leaf.ndim - len(spec)))
    return jax.NamedSharding(
      self.mesh, jax.P(self.axis_name, *spec) if own else spec
    )

  def _placed(self, leaf: jax.Array, own: bool) -> jax.Array:
    """Moves an input to the devices of its worker, if the mesh is strict."""
    if not self._is_explicit():
      return leaf
    axis = [self.axis_name] if own else []
    spec = jax.typeof(leaf).sharding.spec
    spec = jax.P(*axis, *spec[len(axis) :])
    return jax.sharding.reshard(leaf, jax.NamedSharding(self.mesh, spec))

  def _is_explicit(self) -> bool:
    kinds = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))
    return kinds[self.axis_name] == jax.sharding.AxisType.Explicit


def _copies(leaf: jax.Array, count: int | None) -> jax.Array:
  """A row for each of so many workers, or another array like this one."""
  if count is None:
    return jnp.copy(leaf)
  return jnp.broadcast_to(leaf, (count, *leaf.shape))


def _put(leaf: jax.Array, sharding: jax.NamedSharding) -> jax.Array:
  """Puts a leaf on its devices, of which each process has only its own.

  All processes have made the same leaf. ``device_put`` would make sure of that,
  by sending it around in full.
  """
  if sharding.is_fully_addressable or not leaf.is_fully_addressable:
    return jax.device_put(leaf, sharding)
  return jax.make_array_from_callback(
    leaf.shape, sharding, lambda index: leaf[index]
  )


def _strong(leaf: Any) -> jax.Array:
  """An array whose dtype does not depend on what it meets: weak ones would
  make the second step another program than the first."""
  leaf = jnp.asarray(leaf)
  if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # random keys
    return leaf
  return jax.lax.convert_element_type(leaf, leaf.dtype)
