"""Bits that a method sends, read from its compiled program.

The update alone is compiled, from shapes, for as many CPU devices as there are
workers: once as a step inside a round and once as the step that ends it. What
is sent depends on the method and the shapes, not on the model or the device.

Counters stand at a late step: what a method does in the beginning only, as the
warm-up of a density, is not counted.
"""

import jax
import numpy as np
import optax

from experiments import errors, updates
from experiments import faults as faults_lib
import signmomentum as sm

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
      ' uses a device; in a command, --cpu_devices, which counts those of one'
      ' process.'
    )
  mesh = jax.sharding.Mesh(np.array(cpus[:workers]), (axis_name,))

  def sent_in(sync: bool) -> float:
    lowered = updates.lower(
      tx, params, mesh, axis_name, sync=sync, late=True, faults=faults
    )
    return sm.wire.sent_bits_per_parameter(lowered.compile(_QUICK), params)

  local_steps = (sync_every - 1) * sent_in(sync=False)
  return (local_steps + sent_in(sync=True)) / sync_every


def sent(
  bits: float, parameters: int, steps: int, seconds: float
) -> dict[str, float]:
  """What each worker has sent, for the log and the table.

  Args:
    bits: per parameter and local step.
    parameters: their number.
    steps: local steps made.
    seconds: that they took, with all that was done beside them.

  Returns:
    `bits`, per parameter so far; `bits_per_step`, per parameter and local step;
    `bytes_sent` so far; `bits_per_second`, of the whole message, on average.
  """
  in_all = bits * steps * parameters
  return {
    'bits': bits * steps,
    'bits_per_step': bits,
    'bytes_sent': in_all / 8,
    'bits_per_second': in_all / seconds,
  }


def all_reduce_bits(workers: int) -> float:
  """What a 32-bit ring all-reduce of the gradients sends instead."""
  return 64 * (workers - 1) / workers
