"""Says what the round of a config sends, and whether it fits into memory.

    python -m experiments.fits \
      --config=configs/gpt2_openwebtext.py:size=small,workers=8
    python -m experiments.fits --topology=v5e_4x4 --topology=v5p_2x4x4 \
      --config=configs/gpt2_openwebtext.py:size=small \
      --config=configs/vit_imagenet.py:variant=B16

Without topologies all workers are simulated on one device of this machine. With
them, each worker is a chip that need not be there, as many as there are (see
`experiments.chips`; it takes the environment of `make bench-tpu`). The program
is compiled from shapes and not run, in about a minute. The exit code is 1 if
something does not fit.
"""

from collections.abc import Sequence
import json
import sys
import time
from typing import Any

from absl import flags
import jax
import numpy as np

from experiments import (
  at_size,
  chips,
  config,
  entry,
  memory,
  outputs,
  plans,
  provenance,
)

_CONFIG = flags.DEFINE_multi_string(
  'config', None, 'Config file with arguments; can be repeated.', required=True
)
_TOPOLOGIES = flags.DEFINE_multi_enum(
  'topology',
  [],
  list(chips.TOPOLOGIES),
  'Chips to compile for; can be repeated.',
)
_JSON = flags.DEFINE_string('json', None, 'Where to write the figures.')


def measure(
  spec: str, overrides: Sequence[str], topology: str | None
) -> dict[str, Any]:
  """Compiles the round of a config and reads the program.

  Args:
    spec: the config file with arguments.
    overrides: fields of the config, as in `config.load`.
    topology: a key of `chips.TOPOLOGIES`, each chip a worker; None: simulated.

  Raises:
    UserError: for a mistake in the config.
  """
  if topology is None:
    experiment = config.load(spec, overrides)
    mesh, there = None, memory.available_bytes()
  else:
    devices = chips.TOPOLOGIES[topology].devices()
    experiment = config.load(spec, overrides, workers=len(devices))
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.Mesh(np.array(devices), (plans.AXIS,), auto)
    there = int(chips.TOPOLOGIES[topology].chip.capacity)
  began = time.perf_counter()
  lowered = at_size.lower(experiment, mesh)
  peak = _peak_bytes(lowered)
  return {
    'config': spec,
    'method': experiment.method,
    'workers': experiment.workers,
    'topology': topology,
    'collectives': at_size.collectives(lowered),
    'peak_bytes': peak,
    'available_bytes': there,
    'fits': peak is not None and (there is None or peak <= there),
    'compile_seconds': time.perf_counter() - began,
  }


def line(figures: dict[str, Any]) -> str:
  """The figures as a row of a Markdown table."""
  kinds = ', '.join(f'{n} {kind}' for kind, n in figures['collectives'].items())
  there = figures['available_bytes']
  cells = (
    figures['config'],
    figures['method'],
    figures['topology'] or 'simulated here',
    figures['workers'],
    kinds or 'none',
    _shown(figures['peak_bytes'], 'more'),
    _shown(there, 'unknown'),
    'yes' if figures['fits'] else 'NO',
  )
  return f'| {" | ".join(map(str, cells))} |'


def _peak_bytes(lowered: jax.stages.Lowered) -> int | None:
  """None if the compiler says that it cannot fit."""
  try:
    return memory.peak_bytes(lowered.compile())
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    print(str(error).splitlines()[0], file=sys.stderr)
    return None


def _shown(count: int | None, otherwise: str) -> str:
  return otherwise if count is None else memory.shown(count)


def main(overrides: Sequence[str]) -> None:
  """Compiles, prints and writes."""
  entry.quiet()
  file = outputs.file(_JSON.value, '--json')
  if _TOPOLOGIES.value:
    chips.prepare()
  print(
    '| config | method | on | workers | collectives | needs, each | has | fits '
    '|\n'
    '| --- | --- | --- | --: | --- | --: | --: | --- |'
  )
  found = []
  for topology in _TOPOLOGIES.value or [None]:
    for spec in _CONFIG.value:
      found.append(measure(spec, overrides, topology))
      print(line(found[-1]), flush=True)
  if file:
    written = {'figures': found, 'versions': provenance.versions()}
    outputs.write(file, json.dumps(written, indent=2) + '\n')
  if not all(figures['fits'] for figures in found):
    sys.exit(1)


if __name__ == '__main__':
  entry.run(main, flags_parser=config.parse_flags)
