"""Compiles updates for TPU pods, without a TPU, and reads what they will do.

    make bench-tpu
    python -m experiments.bench_tpu --json=bench_tpu.json   # the same, by hand

The extra `tpu-aot` wants an environment of its own: see `experiments.chips`.
For GPT-2 small's parameters and each method and topology the table says

- the collectives of one step, of a chip;
- bits that a chip sends per parameter, over the links between chips and over
  the network between slices;
- bytes of main memory read and written per parameter (see `experiments.hbm`);
  of `optax.lion` and `optax.apply_updates` it is 20: gradient, momentum and
  parameters are read, and the last two written, 4 bytes each;
- bytes per parameter that are needed for a while, beside what comes in;
- milliseconds for memory and for the exchange, by the published figures of the
  chips. They are a lower bound: nothing was run.

These figures have no noise. They change with the versions of JAX and libtpu.
"""

from collections.abc import Sequence
from importlib import metadata
import json
from typing import Any

from absl import flags
import jax
import numpy as np
import optax

from experiments import chips, entry, errors, hbm, outputs, provenance, updates
from experiments.models import decoder, gpt2
import signmomentum as sm

_AXIS = 'workers'
_RATE = 1e-4


_TOPOLOGIES_BY_DEFAULT = ['v5e_4x4', 'v5e_4x4_2_slices', 'v5p_4x4x4']

METHODS = {
  'lion_alone': lambda: optax.lion(_RATE),
  'lion_mean': lambda: optax.chain(
    sm.aggregate_by_mean(_AXIS), optax.lion(_RATE)
  ),
  'distributed_lion': lambda: sm.distributed_lion(_RATE),
  'distributed_lion_sign_mean': lambda: sm.distributed_lion(
    _RATE, aggregation='sign_mean'
  ),
  'distributed_sign_momentum': lambda: sm.distributed_sign_momentum(
    optax.adamw(_RATE), _RATE, sync_every=12
  ),
  'distributed_sign_momentum_sharded': lambda: sm.distributed_sign_momentum(
    optax.adamw(_RATE), _RATE, sync_every=12, aggregation='sharded_mean'
  ),
  'distributed_sign_momentum_one_bit': lambda: sm.distributed_sign_momentum(
    optax.adamw(_RATE), _RATE, sync_every=12, aggregation='majority_vote'
  ),
}

_METHODS = flags.DEFINE_list('methods', list(METHODS), 'Which to compile.')
_TOPOLOGIES = flags.DEFINE_list(
  'topologies', _TOPOLOGIES_BY_DEFAULT, 'Which to compile for.'
)
_JSON = flags.DEFINE_string('json', None, 'Where to write the figures.')


def measure(method: str, topology: str) -> dict[str, Any]:
  """Compiles the step of a method that exchanges, and reads the program.

  Args:
    method: a key of `METHODS`.
    topology: a key of `chips.TOPOLOGIES`.
  """
  chip = chips.TOPOLOGIES[topology].chip
  devices = chips.TOPOLOGIES[topology].devices()
  mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
  params = jax.eval_shape(lambda: decoder.init(gpt2.small(), jax.random.key(0)))
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  tx = optax.with_extra_args_support(METHODS[method]())
  lowered = updates.lower(tx, params, mesh, _AXIS, sync=True, late=True)
  compiled = lowered.compile()
  found = sm.wire.collectives(compiled)
  bits = {'links': 0.0, 'network': 0.0}
  for collective in found:
    where = 'network' if collective.between_slices else 'links'
    bits[where] += 8 * collective.sent_bytes * collective.times
  moved = hbm.bytes_accessed(compiled)
  return {
    'method': method,
    'topology': topology,
    'workers': len(devices),
    'parameters': count,
    'collectives': [
      f'{c.kind} {"+".join(c.dtypes)}' for c in found if c.sent_bytes
    ],
    'bits_per_parameter': bits['links'] / count,
    'network_bits_per_parameter': bits['network'] / count,
    'bytes_accessed_per_parameter': moved / count,
    'temporary_bytes_per_parameter': (
      compiled.memory_analysis().temp_size_in_bytes / count
    ),
    'memory_ms': 1e3 * moved / chip.memory,
    'exchange_ms': 1e3
    * (bits['links'] / chip.links + bits['network'] / chip.network),
  }


def table(figures: Sequence[dict[str, Any]]) -> str:
  """The figures as a Markdown table."""
  lines = [
    '| topology | method | collectives | bits sent, chips | slices'
    ' | bytes accessed | temporary bytes | memory, ms | exchange, ms |',
    '| --- | --- | --- | --: | --: | --: | --: | --: | --: |',
  ]
  for row in figures:
    kinds = dict.fromkeys(row['collectives'])
    said = [f'{row["collectives"].count(kind)} {kind}' for kind in kinds]
    lines.append(
      f'| {row["topology"]} | {row["method"]} | {", ".join(said) or "none"}'
      f' | {row["bits_per_parameter"]:.3f}'
      f' | {row["network_bits_per_parameter"]:.3f}'
      f' | {row["bytes_accessed_per_parameter"]:.1f}'
      f' | {row["temporary_bytes_per_parameter"]:.2f}'
      f' | {row["memory_ms"]:.2f} | {row["exchange_ms"]:.3f} |'
    )
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> None:
  """Compiles, prints and writes."""
  entry.require_flags_only(argv)
  entry.quiet()
  file = outputs.file(_JSON.value, '--json')
  chips.prepare()
  for name, given, known in (
    ('methods', _METHODS.value, METHODS),
    ('topologies', _TOPOLOGIES.value, chips.TOPOLOGIES),
  ):
    if unknown := set(given) - set(known):
      raise errors.UserError(
        f'--{name}: {", ".join(sorted(unknown))} is unknown; there are'
        f' {", ".join(known)}.'
      )
  figures = []
  for topology in _TOPOLOGIES.value:
    for method in _METHODS.value:
      figures.append(measure(method, topology))
      print(table(figures).splitlines()[-1], flush=True)
  print('\n' + table(figures))
  if file:
    versions = provenance.versions()
    versions['libtpu'] = metadata.version('libtpu')
    written = {'figures': figures, 'versions': versions}
    outputs.write(file, json.dumps(written, indent=2) + '\n')


if __name__ == '__main__':
  entry.run(main)
