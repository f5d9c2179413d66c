"""Choices: scores against NumPy, known answers, shots, lack of room."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from experiments import errors
from experiments.finetuning import (
  multiple_choice,
  questions,
  vocabularies,
  weights,
)
from experiments.models import decoder, llama
from tests import hugging_face

BYTES = vocabularies.get('bytes')
MODEL = llama.size('tiny', context=64)
PARAMS = jax.tree.map(
  lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(1), leaf.shape),
  decoder.init(MODEL, jax.random.key(0)),
)


def _likes(letter):
  """Parameters that make one byte nearly certain, always."""
  # The stream is the token's embedding alone; all of them are equal.
  params = jax.tree.map(jnp.zeros_like, PARAMS)
  params['tokens']['embedding'] += 1.0
  params['norm']['scale'] += 1.0
  head = params['head']['embedding']
  params['head']['embedding'] = head.at[ord(letter)].set(1.0)
  return params


def _ask(params, asked, examples=(), shots=0, seed=0, model=MODEL):
  return multiple_choice.evaluate(
    model, params, BYTES, asked, examples, shots, seed
  )


def _question(prompt='Say:', choices=(' aaa', ' bbb'), answer=0):
  return questions.Question(prompt, choices, answer)


@pytest.mark.parametrize('letter, right', [('a', [1, 0]), ('b', [0, 1])])
def test_a_model_whose_answer_is_known(letter, right):
  found = [
    _ask(_likes(letter), [_question(answer=answer)]) for answer in (0, 1)
  ]
  assert [result.accuracy.value for result in found] == right
  assert [result.accuracy_per_byte.value for result in found] == right


def test_a_byte_of_a_long_answer_counts_less():
  # Of the long one more bytes are unlikely, but also more are likely.
  question = _question(choices=(' c', ' aaaaaaaacc'), answer=1)
  found = _ask(_likes('a'), [question])
  assert (found.accuracy.value, found.accuracy_per_byte.value) == (0, 1)


def test_a_score_is_the_one_of_numpy(tmp_path):
  fields = hugging_face.LLAMA | {'vocab_size': 128}
  fields |= {'max_position_embeddings': 64}
  tensors = hugging_face.tensors(fields)
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(fields))
  safetensors_numpy.save_file(tensors, folder / 'model.safetensors')
  model = weights.decoder_config(folder)
  params = weights.load(folder, model)
  requests, expected = [], []
  for prompt, answer in [('Question: why?', ' so'), ('Q' * 40, ' because')]:
    ids, start = BYTES.pair(prompt, answer)
    requests.append(multiple_choice.Request(ids, start))
    logits = hugging_face.logits(fields, tensors, ids)
    nats = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    expected.append(-sum(nats[i - 1, ids[i]] for i in range(start, ids.size)))
  found = multiple_choice.score(model, params, requests)
  np.testing.assert_allclose(found, expected, rtol=1e-4)
  # Whatever else is in the batch.
  alone = [multiple_choice.score(model, params, [r])[0] for r in requests]
  np.testing.assert_allclose(found, alone, rtol=1e-5)


def test_batches_change_nothing(monkeypatch):
  random = np.random.default_rng(0)
  requests = [
    multiple_choice.Request(random.integers(1, 200, n).astype(np.int32), n // 2)
    for n in (9, 20, 33, 34, 65, 12, 40)
  ]
  whole = multiple_choice.score(MODEL, PARAMS, requests)
  monkeypatch.setattr(multiple_choice, '_BATCH_TARGETS', 64)
  parts = multiple_choice.score(MODEL, PARAMS, requests)
  np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_few_programs(monkeypatch):
  shapes = set()
  score = multiple_choice._score

  def spy(model, params, tokens, mask):
    shapes.add(tokens.shape)
    return score(model, params, tokens, mask)

  monkeypatch.setattr(multiple_choice, '_score', spy)
  requests = [
    multiple_choice.Request(np.ones(n, np.int32), 1) for n in range(2, 66)
  ]
  multiple_choice.score(MODEL, PARAMS, requests)
  assert shapes == {(128, 33), (64, 65)}


@pytest.fixture
def prompts(monkeypatch):
  """The texts of all requests."""
  seen = []
  score = multiple_choice.score

  def spy(model, params, requests):
    seen.extend(bytes(r.ids.tolist()).decode() for r in requests)
    return score(model, params, requests)

  monkeypatch.setattr(multiple_choice, 'score', spy)
  return seen


EXAMPLES = [_question(f'{i}:', (f' {i}', ' x')) for i in range(9)]


def test_shots_are_right_and_drawn_by_the_seed(prompts):
  results = [
    _ask(PARAMS, [_question()] * 2, EXAMPLES, 2, seed) for seed in (0, 0, 5)
  ]
  assert results[0] == results[1]
  first, second, third = (prompts[i : i + 4] for i in (0, 4, 8))
  assert first == second != third
  assert first[:2] == first[2:]
  for text, choice in zip(first[:2], (' aaa', ' bbb'), strict=True):
    *shots, last = text.removeprefix('\0').split('\n\n')
    assert last == f'Say:{choice}'
    assert len({*shots}) == 2
    assert all(shot == f'{shot[0]}: {shot[0]}' for shot in shots)
  assert results[0].shots_dropped == results[0].cut == 0


def test_shots_without_room_are_dropped_and_counted(prompts):
  # 8 bytes each with what is between; one begins, and the last is no input.
  model = dataclasses.replace(MODEL, context=24)
  asked = [_question('Say it:'), _question('Say it louder:'), _question()]
  found = _ask(PARAMS, asked, EXAMPLES, 3, model=model)
  kept = [text.count('\n\n') for text in prompts[::2]]
  assert kept == [2, 1, 2]
  assert [text.count('\n\n') for text in prompts[1::2]] == kept
  assert (found.shots, found.shots_dropped, found.cut) == (3, 4, 0)
  assert prompts[0].endswith('Say it: aaa')
  # The last ones stay: what is nearest to the question.
  assert prompts[2].split('\n\n')[0] == '\0' + prompts[0].split('\n\n')[1]
  assert all(len(text) <= 25 for text in prompts)


def test_a_question_without_room_loses_its_beginning(prompts):
  model = dataclasses.replace(MODEL, context=8)
  asked = [_question('A very long story.'), _question()]
  found = _ask(PARAMS, asked, EXAMPLES, 1, model=model)
  assert (found.shots_dropped, found.cut) == (2, 1)
  assert prompts[0] == 'ory. aaa'[-9:].rjust(9, 't')
  assert prompts[2] == '\0Say: aaa'


def test_standard_errors():
  asked = [_question(answer=int(i < 3)) for i in range(12)]
  found = _ask(_likes('a'), asked).accuracy
  assert found.value == 0.75
  assert found.error == pytest.approx((0.75 * 0.25 / 11) ** 0.5)


def test_of_what_is_not_a_number_nothing_is_chosen():
  broken = jax.tree.map(lambda leaf: leaf * np.nan, PARAMS)
  assert _ask(broken, [_question()]).accuracy.value == 0


def test_user_errors():
  with pytest.raises(errors.UserError, match='shots=3 must be between 0 and 0'):
    _ask(PARAMS, [_question()], [], 3)
  with pytest.raises(errors.UserError, match='There are no questions'):
    _ask(PARAMS, [])
