r"""Writes the model of a run in Hugging Face's layout, to be used elsewhere.

    python -m experiments.export_weights --workdir=runs/llama_finetune \
      --output=DIR

If the run began with given weights, their tokenizer is written, too.
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
_MODEL_PATH = flags.DEFINE_string(
  'model_path',
  None,
  'Folder of the weights that the run began with, if it is not that of its'
  ' config any more; empty: write no tokenizer.',
)


def main(argv: Sequence[str]) -> None:
  """Reads the flags and writes."""
  entry.require_flags_only(argv)
  entry.quiet()
  trained.export(_WORKDIR.value, _OUTPUT.value, _MODEL_PATH.value)
  print(f'The weights are in {_OUTPUT.value}.')


if __name__ == '__main__':
  entry.run(main)
