"""Prints text from a trained model.

python -m experiments.generate --workdir=runs/gpt2_nano --prompt='The '
"""

from collections.abc import Sequence

from absl import flags

from experiments import entry, errors, sampling

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of a run.', required=True
)
_PROMPT = flags.DEFINE_string('prompt', '', 'Where to start.')
_LENGTH = flags.DEFINE_integer('length', 400, 'Tokens to add.')
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.8, '1: as the model has it; 0: always the likeliest token.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the draws.')


def main(argv: Sequence[str]) -> None:
  """Reads the flags and prints."""
  if argv[1:]:
    raise errors.UserError(f'Not a flag: {" ".join(argv[1:])}')
  entry.quiet()
  print(
    sampling.generate(
      _WORKDIR.value,
      _PROMPT.value,
      _LENGTH.value,
      _TEMPERATURE.value,
      _SEED.value,
    )
  )


if __name__ == '__main__':
  entry.run(main)
