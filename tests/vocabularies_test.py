"""Vocabularies: ids of prompts and answers, and where the answer begins."""

import json

import numpy as np
import pytest
import tokenizers as hugging_face

from experiments import errors
from experiments.finetuning import vocabularies

WORDS = ['<s>', '</s>', '<unk>', 'what', 'is', 'it', 'this', '?', 'thisit']


def write(folder, begin=True):
  """Writes a tokenizer of words, as trained weights have one."""
  words = {word: i for i, word in enumerate(WORDS)}
  model = hugging_face.models.WordLevel(words, unk_token='<unk>')
  tokenizer = hugging_face.Tokenizer(model)
  tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.Whitespace()
  if begin:
    tokenizer.post_processor = hugging_face.processors.TemplateProcessing(
      single='<s> $A', special_tokens=[('<s>', 0)]
    )
  tokenizer.add_special_tokens(['<s>', '</s>', '<unk>'])
  # Left by a training; texts are cut and filled elsewhere.
  tokenizer.enable_truncation(2)
  tokenizer.enable_padding(length=9)
  tokenizer.save(str(folder / 'tokenizer.json'))
  (folder / 'config.json').write_text(json.dumps({'eos_token_id': 1}))


def test_of_given_weights(tmp_path):
  write(tmp_path)
  vocabulary = vocabularies.get(str(tmp_path))
  assert (vocabulary.size, vocabulary.begin, vocabulary.end) == (9, (0,), 1)
  assert vocabulary.encode('what is it ?').tolist() == [3, 4, 5, 7]
  ids, start = vocabulary.pair('what is it ?', ' this')
  assert ids.tolist() == [0, 3, 4, 5, 7, 6]
  assert start == 5
  by_file = vocabularies.get(str(tmp_path / 'tokenizer.json'))
  assert by_file.begin == vocabulary.begin


def test_some_put_nothing_before_a_text(tmp_path):
  write(tmp_path, begin=False)
  vocabulary = vocabularies.get(str(tmp_path))
  assert vocabulary.begin == ()
  ids, start = vocabulary.pair('what', ' is')
  assert (ids.tolist(), start) == ([3, 4], 1)


def test_a_token_of_both_belongs_to_the_answer(tmp_path):
  write(tmp_path)
  vocabulary = vocabularies.get(str(tmp_path))
  ids, start = vocabulary.pair('what is this', 'it')
  assert ids.tolist() == [0, 3, 4, 8]
  assert start == 3


def test_what_spells_out_an_end_is_text(tmp_path):
  write(tmp_path)
  vocabulary = vocabularies.get(str(tmp_path))
  assert 1 not in vocabulary.encode('what </s> is <s>')
  assert 0 not in vocabulary.encode('what </s> is <s>')


def test_our_own():
  vocabulary = vocabularies.get('bytes')
  assert (vocabulary.size, vocabulary.begin, vocabulary.end) == (256, (0,), 0)
  ids, start = vocabulary.pair('ab', ' c')
  assert ids.dtype == np.int32
  assert (ids.tolist(), start) == ([0, 97, 98, 32, 99], 3)


def test_the_end_may_be_one_of_several(tmp_path):
  write(tmp_path)
  (tmp_path / 'config.json').write_text(json.dumps({'eos_token_id': [7, 1]}))
  assert vocabularies.get(str(tmp_path)).end == 7


def test_user_errors(tmp_path):
  for name in ('', str(tmp_path), 'byte'):
    with pytest.raises(errors.UserError, match='There are: bytes, gpt2, and'):
      vocabularies.get(name)
  write(tmp_path)
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(errors.UserError, match='must have "eos_token_id"'):
    vocabularies.get(str(tmp_path))
  (tmp_path / 'tokenizer.json').write_text('{}')
  with pytest.raises(errors.UserError, match='is not a tokenizer'):
    vocabularies.get(str(tmp_path))
