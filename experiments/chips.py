"""TPUs that are not there, for which programs can be compiled all the same.

The package libtpu compiles for a described topology on any machine. It is in
the extra `tpu-aot`, which wants an environment of its own: where libtpu is
installed, other programs look for a TPU.
"""

import dataclasses
from importlib import metadata
import os
from typing import Any

import jax
from jax.experimental import topologies

from experiments import errors


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published figures of a chip.

  Attributes:
    capacity: bytes of its main memory.
    memory: bytes per second of its main memory.
    links: bits per second of all its links to other chips together.
    network: bits per second to other slices, its share of the host's.
  """

  capacity: float
  memory: float
  links: float
  network: float


# https://cloud.google.com/tpu/docs/v5e and /v5p; the network of a host is
# 100 and 200 Gbit/s, for 4 chips each.
_V5E = Chip(capacity=16e9, memory=819e9, links=1600e9, network=25e9)
_V5P = Chip(capacity=95e9, memory=2765e9, links=4800e9, network=50e9)


@dataclasses.dataclass(frozen=True)
class Topology:
  """Chips and how they are joined.

  Attributes:
    chip: what each of them is.
    name: as libtpu has it, of a slice.
    slices: how many there are.
  """

  chip: Chip
  name: str
  slices: int = 1

  def devices(self) -> list[Any]:
    """The chips, which need not be there."""
    described = topologies.get_topology_desc(
      platform='tpu', topology_name=self.name, num_slices=self.slices
    )
    return described.devices


TOPOLOGIES = {
  'v5e_4x4': Topology(_V5E, 'v5e:4x4'),
  'v5e_4x4_2_slices': Topology(_V5E, 'v5e:4x4', slices=2),
  # Which Google counts as v5p-64: a chip has two cores.
  'v5p_2x4x4': Topology(_V5P, 'v5p:2x4x4'),
  'v5p_4x4x4': Topology(_V5P, 'v5p:4x4x4'),
}


# So that nobody looks for a TPU, or waits for one that others use.
_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': 'true',
}


def prepare() -> None:
  """Makes this process one that compiles for TPUs, before it uses a device.

  Raises:
    UserError: the package is not installed.
  """
  try:
    metadata.version('libtpu')
  except metadata.PackageNotFoundError:
    raise errors.UserError(
      'libtpu is not installed here, which compiles for TPUs. `make bench-tpu`'
      " makes an environment with it, by pip install -e '.[tpu-aot]'."
    ) from None
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')
