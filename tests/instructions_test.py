"""Instructions: layouts of files, templates, and which targets are answers."""

import json

import numpy as np
import pytest

from experiments import errors
from experiments.data import documents
from experiments.finetuning import instructions, vocabularies

BYTES = vocabularies.get('bytes')


def _examples(count=60):
  return [
    {'prompt': f'{i}?', 'completion': f' it is {i}.'} for i in range(count)
  ]


def _write(path, objects):
  path.write_text(''.join(json.dumps(each) + '\n' for each in objects))
  return path


def test_pairs_as_they_are_split_by_checksum(tmp_path):
  path = _write(tmp_path / 'a.jsonl', _examples())
  found = instructions.load(path)
  assert len(found.train) + len(found.validation) == 60
  assert found.validation
  for part, held_out in [(found.train, False), (found.validation, True)]:
    for prompt, answer in part:
      assert documents.held_out(prompt) == held_out
      assert answer == f' it is {prompt[:-1]}.'
  # The order of the lines and other lines change nothing.
  more = [*reversed(_examples()), {'prompt': 'x', 'completion': 'y'}]
  again = instructions.load(_write(tmp_path / 'b.jsonl', more))
  assert set(found.validation) <= set(again.validation)
  assert found.sha256 != again.sha256


@pytest.mark.parametrize('a_list', [False, True])
def test_template_of_alpaca(a_list, tmp_path):
  objects = [
    {'instruction': f'Do {i}.', 'input': 'With {this}.', 'output': 'Done.'}
    for i in range(60)
  ] + [{'instruction': f'Go {i}.', 'output': 'Gone.'} for i in range(60)]
  path = tmp_path / 'a.json'
  if a_list:
    path.write_text(json.dumps(objects, indent=2))
  else:
    _write(path, objects)
  found = instructions.load(path)
  prompts = dict([*found.train, *found.validation])
  assert prompts == {
    **{
      'Below is an instruction that describes a task, paired with an input that'
      ' provides further context. Write a response that appropriately completes'
      f' the request.\n\n### Instruction:\nDo {i}.\n\n### Input:\nWith '
      '{this}.\n\n### Response:': 'Done.'
      for i in range(60)
    },
    **{
      'Below is an instruction that describes a task. Write a response that'
      ' appropriately completes the request.\n\n### Instruction:\n'
      f'Go {i}.\n\n### Response:': 'Gone.'
      for i in range(60)
    },
  }


def test_only_targets_of_the_answer_and_the_end_are_masked_in():
  rows = instructions.rows([('ab', 'cd')], BYTES, 8)
  assert rows.tokens.tolist() == [[0, 97, 98, 99, 100, 0, 0, 0, 0]]
  # Of the target at the same place, that is of the next token.
  assert rows.mask.tolist() == [[False, False, True, True, True] + 3 * [False]]
  assert (rows.cut, rows.left_out) == (0, 0)


def test_what_is_too_long_is_cut_or_left_out_and_counted():
  examples = [('a', 'bc'), ('abcd', 'ef'), ('abc', 'de'), ('abcde', 'f')]
  rows = instructions.rows(examples, BYTES, 4)
  # 'a' fits with the end; of 'abc' one token of the answer is left.
  assert rows.tokens.tolist() == [[0, 97, 98, 99, 0], [0, 97, 98, 99, 100]]
  assert rows.mask.tolist() == [
    [False, True, True, True],
    [False, False, False, True],
  ]
  assert (rows.cut, rows.left_out) == (1, 2)
  with pytest.raises(errors.UserError, match='All 2 prompts have 4 tokens or'):
    instructions.rows(examples[1::2], BYTES, 4)


def test_an_empty_answer_is_an_end():
  rows = instructions.rows([('ab', '')], BYTES, 4)
  assert rows.mask.tolist() == [[False, False, True, False]]


def test_made_up_sums_are_right():
  found = instructions.load('sums')
  assert len(found.train) + len(found.validation) == 900
  for prompt, answer in found.train:
    a, _, b, _ = prompt.split()
    assert int(answer) == int(a) + int(b)
  rows = instructions.rows(found.train, BYTES, 24)
  assert (rows.cut, rows.left_out) == (0, 0)
  assert np.all(rows.mask.any(-1))


@pytest.mark.parametrize(
  'text, message',
  [
    ('{"prompt": "a", "completion": "b"}\n{"x"', 'line 2 is not JSON'),
    ('{"prompt": "a", "answer": "b"}', 'it has: prompt, answer'),
    ('"text"', 'line 1 must have "instruction"'),
    ('{"prompt": "a", "completion": 3}', 'line 1: prompt and answer must be'),
    ('{"instruction": 1, "output": "b"}', 'instruction and input must be str'),
    ('[{"prompt": "a"}]', 'object 1 must have'),
    ('[1', 'is not JSON in UTF-8'),
    ('', 'None of the 0 examples'),
    ('{"prompt": "a", "completion": "b"}', 'None of the 1 examples'),
  ],
)
def test_wrong_files_are_told(text, message, tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(text)
  with pytest.raises(errors.UserError, match=message):
    instructions.load(path)


def test_a_missing_file():
  with pytest.raises(errors.UserError, match="No file of instructions 'a.b'"):
    instructions.load('a.b')
