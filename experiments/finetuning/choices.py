"""The choices of a model in several sets of questions: a table, a record."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any

from experiments import errors, outputs, provenance
from experiments.finetuning import (
  multiple_choice,
  questions,
  trained,
  vocabularies,
  weights,
)
from experiments.models import decoder

_HEADER = f'{"% right":16}{"likeliest":>16}{"per byte":>16}{"questions":>11}'


@dataclasses.dataclass(frozen=True)
class Model:
  """What is asked.

  Attributes:
    model: the decoder.
    params: its parameters.
    vocabulary: of its tokens.
    name: where it is from.
  """

  model: decoder.DecoderConfig
  params: dict[str, Any]
  vocabulary: vocabularies.Vocabulary
  name: str


def sets(words: Sequence[str]) -> dict[str, str]:
  """Parses `NAME:PATH,NAME:PATH`, several of these, into paths by name.

  Raises:
    UserError: for what is not of that form, or twice the same name.
  """
  paths = {}
  for item in ','.join(words).split(','):
    name, _, path = item.partition(':')
    if not (name and path) or name in paths:
      raise errors.UserError(
        f'--task has {item!r}: give NAME:PATH, each name once. Names:'
        f' {", ".join(questions.SETS)}.'
      )
    paths[name] = path
  return paths


def of_weights(folder: str | os.PathLike, dtype: str) -> Model:
  """Returns a model from given weights, with the tokenizer beside them."""
  # Scanned: one block to compile, not all.
  model = weights.decoder_config(folder, dtype=dtype, scan_layers=True)
  # First what takes no time and may be missing.
  vocabulary = vocabularies.get(str(folder))
  return Model(model, weights.load(folder, model), vocabulary, str(folder))


def of_run(workdir: str | os.PathLike) -> Model:
  """Returns the model that a run has come to."""
  run = trained.load(workdir)
  vocabulary = vocabularies.get(trained.tokenizer(run.config))
  return Model(run.model, run.params, vocabulary, str(workdir))


def ask(
  asked: Model,
  paths: Mapping[str, str],
  shots: int,
  seed: int,
  limit: int | None,
  output: str | os.PathLike,
) -> dict[str, multiple_choice.Result]:
  """Asks a model all questions, prints a table and writes JSON.

  Args:
    asked: the model.
    paths: of the sets, by name.
    shots: examples before each question.
    seed: of their draw.
    limit: take only the first questions, so many; all if None.
    output: the file to write, in a directory that is there.

  Raises:
    UserError: for sets that are not there, or too small.
  """
  # All of them before minutes of work, not after.
  loaded = {name: questions.load(name, path) for name, path in paths.items()}
  print(_HEADER)
  results = {}
  for name, (evaluated, examples) in loaded.items():
    results[name] = multiple_choice.evaluate(
      asked.model,
      asked.params,
      asked.vocabulary,
      evaluated[:limit],
      examples,
      shots,
      seed,
    )
    print(_row(name, results[name]), flush=True)
  for name, result in results.items():
    if result.shots_dropped or result.cut:
      print(
        f'{name}: the context {asked.model.context} had no room for'
        f' {result.shots_dropped:,} of {result.questions * shots:,} examples,'
        f' nor for the beginning of {result.cut:,} questions.'
      )
  record = {
    'model': asked.name,
    'sets': dict(paths),
    'seed': seed,
    'limit': limit,
    'results': {
      name: dataclasses.asdict(result) for name, result in results.items()
    },
    'versions': provenance.versions(),
  }
  outputs.write(pathlib.Path(output), json.dumps(record, indent=2) + '\n')
  return results


def _row(name: str, result: multiple_choice.Result) -> str:
  first, second = (
    f'{100 * value:.2f} ± {100 * error:.2f}'
    for value, error in (result.accuracy, result.accuracy_per_byte)
  )
  return f'{name:16}{first:>16}{second:>16}{result.questions:11,}'
