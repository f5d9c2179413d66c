"""A comparison: runs, table, picture, and nothing done twice."""

import csv
import json

import pytest

from experiments import comparison, errors, loop, report
from tests import tiny

METHODS = ('adamw', 'lion')


def _load(method, seed):
  return tiny.load({'num_steps': 6, 'eval_every': 3}, method=method, seed=seed)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('comparison')
  comparison.run(_load, METHODS, [0, 1], folder)
  return folder


def test_runs_each_method_and_seed(folder):
  for method in METHODS:
    losses = {
      report.load(folder / method / f'seed_{seed}').validation_loss
      for seed in (0, 1)
    }
    assert len(losses) == 2


def test_the_table_has_means_and_spreads(folder):
  rows = list(
    csv.DictReader((folder / 'comparison.csv').read_text().splitlines())
  )
  assert {row['method'] for row in rows} == set(METHODS)
  losses = [float(row['validation_loss']) for row in rows]
  assert losses == sorted(losses)
  for row in rows:
    runs = [
      report.load(folder / row['method'] / f'seed_{seed}') for seed in (0, 1)
    ]
    a, b = (run.validation_loss for run in runs)
    assert float(row['validation_loss']) == pytest.approx((a + b) / 2)
    assert float(row['spread']) == pytest.approx(abs(a - b) / 2**0.5)
    assert float(row['bits_per_parameter']) == pytest.approx(6 * runs[0].bits)
    assert int(row['tokens']) == runs[0].tokens


def test_all_files_tell_the_same(folder):
  record = json.loads((folder / 'comparison.json').read_text())
  assert len(record['runs']) == 4
  assert all(run['versions'][0]['jax'] for run in record['runs'])
  rows = [comparison.Row(**row) for row in record['rows']]
  text = (folder / 'comparison.md').read_text()
  assert text == comparison.markdown(rows)
  assert all(f'| {method} | 2 |' in text for method in METHODS)
  picture = (folder / 'comparison.png').read_bytes()
  assert picture.startswith(b'\x89PNG')


def test_finished_runs_are_not_repeated(folder, monkeypatch):
  monkeypatch.setattr(loop, '_train', None)  # which would have to be called
  rows = comparison.run(_load, METHODS, [0, 1], folder)
  assert len(rows) == 2


def test_one_seed_has_no_spread(folder):
  rows = comparison.run(_load, METHODS[:1], [1], folder)
  assert rows[0].spread is None
  assert '±' not in comparison.markdown(rows)


def test_a_stopped_run_stops_all(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(loop, 'train', lambda *args: calls.append(args))
  assert comparison.run(_load, METHODS, [0], tmp_path) is None
  assert len(calls) == 1


def test_unequal_tokens_are_refused(folder, monkeypatch):
  def load(method, seed):
    return tiny.load({'num_steps': 3 * len(method)}, method=method, seed=seed)

  some = report.load(folder / 'adamw' / 'seed_0')

  def train(config, *_):
    return report.Summary(**vars(some) | {'tokens': config.num_steps})

  monkeypatch.setattr(loop, 'train', train)
  with pytest.raises(errors.UserError, match='different numbers of tokens'):
    comparison.run(load, METHODS, [0], folder)


def test_a_wrong_config_is_found_before_anything_is_trained(monkeypatch):
  def load(method, seed):
    return (
      _load(method, seed)
      if method == 'adamw'
      else tiny.load({'optimizer.warmup_steps': 10**6}, method=method)
    )

  monkeypatch.setattr(loop, 'train', None)
  with pytest.raises(errors.UserError, match='warmup_steps'):
    comparison.run(load, METHODS, [0], 'nowhere')
