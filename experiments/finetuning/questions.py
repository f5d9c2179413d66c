"""Questions with several answers to choose from, in the files of their sets.

    arc_easy, arc_challenge  ARC, Clark et al., 2018 (arXiv 1803.05457)
    boolq                    Clark et al., 2019 (arXiv 1905.10044)
    piqa                     Bisk et al., 2020 (arXiv 1911.11641)
    siqa                     Sap et al., 2019 (arXiv 1904.09728)
    hellaswag                Zellers et al., 2019 (arXiv 1905.07830)
    openbookqa               Mihaylov et al., 2018 (arXiv 1809.02789)

Files are JSON lines as published, or as Hugging Face has them; labels are in
the lines, or in NAME-labels.lst beside NAME.jsonl. In a folder, the file to
evaluate is the one whose name has `test`, or `valid`, `val` or `dev` for sets
whose test has no labels, and examples come from the one that has `train`.

Prompts are those of lm-evaluation-harness, Gao et al.
<https://github.com/EleutherAI/lm-evaluation-harness>.
"""

from collections.abc import Callable, Sequence
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

from experiments import errors


class Question(NamedTuple):
  """A prompt, what may follow it, and which of these is right."""

  prompt: str
  choices: tuple[str, ...]
  answer: int


class _Set(NamedTuple):
  """How to read a set: a line and its label, and the words in file names."""

  read: Callable[[dict[str, Any], Any], Question]
  evaluated: tuple[str, ...]
  field: str  # of the label, in a line


def load(
  name: str, path: str | os.PathLike
) -> tuple[list[Question], list[Question]]:
  """Returns the questions to evaluate, and those to take examples from.

  Args:
    name: a key of `SETS`.
    path: a folder, or a file to evaluate: the others are then beside it.

  Raises:
    UserError: if files are missing or several could be meant, and for a line
      that is not of the format.
  """
  found = errors.lookup(SETS, name, 'set of questions')
  path = pathlib.Path(path)
  if not path.exists():
    raise errors.UserError(f'{name}: there is no file or folder {path}.')
  folder = path if path.is_dir() else path.parent
  if path.is_dir():
    path = _file(name, folder, found.evaluated)
  return _read(found, path), _read(found, _file(name, folder, ('train',)))


def _file(name, folder, words):
  paths = sorted(folder.glob('*.jsonl'))
  fit = [
    path
    for path in paths
    if set(words) & set(re.split('[^a-z]+', path.stem.lower()))
  ]
  if len(fit) != 1:
    listed = ', '.join(path.name for path in paths) or 'none'
    raise errors.UserError(
      f'{name}: {folder} must have one .jsonl file with {" or ".join(words)} in'
      f' its name. It has: {listed}.'
    )
  return fit[0]


def _read(found: _Set, path: pathlib.Path) -> list[Question]:
  try:
    text = path.read_text(encoding='utf-8')
  except ValueError as error:
    raise errors.UserError(f'{path} is not in UTF-8: {error}.') from error
  lines = [line for line in text.split('\n') if line.strip()]
  beside = path.with_name(f'{path.stem}-labels.lst')
  labels = beside.read_text().split() if beside.is_file() else None
  if labels is not None and len(labels) != len(lines):
    raise errors.UserError(
      f'{beside} has {len(labels)} labels for {len(lines)} questions.'
    )
  questions = []
  for i, line in enumerate(lines):
    try:
      fields = json.loads(line)
      label = fields[found.field] if labels is None else labels[i]
      question = found.read(fields, label)
      if not 0 <= question.answer < len(question.choices):
        raise ValueError(f'there is no choice {label!r}')
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise errors.UserError(
        f'{path}, question {i + 1} is not of its format: {error!r}.'
      ) from error
    questions.append(question)
  if not questions:
    raise errors.UserError(f'{path} has no questions.')
  return questions


def _choices(fields: dict[str, Any]) -> tuple[list[str], list[str]]:
  """Returns labels and texts: a list of pairs, or a pair of lists."""
  question = fields.get('question')
  choices = question if isinstance(question, dict) else fields
  choices = choices['choices']
  if isinstance(choices, dict):
    labels, texts = choices['label'], choices['text']
    if len(labels) != len(texts):
      raise ValueError(f'{len(labels)} labels for {len(texts)} choices')
    return labels, texts
  return [c['label'] for c in choices], [c['text'] for c in choices]


def _stem(fields: dict[str, Any]) -> str:
  question = fields.get('question', fields.get('question_stem'))
  return _text(question['stem'] if isinstance(question, dict) else question)


def _text(value: Any) -> str:
  if not isinstance(value, str):
    raise TypeError(f'{value!r} is not a text')
  return value


def _number(label: Any) -> int:
  if isinstance(label, bool) or int(label) != float(label):
    raise ValueError(f'the label {label!r} is not a whole number')
  return int(label)


def _question(prompt: str, texts: Sequence[str], answer: int) -> Question:
  # A space, not the prompt, comes first: so tokens are those of running text.
  return Question(prompt, tuple(f' {_text(text)}' for text in texts), answer)


def _arc(fields, label):
  labels, texts = _choices(fields)
  prompt = f'Question: {_stem(fields)}\nAnswer:'
  return _question(prompt, texts, labels.index(label))


def _openbookqa(fields, label):
  labels, texts = _choices(fields)
  return _question(_stem(fields), texts, labels.index(label.strip()))


def _boolq(fields, label):
  if label not in (True, False):
    raise ValueError(f'answer={label!r} is neither true nor false')
  passage, question = _text(fields['passage']), _text(fields['question'])
  prompt = f'{passage}\nQuestion: {question}?\nAnswer:'
  return _question(prompt, ('no', 'yes'), int(label))


def _piqa(fields, label):
  prompt = f'Question: {_text(fields["goal"])}\nAnswer:'
  return _question(prompt, (fields['sol1'], fields['sol2']), _number(label))


def _siqa(fields, label):
  prompt = f'Q: {_text(fields["context"])} {_text(fields["question"])}\nA:'
  texts = [fields[f'answer{letter}'] for letter in 'ABC']
  # They count from 1.
  return _question(prompt, texts, _number(label) - 1)


def _hellaswag(fields, label):
  if 'ctx_a' in fields:
    text = f'{fields["ctx_a"]} {fields["ctx_b"].capitalize()}'
  else:
    text = fields['ctx']
  prompt = _plain(f'{fields["activity_label"]}: {text}')
  return _question(prompt, map(_plain, fields['endings']), _number(label))


def _plain(text: str) -> str:
  """Removes the marks of WikiHow's pages, as lm-evaluation-harness does."""
  text = text.strip().replace(' [title]', '. ')
  return re.sub(r'\[.*?\]', '', text).replace('  ', ' ')


_HELD_OUT = ('valid', 'validation', 'val', 'dev')

SETS: dict[str, _Set] = {
  'arc_easy': _Set(_arc, ('test',), 'answerKey'),
  'arc_challenge': _Set(_arc, ('test',), 'answerKey'),
  'boolq': _Set(_boolq, _HELD_OUT, 'answer'),
  'piqa': _Set(_piqa, _HELD_OUT, 'label'),
  'siqa': _Set(_siqa, _HELD_OUT, 'label'),
  'hellaswag': _Set(_hellaswag, _HELD_OUT, 'label'),
  'openbookqa': _Set(_openbookqa, ('test',), 'answerKey'),
}
