"""Writes the model of a run in Hugging Face's layout, to be used elsewhere.

python -m experiments.export_weights --workdir=runs/llama_finetune --output=DIR
"""

from collections.abc import Sequence

from absl import flags

from experiments import entry
from experiments.finetuning import trained

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of a run.', required=True
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'Folder of the weights, without a model yet.', required=True
)


def main(argv: Sequence[str]) -> None:
  """Reads the flags and writes."""
  entry.require_flags_only(argv)
  entry.quiet()
  trained.export(_WORKDIR.value, _OUTPUT.value)
  print(f'The weights are in {_OUTPUT.value}.')


if __name__ == '__main__':
  entry.run(main)
