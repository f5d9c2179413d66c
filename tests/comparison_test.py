"""The tables of a sweep, and its JSON."""

import json
import math

import pytest

from experiments import comparison, outcomes
from tests import fake_runs

MAIN = fake_runs.study(tuned=True, seeds=(0, 1))
OTHER = fake_runs.study(
  'other', 'sync_every=3,workers=8', {'presence': 0.75}, rates_of='main'
)
HARD = fake_runs.study('hard', overrides={'adversaries': 1}, rates_of='main')


def _loss(run):
  """Losses that are the lower, the nearer the rate to adamw's preset."""
  return 2.0 + abs(math.log2(run.rate / 0.002)) + 0.25 * run.seed


@pytest.fixture(scope='module')
def results(tmp_path_factory):
  folder = tmp_path_factory.mktemp('comparison')
  results = outcomes.Results([MAIN, OTHER, HARD], folder)
  fake_runs.finish_all(results, _loss, bits=3.0)
  comparison.write(results)
  return results


def test_rows_have_means_and_spreads(results):
  adamw, lion = comparison.rows(results, MAIN)
  assert adamw == comparison.Row(
    method='adamw',
    rate=0.002,
    settled=True,
    at_edge=False,
    seeds=2,
    diverged=0,
    measures={
      'validation_loss': 2.125,
      'validation_bits_per_byte': pytest.approx(1.4 * 2.125),
    },
    spreads={
      'validation_loss': pytest.approx(0.25 / 2**0.5),
      'validation_bits_per_byte': pytest.approx(1.4 * 0.25 / 2**0.5),
    },
    bits_per_parameter_and_step=3.0,
    bits_per_parameter=18.0,
    seconds=60.0,
  )
  # 0.0003 * 2**3 is nearest to 0.002; the grid goes one further.
  assert lion.method == 'lion'
  assert lion.rate == 0.0024
  assert not lion.at_edge


def test_one_seed_has_no_spread(results):
  row, _ = comparison.rows(results, OTHER)
  assert row.seeds == 1
  assert row.spreads == {}
  assert row.error_spread == 0.0


def test_the_table(results):
  text = comparison.markdown(results)
  assert (
    '| adamw | 2 | 2.1250 ± 0.1768 | 2.9750 ± 0.2475 | 0.002 | 3.000 | 18'
    in (text)
  )
  assert '| adamw | 1 | 2.0000 | 2.8000 | 0.002 |' in text
  assert '### main\n\n4 workers, 3 local steps a round, 6 steps, 384' in text
  assert '8 workers, 3 local steps a round, 6 steps, 768 tokens, each' in text
  assert 'present with probability 0.75, rates of the study main.' in text
  assert 'adversaries among the workers: 1' in text
  assert 'diverged' not in text
  assert 'edge' not in text


def test_all_files_tell_the_same(results):
  text = (results.workdir / 'results.md').read_text()
  assert text == comparison.markdown(results)
  record = json.loads((results.workdir / 'results.json').read_text())
  main, other, _ = record['studies']
  assert main['name'] == 'main'
  assert main['seeds'] == [0, 1]
  assert other['setting']['workers'] == 8
  rows = [comparison.Row(**row) for row in main['rows']]
  assert rows == comparison.rows(results, MAIN)
  # adamw: a grid of 3 and a seed; lion: a grid of 6 and a seed.
  assert len(main['runs']) == 11
  assert len(other['runs']) == 2
  for run in main['runs']:
    assert run['summary']['seed'] == run['seed'] == run['versions'][0]['seed']
    assert run['diverged'] is None


def _write(tmp_path, loss, **fields):
  study = fake_runs.study(**{'tuned': True, 'seeds': (0, 1)} | fields)
  results = outcomes.Results([study], tmp_path)
  fake_runs.finish_all(results, loss)
  comparison.write(results)
  return comparison.rows(results, study), comparison.markdown(results)


def test_what_diverges_is_last_and_shown(tmp_path):
  def loss(run):
    bad = run.method == 'adamw' and (run.seed or run.rate > 0.002)
    return fake_runs.DIVERGED if bad else _loss(run)

  (lion, adamw), text = _write(tmp_path, loss)
  assert (lion.method, lion.diverged) == ('lion', 0)
  assert (adamw.seeds, adamw.diverged) == (2, 1)
  assert adamw.error_rate == 2.0  # of the other seed
  assert '1 of 2 diverged |' in text
  record = json.loads((tmp_path / 'results.json').read_text())
  ends = [
    run['diverged']
    for run in record['studies'][0]['runs']
    if run['summary'] is None
  ]
  assert ends == ['It is nan.', 'It is nan.']


def test_a_method_that_always_diverges(tmp_path):
  def loss(run):
    return _loss(run) if run.method == 'lion' else fake_runs.DIVERGED

  (_, adamw), text = _write(tmp_path, loss)
  assert adamw.error_rate is None
  assert '| adamw | 2 | diverged | diverged | 0.000125 | – | – | – |' in text
  assert '2 of 2 diverged, best rate at the edge of the grid |' in text


def test_the_edge_of_the_grid_is_told(tmp_path):
  _, text = _write(tmp_path, lambda run: run.rate, methods=('adamw',))
  assert '| 0.000125 | 4.000 | 24 | 60 | best rate at the edge' in text


def test_without_any_run_nothing_is_written(tmp_path):
  results = outcomes.Results([MAIN], tmp_path / 'new')
  comparison.write(results)
  assert not results.workdir.exists()
  results.workdir.mkdir()
  (results.workdir / 'results.md').write_text('of an earlier one')
  comparison.write(results)
  assert [path.read_text() for path in results.workdir.iterdir()] == [
    'of an earlier one'
  ]


def test_unfinished_tuning_is_told(tmp_path):
  study = fake_runs.study(tuned=True)
  results = outcomes.Results([study], tmp_path)
  run = results.next([('main', 'lion')])[0]
  fake_runs.finish(results.config(run), results.folder(run), 2.0)
  (row,) = comparison.rows(results, study)
  assert not row.settled
  assert 'tuning not finished' in comparison.markdown(results)
