"""Sets of questions: each layout that there is, and which file is meant."""

import json

import pytest

from experiments import errors
from experiments.finetuning import questions

ARC = {
  'question': {
    'stem': 'What falls?',
    'choices': [{'text': 'rain', 'label': 'A'}, {'text': 'sun', 'label': 'B'}],
  },
  'answerKey': 'A',
}
ARC_OF_HUGGING_FACE = {
  'question': 'What falls?',
  'choices': {'text': ['sun', 'rain'], 'label': ['1', '2']},
  'answerKey': '2',
}
BOOLQ = {'passage': 'Rain falls.', 'question': 'does rain fall'}
PIQA = {'goal': 'Stay dry', 'sol1': 'umbrella', 'sol2': 'soup'}
SIQA = {
  'context': 'It rained.',
  'question': 'What did Jo get?',
  'answerA': 'dry',
  'answerB': 'wet',
  'answerC': 'old',
}
HELLASWAG = {
  'activity_label': 'Walking',
  'ctx_a': 'It rains [now].',
  'ctx_b': 'he Takes',
  'ctx': 'It rains [now]. he Takes',
  'endings': ['an umbrella.', 'the [x] sun  [title] Sun'],
}
OPENBOOKQA = {'id': '7', **ARC}
OPENBOOKQA_OF_HUGGING_FACE = {
  'question_stem': 'What falls?',
  'choices': {'text': ['rain', 'sun'], 'label': ['A', 'B']},
  'answerKey': 'A ',
}
FALLS = 'Question: What falls?\nAnswer:'
LINES = [
  ('arc_easy', ARC, (FALLS, (' rain', ' sun'), 0)),
  ('arc_challenge', ARC_OF_HUGGING_FACE, (FALLS, (' sun', ' rain'), 1)),
  (
    'boolq',
    BOOLQ | {'answer': True},
    (
      'Rain falls.\nQuestion: does rain fall?\nAnswer:',
      (' no', ' yes'),
      1,
    ),
  ),
  (
    'piqa',
    PIQA | {'label': 1},
    ('Question: Stay dry\nAnswer:', (' umbrella', ' soup'), 1),
  ),
  (
    'siqa',
    SIQA | {'label': '2\n'},
    ('Q: It rained. What did Jo get?\nA:', (' dry', ' wet', ' old'), 1),
  ),
  (
    'hellaswag',
    HELLASWAG | {'label': '0'},
    (
      'Walking: It rains . He takes',
      (' an umbrella.', ' the sun . Sun'),
      0,
    ),
  ),
  (
    'hellaswag',
    {k: v for k, v in HELLASWAG.items() if 'ctx_' not in k} | {'label': 1},
    ('Walking: It rains . he Takes', (' an umbrella.', ' the sun . Sun'), 1),
  ),
  ('openbookqa', OPENBOOKQA, ('What falls?', (' rain', ' sun'), 0)),
  (
    'openbookqa',
    OPENBOOKQA_OF_HUGGING_FACE,
    ('What falls?', (' rain', ' sun'), 0),
  ),
]
# As published.
FILES = {
  'arc_easy': ('ARC-Easy-Train.jsonl', 'ARC-Easy-Test.jsonl'),
  'arc_challenge': ('train.jsonl', 'test.jsonl'),
  'boolq': ('train.jsonl', 'dev.jsonl'),
  'piqa': ('train.jsonl', 'valid.jsonl'),
  'siqa': ('train.jsonl', 'dev.jsonl'),
  'hellaswag': ('hellaswag_train.jsonl', 'hellaswag_val.jsonl'),
  'openbookqa': ('train.jsonl', 'test.jsonl'),
}
# Without labels, or another split.
OTHER = {
  'arc_easy': 'ARC-Easy-Dev.jsonl',
  'arc_challenge': 'validation.jsonl',
  'boolq': 'test.jsonl',
  'piqa': 'tests.jsonl',
  'siqa': 'test.jsonl',
  'hellaswag': 'hellaswag_test.jsonl',
  'openbookqa': 'dev.jsonl',
}


def write(path, lines):
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))


@pytest.mark.parametrize('name, line, expected', LINES)
def test_every_layout(name, line, expected, tmp_path):
  train, evaluated = FILES[name]
  write(tmp_path / train, [line] * 3)
  write(tmp_path / evaluated, [line] * 2)
  # Not to be taken for them.
  write(tmp_path / OTHER[name], [{}])
  asked, examples = questions.load(name, tmp_path)
  assert asked == [expected] * 2
  assert examples == [expected] * 3
  assert questions.load(name, tmp_path / evaluated) == (asked, examples)


@pytest.mark.parametrize(
  'name, line, labels, answers',
  [('piqa', PIQA, '1\n0\n', [1, 0]), ('siqa', SIQA, '3\n1\n', [2, 0])],
)
def test_labels_in_a_file_of_their_own(name, line, labels, answers, tmp_path):
  for file in FILES[name]:
    write(tmp_path / file, [line] * 2)
    (tmp_path / file.replace('.jsonl', '-labels.lst')).write_text(labels)
  for part in questions.load(name, tmp_path):
    assert [question.answer for question in part] == answers
  (tmp_path / 'train-labels.lst').write_text('1\n')
  with pytest.raises(errors.UserError, match='has 1 labels for 2 questions'):
    questions.load(name, tmp_path)


@pytest.mark.parametrize(
  'name, line, message',
  [
    ('piqa', PIQA, 'question 1 is not of its format.*label'),
    ('piqa', PIQA | {'label': 2}, 'there is no choice 2'),
    ('siqa', SIQA | {'label': 0}, 'there is no choice 0'),
    ('boolq', BOOLQ | {'answer': 'yes'}, 'neither true nor false'),
    ('arc_easy', ARC | {'answerKey': 'C'}, 'question 1 is not of its format'),
    (
      'arc_easy',
      {k: v for k, v in ARC_OF_HUGGING_FACE.items() if k != 'question'},
      'None is not a text',
    ),
    ('piqa', PIQA | {'goal': None, 'label': 0}, 'None is not a text'),
    ('piqa', PIQA | {'sol1': 3, 'label': 0}, '3 is not a text'),
    ('piqa', PIQA | {'label': 0.9}, 'not a whole number'),
    (
      'arc_easy',
      ARC_OF_HUGGING_FACE | {'choices': {'text': ['sun'], 'label': ['1', '2']}},
      '2 labels for 1 choices',
    ),
  ],
)
def test_wrong_lines_are_told(name, line, message, tmp_path):
  for file in FILES[name]:
    write(tmp_path / file, [line])
  with pytest.raises(errors.UserError, match=message):
    questions.load(name, tmp_path)


def test_files_that_are_not_there(tmp_path):
  with pytest.raises(errors.UserError, match='nearest is .piqa'):
    questions.load('pika', tmp_path)
  with pytest.raises(errors.UserError, match='no file or folder'):
    questions.load('piqa', tmp_path / 'x')
  line = PIQA | {'label': 0}
  write(tmp_path / 'valid.jsonl', [line])
  with pytest.raises(errors.UserError, match='with train in its name'):
    questions.load('piqa', tmp_path)
  write(tmp_path / 'train.jsonl', [line])
  write(tmp_path / 'dev.jsonl', [line])
  with pytest.raises(errors.UserError, match='one .jsonl file with valid or'):
    questions.load('piqa', tmp_path)
  write(tmp_path / 'train.jsonl', [])
  with pytest.raises(errors.UserError, match='has no questions'):
    questions.load('piqa', tmp_path / 'dev.jsonl')
