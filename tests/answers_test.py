"""The task of answers: what counts, where it begins, what does not fit."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import answers, config, errors, loop, tasks
from experiments.finetuning import instructions, vocabularies, weights
from experiments.models import decoder, llama
from tests import vocabularies_test

_OVERRIDES = {'model.num_layers': 1, 'batch_size': 2, 'eval_limit': 240}


def _load(overrides=(), **arguments):
  arguments = {'workers': 2, 'sync_every': 2} | arguments
  return config.load(
    'configs/llama_finetune.py:smoke',
    _OVERRIDES | dict(overrides),
    **arguments,
  )


CONFIG = _load()
ANSWERS = answers.objective(CONFIG)
PARAMS = jax.tree.map(
  lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(1), leaf.shape),
  ANSWERS.init(jax.random.key(0)),
)
EXAMPLES = [(f'{i} plus {i} is', f' {2 * i}') for i in range(0, 130, 10)]
ROWS = instructions.rows(EXAMPLES, vocabularies.get('bytes'), 24)


@pytest.fixture(autouse=True)
def _known(monkeypatch):
  monkeypatch.setitem(tasks.TASKS, 'answers', 'experiments.answers')


def _nats(prompt, answer):
  """Of each token of an answer, one text at a time, without filling."""
  ids = [0, *prompt.encode(), *answer.encode(), 0]
  logits = decoder.apply(ANSWERS.model, PARAMS, jnp.array([ids[:-1]]))
  logits = np.asarray(logits[0], np.float64)
  nats = np.log(np.exp(logits).sum(-1)) - logits[range(len(ids) - 1), ids[1:]]
  return nats[len(prompt) :]


def test_loss_is_the_mean_over_all_tokens_of_answers():
  batch = {'tokens': ROWS.tokens, 'mask': ROWS.mask}
  each = [_nats(*example) for example in EXAMPLES]
  assert len({nats.size for nats in each}) > 1
  found = ANSWERS.loss(PARAMS, batch, None)
  assert found == pytest.approx(np.concatenate(each).mean(), rel=1e-5)


def test_prompts_and_filling_have_no_gradient():
  batch = {'tokens': ROWS.tokens[:2], 'mask': ROWS.mask[:2] & False}
  gradient = jax.grad(ANSWERS.loss)(PARAMS, batch, None)
  assert not any(jnp.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize('targets', [24, 5 * 24, 4096])
def test_every_token_counts_once(targets, monkeypatch):
  monkeypatch.setattr(answers, '_BATCH_TARGETS', targets)
  found = answers.evaluator(ANSWERS, ROWS)(PARAMS)
  assert set(found) == {'validation_loss', 'validation_perplexity'}
  nats = np.concatenate([_nats(*example) for example in EXAMPLES])
  loss, perplexity = (found[f'validation_{n}'] for n in ('loss', 'perplexity'))
  assert loss.value == pytest.approx(nats.mean(), rel=1e-5)
  assert perplexity.value == pytest.approx(math.exp(nats.mean()), rel=1e-4)
  assert 0 < loss.error < loss.value


def test_devices_share_the_work_and_change_nothing():
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((8,), ('workers',), auto)
  alone, together = (
    answers.evaluator(ANSWERS, ROWS, None, where)(PARAMS)
    for where in (None, mesh)
  )
  for name, estimate in alone.items():
    assert together[name] == pytest.approx(estimate, rel=1e-6)


def test_some_examples_are_spread_over_all():
  found = answers.evaluator(ANSWERS, ROWS, 3 * 24)(PARAMS)
  nats = [_nats(*EXAMPLES[i]) for i in (0, 4, 8)]
  expected = np.concatenate(nats).mean()
  assert found['validation_loss'].value == pytest.approx(expected, rel=1e-5)


def test_batches_are_those_of_the_shards():
  task = answers.load(CONFIG, range(2))
  both = task.data.round(0, 3)
  shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), both)
  batch = ANSWERS.batch(2)
  assert shapes == {
    name: ((2, 3, *leaf.shape), leaf.dtype) for name, leaf in batch.items()
  }
  rows = [set(map(bytes, row.reshape(-1, 25))) for row in both['tokens']]
  assert not rows[0] & rows[1]
  second = answers.load(CONFIG, [1]).data.round(2, 1)
  for name, leaf in second.items():
    np.testing.assert_array_equal(leaf[0, 0], both[name][1, 2])
  assert task.data.epoch(10) > 0
  # Where the mask is, there is the answer.
  masks = both['mask'].reshape(-1, 24)
  for tokens, mask in zip(both['tokens'].reshape(-1, 25), masks, strict=True):
    answer = bytes(tokens.tolist()).partition(b' is')[2].rstrip(b'\0')
    assert bytes(tokens[1:][mask].tolist()) == answer + b'\0'


def test_begins_with_given_weights(tmp_path, capsys):
  model = dataclasses.replace(llama.size('tiny'), context=64)
  params = decoder.init(model, jax.random.key(3))
  weights.save(params, model, tmp_path)
  fields = {'data.path': 'sums', 'data.context': 24, 'data.tokenizer': 'bytes'}
  experiment = config.load(
    f'configs/llama_finetune.py:model_path={tmp_path}',
    fields | {'model.dtype': 'float32'},
  )
  task = answers.load(experiment, range(4))
  assert task.objective.model.scan_layers
  found = task.objective.init(jax.random.key(0))
  jax.tree.map(np.testing.assert_array_equal, decoder.unstack(found), params)
  assert 'at random' not in capsys.readouterr().out
  answers.load(CONFIG, range(2))
  assert 'the weights begin at random' in capsys.readouterr().out


def test_the_tokenizer_is_the_one_of_the_weights(tmp_path, capsys):
  model = llama.size('tiny', vocab_size=9)
  weights.save(decoder.init(model, jax.random.key(0)), model, tmp_path)
  end = json.loads((tmp_path / 'config.json').read_text())
  vocabularies_test.write(tmp_path)
  (tmp_path / 'config.json').write_text(json.dumps(end | {'eos_token_id': 1}))
  spec = f'configs/llama_finetune.py:path=sums,model_path={tmp_path}'
  task = answers.load(config.load(spec, {'data.context': 6}), range(4))
  batch = task.data.round(0, 1)
  # 'NUMBER plus NUMBER is NUMBER', of which 'is' is known: <s> ? ? ? is ? </s>
  assert batch['tokens'][0, 0, 0].tolist() == [0, 2, 2, 2, 4, 2, 1]
  assert batch['mask'][0, 0, 0].tolist() == [False] * 4 + [True] * 2
  answers.load(config.load(spec, {'data.context': 5}), range(4))
  said = capsys.readouterr().out
  assert 'answers are cut short, 0 examples are left out' in said


@pytest.mark.parametrize(
  'overrides, message',
  [
    ({'data.context': 33}, 'data.context=33 is above model.context=32'),
    ({'model.vocab_size': 99}, '256 ids, the model model.vocab_size=99'),
    ({'data.path': 'nowhere'}, "No file of instructions 'nowhere'"),
    ({'data.tokenizer': ''}, "No tokenizer ''"),
    ({'batch_size': 500}, 'too few for a batch of 500'),
  ],
)
def test_what_does_not_fit(overrides, message):
  with pytest.raises(errors.UserError, match=message):
    answers.load(_load(overrides), range(2))


def test_a_run_learns(tmp_path):
  experiment = _load({'num_steps': 40, 'optimizer.learning_rate': 3e-3})
  summary = loop.train(experiment, tmp_path)
  task = answers.load(experiment, [])
  start = task.evaluator(None, None)(task.objective.init(jax.random.key(0)))
  assert summary.validation_loss < start['validation_loss'].value - 1
  assert summary.unit == 'tokens'
  assert summary.seen == 40 * 2 * 2 * 24
  assert summary.source == 'sums'
