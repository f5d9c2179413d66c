r"""Trains several methods on equal tokens and compares them.

    python -m experiments.compare --config=configs/gpt2_nano.py \
      --methods=slowmo,distributed_sign_momentum --seeds=0,1 \
      --workdir=runs/comparison

The same command again goes on where it stopped, and does not repeat what is
finished. It leaves comparison.csv, .md, .json and .png in the directory.
"""

from collections.abc import Sequence

from absl import flags

from experiments import comparison, config, entry, errors, executors, methods

_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Config file, with arguments after a colon, apart from method and seed. Its'
  ' fields can be set too: --config.num_steps=2400.',
  required=True,
)
_METHODS = flags.DEFINE_list('methods', ['all'], 'Names of methods, or all.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds of the runs of each method.')
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the comparison.', required=True
)
_WORKERS = flags.DEFINE_enum(
  'workers',
  'simulated',
  list(executors.EXECUTORS),
  'Whether one device simulates the workers, or each device is one.',
)
_CPU_DEVICES = flags.DEFINE_integer(
  'cpu_devices', None, 'How many virtual devices to make of the CPU.'
)


def main(overrides: Sequence[str]) -> None:
  """Reads the flags and compares."""
  names = methods.names(_METHODS.value)
  seeds = [_seed(text) for text in _SEEDS.value]

  def load(method, seed):
    return config.load(_CONFIG.value, overrides, method=method, seed=seed)

  entry.quiet()
  count = load(names[0], seeds[0]).workers
  entry.set_cpu_devices(_WORKERS.value, count, _CPU_DEVICES.value)
  rows = comparison.run(load, names, seeds, _WORKDIR.value, _WORKERS.value)
  if rows:
    print(comparison.markdown(rows), end='')


def _seed(text: str) -> int:
  try:
    return int(text)
  except ValueError:
    raise errors.UserError(
      f'--seeds must be whole numbers such as 0,1,2; {text!r} is none.'
    ) from None


if __name__ == '__main__':
  entry.run(main, flags_parser=config.parse_flags)
