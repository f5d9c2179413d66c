"""Bits that a method sends, read from its compiled program.

The update alone is compiled, from shapes, for as many CPU devices as there are
workers: once as a step inside a round and once as the step that ends it. What
is sent depends on the method and the shapes, not on the model or the device.

Counters stand at a late step: what a method does in the beginning only, as the
warm-up of a density, is not counted.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import errors
from experiments import faults as faults_lib
import signmomentum as sm

_LATE = 10**9  # steps
# The program is read, not run: its machine code need not be fast.
_QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}


def bits_per_parameter(
  tx: optax.GradientTransformationExtraArgs,
  params: optax.Params,
  workers: int,
  sync_every: int,
  faults: faults_lib.Faults = faults_lib.NONE,
  axis_name: str = 'workers',
) -> float:
  """Bits that one worker sends per parameter and local step: a round's mean.

  Args:
    tx: the method.
    params: one worker's parameters, or their shapes.
    workers: number of workers.
    sync_every: local steps in a round.
    faults: what goes wrong; that workers may be absent takes words to say.
    axis_name: the axis of the workers.

  Raises:
    UserError: if there are fewer CPU devices than workers.
  """
  cpus = jax.devices('cpu')
  if len(cpus) < workers:
    raise errors.UserError(
      f'To see what {workers} workers send, their program is compiled for'
      f' {workers} CPU devices, and there are {len(cpus)}. Set'
      f" jax.config.update('jax_num_cpu_devices', {workers}) before anything"
      ' uses a device.'
    )
  mesh = jax.sharding.Mesh(np.array(cpus[:workers]), (axis_name,))
  team = sm.Workers(workers, mesh, axis_name)
  own = jax.NamedSharding(mesh, jax.P(axis_name))
  same = jax.NamedSharding(mesh, jax.P())
  # The layout of a state is the same without a mesh, where it can be traced.
  state = jax.eval_shape(
    lambda params: sm.Workers(workers, None, axis_name).init(tx, params), params
  )
  shardings = [own if varies else same for varies in state.varying]
  state = jax.tree.map(
    _placed, state, jax.tree.unflatten(jax.tree.structure(state), shardings)
  )
  gradients = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct((workers, *p.shape), p.dtype, sharding=own),
    params,
  )

  def sent(sync: bool) -> float:
    def update(state, gradient):
      key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index(axis_name))
      updates, opt_state = tx.update(
        gradient,
        _late(state.opt_state),
        state.params,
        sync=sync,
        **faults.extra_args(key),
      )
      new = optax.apply_updates(state.params, updates)
      return state.replace(params=new, opt_state=opt_state), ()

    compiled = team.step(update).lower(state, gradients).compile(_QUICK)
    return sm.wire.sent_bits_per_parameter(compiled, params)

  return ((sync_every - 1) * sent(sync=False) + sent(sync=True)) / sync_every


def all_reduce_bits(workers: int) -> float:
  """What a 32-bit ring all-reduce of the gradients sends instead."""
  return 64 * (workers - 1) / workers


def _late(opt_state: optax.OptState) -> optax.OptState:
  """Sets counters to a number that the compiler knows, so that it decides."""

  def late(leaf):
    counts = leaf.ndim == 0 and leaf.dtype == jnp.int32
    return jnp.full_like(leaf, _LATE) if counts else leaf

  return jax.tree.map(late, opt_state)


def _placed(leaf, sharding):
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
