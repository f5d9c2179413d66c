"""The update of a method alone, as the program of many workers, from shapes.

It shows what a method sends and what memory it touches: that depends on the
method and on the shapes of the parameters, not on the model or the data.
"""

import jax
import jax.numpy as jnp
import optax

from experiments import faults as faults_lib
import signmomentum as sm

_LATE = 10**9  # steps


def lower(
  tx: optax.GradientTransformationExtraArgs,
  params: optax.Params,
  mesh: jax.sharding.Mesh,
  axis_name: str,
  sync: bool | None = None,
  late: bool = False,
  faults: faults_lib.Faults = faults_lib.NONE,
) -> jax.stages.Lowered:
  """Lowers one update of all workers, which `.compile()` then compiles.

  The program takes the state, whose memory it reuses, and each worker's
  gradients; it returns the new state.

  Args:
    tx: the method.
    params: one worker's parameters, or their shapes.
    mesh: of devices that need not be there, each of them a worker.
    axis_name: the only axis of the mesh.
    sync: whether this is the step that ends a round; None: counters decide.
    late: sets all counters to a late step that the compiler knows. What a
      method does in the beginning only, as the warm-up of a density, is then
      not in the program.
    faults: what goes wrong; that workers may be absent takes words to say.
  """
  workers = mesh.shape[axis_name]
  own = jax.NamedSharding(mesh, jax.P(axis_name))
  state = state_shapes(tx, params, sm.Workers(workers, mesh, axis_name))
  gradients = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct((workers, *p.shape), p.dtype, sharding=own),
    params,
  )

  def update(state, gradient):
    key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index(axis_name))
    updates, opt_state = tx.update(
      gradient,
      _late(state.opt_state) if late else state.opt_state,
      state.params,
      sync=sync,
      **faults.extra_args(key),
    )
    new = optax.apply_updates(state.params, updates)
    return state.replace(params=new, opt_state=opt_state), ()

  return (
    sm.Workers(workers, mesh, axis_name).step(update).lower(state, gradients)
  )


def state_shapes(
  tx: optax.GradientTransformationExtraArgs,
  params: optax.Params,
  team: sm.Workers,
) -> sm.WorkerState:
  """The state of all workers, in shapes that know where they lie.

  Args:
    tx: the method.
    params: one worker's parameters, or their shapes.
    team: the workers, on devices that need not be there.
  """
  # The layout of a state is the same without a mesh, where it can be traced.
  simulated = sm.Workers(team.count, None, team.axis_name)
  state = jax.eval_shape(lambda params: simulated.init(tx, params), params)
  if team.mesh is None:
    return state
  own = jax.NamedSharding(team.mesh, jax.P(team.axis_name))
  same = jax.NamedSharding(team.mesh, jax.P())
  shardings = [own if varies else same for varies in state.varying]
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state,
    jax.tree.unflatten(jax.tree.structure(state), shardings),
  )


def _late(opt_state: optax.OptState) -> optax.OptState:
  def late(leaf):
    counts = leaf.ndim == 0 and leaf.dtype == jnp.int32
    return jnp.full_like(leaf, _LATE) if counts else leaf

  return jax.tree.map(late, opt_state)
