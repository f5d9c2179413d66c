"""The record of the finetuning experiment: the paper's settings, its smoke."""

import json

import pytest

from experiments import assembly, config, errors, methods, tasks
from experiments.finetuning import weights
from experiments.models import llama
from tests import hugging_face

SPEC = 'configs/llama_finetune.py:'


@pytest.fixture(autouse=True)
def _known(monkeypatch):
  monkeypatch.setitem(tasks.TASKS, 'answers', 'experiments.answers')


@pytest.mark.parametrize('smoke', ['', 'smoke'])
def test_every_method_can_be_selected(smoke):
  fields = set(config.load('configs/gpt2_nano.py'))
  for method in methods.METHODS:
    experiment = config.load(SPEC + smoke, method=method)
    assembly.check(experiment)
    assert set(experiment) == fields


@pytest.mark.parametrize(
  'method, expected',
  [
    ('adamw', (2e-5, 0.9, 0.999, 0.0)),
    ('lion', (6e-6, 0.9, 0.99, 0.01)),
    ('distributed_lion_majority_vote', (6e-6, 0.9, 0.99, 0.01)),
    ('distributed_lion_sign_mean', (6e-6, 0.9, 0.99, 0.01)),
  ],
)
def test_settings_of_the_paper(method, expected):
  experiment = config.load(SPEC, method=method)
  found = experiment.optimizer
  names = 'learning_rate', 'b1', 'b2', 'weight_decay'
  assert tuple(found[name] for name in names) == expected
  assert experiment.workers * experiment.batch_size == 32
  assert experiment.workers == 4
  seen = experiment.num_steps * 32 / (0.95 * 52_002)
  assert seen == pytest.approx(3, abs=0.02)


def test_workers_share_the_batch():
  assert config.load(SPEC, workers=8).batch_size == 4
  with pytest.raises(errors.UserError, match='workers=5 cannot share 32'):
    config.load(SPEC, workers=5)


def test_the_model_is_the_one_of_the_weights(tmp_path):
  assert config.load(SPEC).model.num_layers == 32
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(hugging_face.LLAMA))
  experiment = config.load(f'{SPEC}model_path={tmp_path}')
  model = tasks.objective(
    config.load(f'{SPEC}model_path={tmp_path}', {'data.context': 12})
  ).model
  assert model == weights.decoder_config(
    tmp_path, dtype='bfloat16', scan_layers=True, rematerialise=True
  )
  with pytest.raises(errors.UserError, match='data.context=512 is above'):
    tasks.objective(experiment)


def test_smoke_is_tiny():
  experiment = config.load(f'{SPEC}smoke,sync_every=3')
  model = tasks.objective(experiment).model
  assert model == llama.size('tiny', scan_layers=True)
  assert experiment.num_steps == 12
