"""Measures a vote: the speed of counting, the memory of the whole.

    python -m experiments.bench_vote --json=bench_vote.json

1. The same packed words of 8 workers are voted on in two ways that take turns
   in one process: bit-sliced, by full adders on whole words, into packed words
   of where plus wins and where it ties; and unpacked, summed and signed. The
   figures are medians. Sums are int32, as everyone writes them; a third way
   sums in bytes, the least that can hold them.
2. All that one of 8 workers computes in a vote, with the exchange left out:
   its own votes are packed, its share of everybody's is counted, and the
   results of all are unpacked to floats. It takes turns with scaling the same
   array by a number, which does nothing but read and write it.
3. A step of `distributed_lion` on one worker, with GPT-2 small's parameters,
   takes turns with one of `optax.lion` and `optax.apply_updates`.
4. A majority vote of 8 workers on devices is compiled (not run), to see what
   memory it needs beside the gradients and the updates.
"""

from collections.abc import Sequence
import json
from typing import Any

from absl import flags
import jax

from experiments import entry, outputs, provenance, vote_costs
from experiments.models import decoder, gpt2

_PARAMETERS = flags.DEFINE_integer(
  'parameters', 10_000_000, 'Parameters to count votes on.', lower_bound=4096
)
_MEMORY_PARAMETERS = flags.DEFINE_integer(
  'memory_parameters', 10_000_000, 'Parameters to compile a vote on.'
)
_WORKERS = flags.DEFINE_integer('workers', 8, 'Voters.', lower_bound=1)
_VOTE_PARAMETERS = flags.DEFINE_integer(
  'vote_parameters', 100_000_000, 'Parameters of a whole vote.'
)
_REPEATS = flags.DEFINE_integer('repeats', 21, 'Turns of each.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the votes.')
_JSON = flags.DEFINE_string('json', None, 'Where to write the figures.')


def main(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  entry.require_flags_only(argv)
  entry.quiet()
  file = outputs.file(_JSON.value, '--json')
  entry.set_cpu_devices('simulated', _WORKERS.value)
  figures: dict[str, Any] = {
    'parameters': _PARAMETERS.value,
    'memory_parameters': _MEMORY_PARAMETERS.value,
    'workers': _WORKERS.value,
    'repeats': _REPEATS.value,
    'seed': _SEED.value,
    **vote_costs.counting(
      _PARAMETERS.value, _WORKERS.value, _REPEATS.value, _SEED.value
    ),
    'vote_parameters': _VOTE_PARAMETERS.value,
    **vote_costs.whole(
      _VOTE_PARAMETERS.value, _WORKERS.value, _REPEATS.value, _SEED.value
    ),
    **vote_costs.step(
      decoder.init(gpt2.small(), jax.random.key(_SEED.value)), _REPEATS.value
    ),
    'temporary_bytes_per_parameter': vote_costs.temporary_bytes(
      _MEMORY_PARAMETERS.value, _WORKERS.value
    ),
    'versions': provenance.versions(),
  }
  print(json.dumps(figures, indent=2))
  if file:
    outputs.write(file, json.dumps(figures, indent=2) + '\n')


if __name__ == '__main__':
  entry.run(main)
