r"""Compares methods: on equal tokens, in one setting or in all of a sweep file.

    python -m experiments.compare --sweep=configs/sweeps/gpt2_nano.py \
      --workdir=runs/sweep --jobs=2
    python -m experiments.compare --sweep=configs/sweeps/gpt2_nano.py \
      --workdir=runs/sweep --studies=workers_8 --methods=slowmo
    python -m experiments.compare --config=configs/gpt2_nano.py \
      --methods=slowmo,distributed_sign_momentum --seeds=0,1 \
      --workdir=runs/comparison

The same command again goes on where it stopped, and does not repeat what is
finished. It leaves results.md, results.json and pictures in the directory, of
all that is finished there: a single row can be made anew by deleting its runs
and naming its study and method. With --config, methods run at the learning rate
of the config; nothing is tuned.

Ctrl-C or SIGTERM stops it, with a checkpoint of each run that is being made; a
second one ends these runs at once.
"""

from collections.abc import Sequence

from absl import flags
import jax

from experiments import (
  comparison,
  config,
  entry,
  errors,
  executors,
  interrupts,
  methods,
  outcomes,
  outputs,
  pictures,
  settings,
  sweep,
)

_SWEEP = flags.DEFINE_string('sweep', None, 'Sweep file: many studies.')
_STUDIES = flags.DEFINE_list(
  'studies', ['all'], 'Names of studies of the sweep, or all.'
)
_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Config file, with arguments after a colon, apart from method and seed: one'
  ' study. Its fields can be set too: --config.num_steps=2400.',
)
_METHODS = flags.DEFINE_list('methods', ['all'], 'Names of methods, or all.')
_SEEDS = flags.DEFINE_list(
  'seeds', None, 'With --config, the seeds of each method; by default 0.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the comparison.', required=True
)
_JOBS = flags.DEFINE_integer(
  'jobs',
  1,
  'How many runs to make at a time, each on its share of the processors.',
  lower_bound=1,
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
flags.mark_flags_as_mutual_exclusive(['sweep', 'config'], required=True)


def main(overrides: Sequence[str]) -> None:
  """Reads the flags and compares."""
  interrupts.end_commands()
  entry.quiet()
  # Devices are for the processes that train.
  jax.config.update('jax_platforms', 'cpu')
  plan = _sweep(overrides) if _SWEEP.value else [_study(overrides)]
  chosen = settings.choose(plan, _STUDIES.value, _METHODS.value)
  outputs.directory(_WORKDIR.value)
  results = outcomes.Results(plan, _WORKDIR.value)

  def publish():
    comparison.write(results)
    pictures.draw(results)

  crew = sweep.Crew(_JOBS.value, _WORKERS.value, _CPU_DEVICES.value)
  if sweep.run(results, chosen, publish, crew):
    print(comparison.markdown(results), end='')


def _sweep(overrides: Sequence[str]) -> list[settings.Study]:
  if overrides or _SEEDS.value is not None:
    raise errors.UserError(
      '--config.FIELD and --seeds go with --config; with --sweep, the file says'
      ' what they are. Copy it to try others.'
    )
  return settings.load(_SWEEP.value)


def _study(overrides: Sequence[str]) -> settings.Study:
  """The study that the flags describe."""
  study = settings.Study(
    name='comparison',
    config=_CONFIG.value,
    methods=methods.names(_METHODS.value),
    seeds=[_seed(text) for text in _SEEDS.value or ['0']],
    overrides=dict(item.split('=', 1) for item in overrides),
  )
  settings.check([study])
  return study


def _seed(text: str) -> int:
  try:
    return int(text)
  except ValueError:
    raise errors.UserError(
      f'--seeds must be whole numbers such as 0,1,2; {text!r} is none.'
    ) from None


if __name__ == '__main__':
  entry.run(main, flags_parser=config.parse_flags)
