r"""Instructions and answers, as rows of tokens to train on.

A line of a file is a JSON object, in one of two layouts:

    {"instruction": ..., "input": ..., "output": ...}   Alpaca's; input optional
    {"prompt": ..., "completion": ...}                  as they are

or the file is a single JSON list of such objects, as Alpaca's is. `sums` in the
place of a path are sums of small numbers, made up for trials.

The first layout becomes a prompt by the template of Alpaca (Taori et al., 2023,
https://github.com/tatsu-lab/stanford_alpaca); the answer follows directly:

    Below is an instruction that describes a task, paired with an input that
    provides further context. Write a response that appropriately completes the
    request.\n\n### Instruction:\n...\n\n### Input:\n...\n\n### Response:

where line breaks within the first paragraph are spaces; without an input it is
"... describes a task. Write a response ...", and there is no `### Input`.
"""

from collections.abc import Iterator, Sequence
import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from experiments import errors
from experiments.data import documents
from experiments.finetuning import vocabularies

MADE_UP = 'sums'

_WITH_INPUT = (
  'Below is an instruction that describes a task, paired with an input that'
  ' provides further context. Write a response that appropriately completes'
  ' the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}'
  '\n\n### Response:'
)
_WITHOUT_INPUT = (
  'Below is an instruction that describes a task. Write a response that'
  ' appropriately completes the request.\n\n### Instruction:\n{instruction}'
  '\n\n### Response:'
)


class Example(NamedTuple):
  """A prompt, and what should follow it."""

  prompt: str
  answer: str


class Rows(NamedTuple):
  """Examples as tokens, each in a row of `context` targets.

  Attributes:
    tokens: int32 `[examples, context + 1]`; filled up with ends of text.
    mask: bool `[examples, context]`: which targets are of the answer, the end
      of the text included.
    cut: how many answers miss their end for want of room.
    left_out: how many examples are not there, since nothing of the answer had
      room.
  """

  tokens: np.ndarray
  mask: np.ndarray
  cut: int
  left_out: int


class Instructions(NamedTuple):
  """The examples of a source.

  Attributes:
    train: to learn from.
    validation: about 5 %, chosen by the checksums of their prompts.
    name: of the source.
    sha256: of the file.
  """

  train: Sequence[Example]
  validation: Sequence[Example]
  name: str
  sha256: str


def load(path: str | os.PathLike) -> Instructions:
  """Reads the examples of a source.

  Args:
    path: of a file, or 'sums'.

  Raises:
    UserError: if the file is missing or not of the format (the message has the
      line), or if it has nothing to learn from, or to hold out.
  """
  if str(path) == MADE_UP:
    data = ''.join(json.dumps(each) + '\n' for each in _sums()).encode()
  else:
    if not pathlib.Path(path).is_file():
      raise errors.UserError(
        f'No file of instructions {str(path)!r}. Give JSON lines, or'
        f' {MADE_UP!r} for a trial.'
      )
    data = pathlib.Path(path).read_bytes()
  examples = [_example(where, fields) for where, fields in _objects(path, data)]
  parts = {False: [], True: []}
  for example in examples:
    # By the prompt: of several answers to it none is in the other part.
    parts[documents.held_out(example.prompt)].append(example)
  for name, part in [
    ('to learn from', parts[False]),
    ('held out', parts[True]),
  ]:
    if not part:
      raise errors.UserError(
        f'None of the {len(examples)} examples of {path} is {name}: about one'
        ' in 20 is held out, chosen by checksums. Use more data.'
      )
  return Instructions(
    parts[False], parts[True], str(path), hashlib.sha256(data).hexdigest()
  )


def rows(
  examples: Sequence[Example],
  vocabulary: vocabularies.Vocabulary,
  context: int,
) -> Rows:
  """Returns examples as tokens, in their order.

  Args:
    examples: the examples.
    vocabulary: of the tokens.
    context: targets in a row; what is longer loses its end.

  Raises:
    UserError: if no answer has room for even one token.
  """
  tokens = np.full((len(examples), context + 1), vocabulary.end, np.int32)
  mask = np.zeros((len(examples), context), bool)
  cut = count = 0
  for prompt, answer in examples:
    ids, start = vocabulary.pair(prompt, answer)
    ids = np.append(ids, vocabulary.end)
    # Without anything before it, the first token is no target.
    start = max(1, start)
    if start > context:
      continue
    cut += ids.size > context + 1
    ids = ids[: context + 1]
    tokens[count, : ids.size] = ids
    mask[count, start - 1 : ids.size - 1] = True
    count += 1
  if examples and not count:
    raise errors.UserError(
      f'All {len(examples)} prompts have {context} tokens or more, which leaves'
      ' no room for an answer: use a larger context.'
    )
  return Rows(tokens[:count], mask[:count], cut, len(examples) - count)


def _objects(path: Any, data: bytes) -> Iterator[tuple[str, Any]]:
  """Yields every object, and where it is."""
  try:
    text = data.decode()
    if text.lstrip().startswith('['):
      for number, fields in enumerate(json.loads(text), 1):
        yield f'{path}, object {number}', fields
      return
  except ValueError as error:
    raise errors.UserError(f'{path} is not JSON in UTF-8: {error}.') from error
  # Not by `splitlines`: JSON may have other separators of lines within texts.
  for number, line in enumerate(text.split('\n'), 1):
    if line.strip():
      try:
        yield f'{path}, line {number}', json.loads(line)
      except ValueError as error:
        raise errors.UserError(
          f'{path}, line {number} is not JSON: {error}.'
        ) from error


def _example(where: str, fields: Any) -> Example:
  fields = fields if isinstance(fields, dict) else {}
  # Data sets of Alpaca's kind have an empty input, or none.
  given = {'input': '', **fields}
  if {'prompt', 'completion'} <= set(fields):
    example = Example(fields['prompt'], fields['completion'])
  elif {'instruction', 'output'} <= set(fields):
    template = _WITH_INPUT if given['input'] else _WITHOUT_INPUT
    if not all(isinstance(given[k], str) for k in ('instruction', 'input')):
      raise errors.UserError(f'{where}: instruction and input must be strings.')
    example = Example(template.format(**given), fields['output'])
  else:
    raise errors.UserError(
      f'{where} must have "instruction" and "output", or "prompt" and'
      f' "completion"; it has: {", ".join(fields) or "none"}.'
    )
  if not all(isinstance(text, str) for text in example):
    raise errors.UserError(f'{where}: prompt and answer must be strings.')
  try:
    '\0'.join(example).encode()
  except UnicodeEncodeError as error:  # half of a pair, in JSON's escapes
    raise errors.UserError(f'{where} is not text: {error}.') from error
  return example


def _sums() -> Iterator[dict[str, str]]:
  for a in range(30):
    for b in range(30):
      yield {'prompt': f'{a} plus {b} is', 'completion': f' {a + b}'}
