"""From weights or a run to a table of choices, and to weights again."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import experiments
from experiments import config, errors, loop, tasks
from experiments.finetuning import choices, trained, vocabularies, weights
from experiments.models import decoder, llama
from tests import hugging_face, questions_test, vocabularies_test

ROOT = pathlib.Path(experiments.__file__).parent.parent


def _piqa(folder):
  folder.mkdir()
  line = {'goal': 'Say', 'sol1': 'aaa', 'sol2': 'bbb', 'label': 0}
  for file in questions_test.FILES['piqa']:
    questions_test.write(folder / file, [line] * 4)
  return str(folder)


def _with_weights(folder):
  """Writes a tiny model with its tokenizer, and returns it."""
  model = llama.size('tiny', vocab_size=9)
  params = decoder.init(model, jax.random.key(0))
  weights.save(params, model, folder)
  fields = json.loads((folder / 'config.json').read_text())
  vocabularies_test.write(folder)
  fields['eos_token_id'] = 1
  (folder / 'config.json').write_text(json.dumps(fields))
  return model


def test_of_weights(tmp_path, capsys):
  _with_weights(tmp_path / 'weights')
  output = tmp_path / 'choices.json'
  paths = {'piqa': _piqa(tmp_path / 'piqa')}
  model = choices.of_weights(tmp_path / 'weights', 'float32')
  result = choices.ask(model, paths, 1, 0, 3, output)['piqa']
  assert (result.questions, result.shots) == (3, 1)
  record = json.loads(output.read_text())
  found = record['results']['piqa']
  assert found['accuracy'] == list(result.accuracy)
  assert record['versions']['jax'] == jax.__version__
  header, row = capsys.readouterr().out.splitlines()
  assert len(header) == len(row)
  assert row.startswith('piqa ')
  assert f'{100 * result.accuracy.value:.2f} ±' in row


def test_of_a_run_and_of_its_export(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(tasks.TASKS, 'answers', 'experiments.answers')
  begin = tmp_path / 'begin'
  model = _with_weights(begin)
  overrides = {
    'num_steps': 2,
    'log_every': 1,
    'eval_every': 2,
    'checkpoint_every': 2,
    'data.context': 7,
    'model.dtype': 'float32',
    'eval_limit': 48,
    'optimizer.warmup_steps': 0,
    'optimizer.learning_rate': 1e-3,
  }
  spec = f'configs/llama_finetune.py:path=sums,model_path={begin}'
  experiment = config.load(spec, overrides, workers=2, sync_every=1)
  loop.train(experiment, tmp_path / 'run')
  asked = choices.of_run(tmp_path / 'run')
  capsys.readouterr()
  paths = {'piqa': _piqa(tmp_path / 'piqa')}
  found = choices.ask(asked, paths, 3, 0, None, tmp_path / 'choices.json')
  # 'Question', ':', 'Say', 'Answer', ':' and 'aaa': 3 shots have room.
  assert found['piqa'].shots_dropped == 0
  trained.export(tmp_path / 'run', tmp_path / 'exported')
  again = choices.of_weights(tmp_path / 'exported', 'float32')
  expected = dataclasses.replace(asked.model, rematerialise=False)
  assert again.model == expected
  assert choices.ask(again, paths, 3, 0, None, tmp_path / 'c.json') == found
  start = decoder.stack(weights.load(begin, model))
  moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), again.params, start)
  assert 0 < max(jax.tree.leaves(moved)) <= 2.1e-3
  _export_without_what_it_began_with(tmp_path, begin, monkeypatch)


def _export_without_what_it_began_with(folder, begin, monkeypatch):
  """The weights that a run began with are somewhere else when it is over."""
  elsewhere = begin.rename(folder / 'elsewhere')
  with monkeypatch.context() as patch:
    patch.setattr(trained, 'load', None)  # which would have to be called
    with pytest.raises(errors.UserError, match=f'{begin}, .*--model_path=DIR'):
      trained.export(folder / 'run', folder / 'new')
    other = folder / 'other'
    other.mkdir()
    (other / 'config.json').write_text(json.dumps(hugging_face.LLAMA))
    with pytest.raises(errors.UserError, match='not the one of'):
      trained.export(folder / 'run', folder / 'new', other)
  assert not (folder / 'new').exists()
  experiment = config.read(folder / 'run' / 'config.json')
  with pytest.raises(errors.UserError, match=f'{begin}, which is not there'):
    trained.tokenizer(experiment)
  trained.export(folder / 'run', folder / 'new', elsewhere)
  same = (folder / 'exported').iterdir()
  assert {p.name: p.read_bytes() for p in (folder / 'new').iterdir()} == {
    p.name: p.read_bytes() for p in same
  }
  trained.export(folder / 'run', folder / 'without', '')
  assert not (folder / 'without' / 'tokenizer.json').exists()


def test_what_has_no_room_is_said(tmp_path, capsys):
  model = llama.size('tiny', context=40)
  params = decoder.init(model, jax.random.key(0))
  vocabulary = vocabularies.get('bytes')
  asked = choices.Model(model, params, vocabulary, 'mine')
  paths = {'piqa': _piqa(tmp_path / 'piqa')}
  choices.ask(asked, paths, 3, 0, None, tmp_path / 'choices.json')
  # 24 bytes for a question, so none of the shots has room.
  said = 'context 40 had no room for 12 of 12 examples'
  assert said in capsys.readouterr().out


@pytest.mark.parametrize(
  'words, message',
  [
    ([], "--task has '': give NAME:PATH"),
    (['piqa'], "--task has 'piqa': give NAME:PATH"),
    (['piqa:a,piqa:b'], "'piqa:b'.*each name once"),
  ],
)
def test_mistakes_in_sets(words, message):
  with pytest.raises(errors.UserError, match=message):
    choices.sets(words)


def test_sets():
  words = ['piqa:a/b,boolq:c', 'siqa:d']
  assert choices.sets(words) == {'piqa': 'a/b', 'boolq': 'c', 'siqa': 'd'}


def test_models_without_text_are_refused(tmp_path):
  config.save(config.load('configs/vit_mnist.py'), tmp_path / 'config.json')
  with pytest.raises(errors.UserError, match="is 'vision': its model has no"):
    trained.load(tmp_path)


def test_command():
  command = [sys.executable, '-m', 'experiments.choose', '--task=piqa:nowhere']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 1
  assert done.stderr == 'error: Give either --weights or --workdir.\n'
