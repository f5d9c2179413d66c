"""Whether a program fits into the memory that there is."""

import pathlib

import jax

from experiments import errors

_MEMINFO = pathlib.Path('/proc/meminfo')
# A limit below the machine's, as of containers; 'max' for none.
_CGROUP = pathlib.Path('/sys/fs/cgroup/memory.max')


def peak_bytes(compiled: jax.stages.Compiled) -> int:
  """What a program needs on each device while it runs, arguments included."""
  memory = compiled.memory_analysis()
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


def available_bytes(devices: int = 1) -> int | None:
  """What each of some devices has; None if nothing says it.

  Args:
    devices: of this process, that a program runs on. Those of a CPU share it.
  """
  device = jax.local_devices()[0]
  if device.platform != 'cpu':
    stats = device.memory_stats() or {}
    return stats.get('bytes_limit')
  limits = [*_available(), *_limit()]
  return min(limits) // devices if limits else None


def require(needed: int, devices: int = 1) -> None:
  """Sees that a program fits, before anything is allocated for it.

  Args:
    needed: what `peak_bytes` says of it.
    devices: of this process, that it runs on.

  Raises:
    UserError: it does not.
  """
  there = available_bytes(devices)
  if there is not None and needed > there:
    raise errors.UserError(
      f'A round needs {shown(needed)} on each device, which has'
      f' {shown(there)}. Use a larger micro_batches or a smaller batch_size,'
      ' set model.rematerialise, or have fewer workers on a device.'
    )


def shown(count: int) -> str:
  """A number of bytes for people."""
  if count < 2**30:
    return f'{count / 2**20:.1f} MiB'
  return f'{count / 2**30:.2f} GiB'


def _available() -> list[int]:
  if not _MEMINFO.exists():
    return []
  for line in _MEMINFO.read_text().splitlines():
    name, _, value = line.partition(':')
    if name == 'MemAvailable':
      return [int(value.split()[0]) * 1024]
  return []


def _limit() -> list[int]:
  if not _CGROUP.exists():
    return []
  text = _CGROUP.read_text().strip()
  return [int(text)] if text.isdecimal() else []
