r"""Measures how often a model chooses the right one of several answers.

    python -m experiments.choose --weights=DIR --task=arc_easy:ARC-Easy
    python -m experiments.choose --workdir=runs/llama_finetune --shots=3 \
      --task=boolq:BoolQ,piqa:PIQA --output=choices.json

DIR has weights in Hugging Face's layout; `experiments.finetuning.questions`
tells the sets of questions and their files. Prints a table and writes JSON.
"""

from collections.abc import Sequence

from absl import flags

from experiments import entry, errors, outputs
from experiments.finetuning import choices

_WEIGHTS = flags.DEFINE_string(
  'weights', '', 'Folder of weights, with a tokenizer.json.'
)
_WORKDIR = flags.DEFINE_string('workdir', '', 'Directory of a run.')
_TASK = flags.DEFINE_multi_string(
  'task', [], 'NAME:PATH of a set of questions, several with commas.'
)
_SHOTS = flags.DEFINE_integer('shots', 3, 'Examples before each question.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of the draw of the examples.')
_LIMIT = flags.DEFINE_integer(
  'limit', None, 'Take only the first questions, so many.', lower_bound=1
)
_DTYPE = flags.DEFINE_string(
  'dtype', 'float32', 'What to compute in, of --weights.'
)
_OUTPUT = flags.DEFINE_string('output', 'choices.json', 'File to write.')


def main(argv: Sequence[str]) -> None:
  """Reads the flags, asks and prints."""
  entry.require_flags_only(argv)
  entry.quiet()
  paths = choices.sets(_TASK.value)
  if bool(_WEIGHTS.value) == bool(_WORKDIR.value):
    raise errors.UserError('Give either --weights or --workdir.')
  output = outputs.file(_OUTPUT.value, '--output')
  if _WEIGHTS.value:
    model = choices.of_weights(_WEIGHTS.value, _DTYPE.value)
  else:
    model = choices.of_run(_WORKDIR.value)
  choices.ask(model, paths, _SHOTS.value, _SEED.value, _LIMIT.value, output)


if __name__ == '__main__':
  entry.run(main)
