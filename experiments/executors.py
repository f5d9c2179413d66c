"""How workers are run: all on one device, or each on its own."""

from collections.abc import Callable

import jax

from experiments import errors, plans
import signmomentum as sm


def get(name: str, workers: int) -> sm.Workers:
  """Returns an executor.

  Args:
    name: a key of `EXECUTORS`.
    workers: number of workers.

  Raises:
    UserError: for an unknown name, or too few or too many devices.
  """
  return errors.lookup(EXECUTORS, name, 'executor')(workers)


def _simulated(count: int) -> sm.Workers:
  if jax.process_count() > 1:
    raise errors.UserError(
      'Simulated workers are all in one process, and there are'
      f' {jax.process_count()}. Use --workers=devices with --distributed.'
    )
  return sm.Workers(count, axis_name=plans.AXIS)


def _on_devices(count: int) -> sm.Workers:
  devices = jax.devices()
  if len(devices) != count:
    raise errors.UserError(
      f'The config has {count} workers, but there are {len(devices)} devices'
      f' ({devices[0].platform}, {jax.process_count()} processes), one for each'
      f' worker. Set workers={len(devices)} in the config; on a CPU,'
      f' --cpu_devices={count} makes as many virtual ones in one process, and'
      f' experiments.launch --processes={count} as many processes; or use'
      ' --workers=simulated.'
    )
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((count,), (plans.AXIS,), auto)
  return sm.Workers(count, mesh, plans.AXIS)


EXECUTORS: dict[str, Callable[[int], sm.Workers]] = {
  'simulated': _simulated,
  'devices': _on_devices,
}
