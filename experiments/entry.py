"""What entry points do first, before any device is used."""

from absl import flags, logging
import jax


def quiet() -> None:
  """Hides what libraries log of their doings, unless --verbosity is set."""
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)


def set_cpu_devices(
  executor: str, workers: int, cpu_devices: int | None = None
) -> None:
  """Sets how many virtual devices the CPU is.

  Simulated workers need them too: to see what a method sends, its program is
  compiled (not run) for one CPU device per worker. Real workers have the
  devices that there are, unless told otherwise.

  Args:
    executor: a key of `executors.EXECUTORS`.
    workers: number of workers.
    cpu_devices: what the user asked for, None if nothing.
  """
  if cpu_devices is None and executor == 'simulated':
    cpu_devices = max(workers, jax.config.jax_num_cpu_devices)
  if cpu_devices is not None:
    jax.config.update('jax_num_cpu_devices', cpu_devices)
