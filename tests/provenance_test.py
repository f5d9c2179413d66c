"""The record of a run: config and versions."""

import json

import jax
import pytest

from experiments import config, errors, provenance
from tests import tiny


def test_writes_config_and_versions(tmp_path):
  folder = tmp_path / 'a' / 'b'
  provenance.record(tiny.load(seed=3), folder)
  assert config.read(folder / 'config.json') == tiny.load(seed=3)
  (call,) = json.loads((folder / 'versions.json').read_text())
  assert call['jax'] == jax.__version__
  assert call['seed'] == 3
  assert call['device'] == jax.devices()[0].device_kind
  assert call['commit']


def test_the_same_call_is_recorded_once_and_another_one_too(
  tmp_path, monkeypatch
):
  provenance.record(tiny.load(), tmp_path)
  provenance.record(tiny.load(), tmp_path)
  monkeypatch.setattr(provenance, 'versions', lambda: {'jax': '9'})
  provenance.record(tiny.load(), tmp_path)
  calls = json.loads((tmp_path / 'versions.json').read_text())
  assert [call['jax'] for call in calls] == [jax.__version__, '9']


def test_names_every_field_that_differs(tmp_path):
  provenance.record(tiny.load(method='slowmo'), tmp_path)
  with pytest.raises(errors.UserError) as caught:
    provenance.record(tiny.load({'model.width': 16}, method='adamw'), tmp_path)
  message = str(caught.value)
  assert "method is 'adamw', was 'slowmo'" in message
  assert 'model.width is 16, was 8' in message
  assert 'optimizer.outer_momentum is absent, was 0.5' in message
  assert 'model.num_heads' not in message
