"""What is known of runs, and which are next."""

import pytest

from experiments import errors, outcomes, report, settings
from tests import fake_runs

# Preset rates: 2e-3 for adamw, 3e-4 for lion.
MAIN = fake_runs.study(tuned=True, seeds=(5, 6, 7))
OTHER = fake_runs.study('other', 'sync_every=6', rates_of='main', seeds=(0, 1))
ALL = [('main', 'adamw'), ('main', 'lion'), ('other', 'adamw')]


@pytest.fixture
def results(tmp_path):
  return outcomes.Results([MAIN, OTHER], tmp_path)


def _finish(results, run, loss=2.0):
  fake_runs.finish(results.config(run), results.folder(run), loss)


def _next(results, chosen):
  return [str(run) for run in results.next(chosen)]


def test_nothing_is_known_of_what_has_not_begun_or_ended(results):
  run = settings.Run('main', 'adamw', 0.002, 5)
  assert results.outcome(run) is None
  results.folder(run).mkdir(parents=True)
  (results.folder(run) / 'metrics.jsonl').touch()
  assert results.outcome(run) is None


def test_a_summary_is_an_outcome(results):
  run = settings.Run('main', 'adamw', 0.002, 5)
  _finish(results, run, 2.25)
  outcome = results.outcome(run)
  assert outcome.error_rate == outcome.summary.validation_loss == 2.25
  assert outcome.diverged is None
  assert results.known() == [outcome]


@pytest.mark.parametrize('recorded', [True, False])
def test_divergence_is_an_outcome(recorded, results):
  run = settings.Run('main', 'adamw', 0.002, 5)
  _finish(results, run, fake_runs.DIVERGED if recorded else float('nan'))
  outcome = results.outcome(run)
  assert outcome.error_rate == float('inf')
  assert outcome.summary is None
  assert 'nan' in outcome.diverged


def test_an_outcome_needs_the_config_of_its_run(results):
  run = settings.Run('main', 'adamw', 0.002, 5)
  other = run._replace(rate=0.004)
  fake_runs.finish(results.config(other), results.folder(run), 2.0)
  before = report.load(results.folder(run))
  message = 'another config: optimizer.learning_rate is 0.002, was 0.004'
  with pytest.raises(errors.UserError, match=message):
    results.outcome(run)
  assert report.load(results.folder(run)) == before


def test_the_grid_comes_first_and_then_the_seeds_at_the_best_rate(results):
  assert _next(results, ALL) == [
    'main/adamw/rate_0.001/seed_5',
    'main/adamw/rate_0.002/seed_5',
    'main/adamw/rate_0.004/seed_5',
    'main/lion/rate_0.00015/seed_5',
    'main/lion/rate_0.0003/seed_5',
    'main/lion/rate_0.0006/seed_5',
  ]
  for run in results.next([('main', 'adamw')]):
    _finish(results, run, 2.0 + run.rate)
  assert _next(results, ALL)[:1] == ['main/adamw/rate_0.0005/seed_5']
  for rate in (0.0005, 0.00015, 0.0003):
    method = 'adamw' if rate == 0.0005 else 'lion'
    _finish(results, settings.Run('main', method, rate, 5), 2.5)
  assert _next(results, ALL) == [
    'main/lion/rate_0.0006/seed_5',
    'main/adamw/rate_0.001/seed_6',
    'main/adamw/rate_0.001/seed_7',
    'other/adamw/rate_0.001/seed_0',
    'other/adamw/rate_0.001/seed_1',
  ]


def test_what_diverges_is_not_repeated_and_not_the_best(results):
  for run in results.next([('main', 'adamw')]):
    _finish(results, run, fake_runs.DIVERGED if run.rate > 0.003 else 2.0)
  assert results.choice(MAIN, 'adamw').best == 0.001
  assert _next(results, [('main', 'adamw')]) == [
    'main/adamw/rate_0.0005/seed_5'
  ]


def test_tuning_elsewhere_belongs_to_what_is_chosen(results):
  chosen = [('other', 'adamw')]
  assert len(results.next(chosen)) == 3
  assert {run.study for run in results.next(chosen)} == {'main'}
  for run in results.next(chosen):
    _finish(results, run, abs(run.rate - 0.002))
  assert _next(results, chosen) == [
    'other/adamw/rate_0.002/seed_0',
    'other/adamw/rate_0.002/seed_1',
  ]


def test_left_counts_what_will_be_needed_at_least(results):
  assert results.left(ALL) == {'main': 10, 'other': 2}
  assert results.left([('other', 'adamw')]) == {'main': 3, 'other': 2}
  for run in results.next([('main', 'adamw')]):
    _finish(results, run, abs(run.rate - 0.002))
  assert results.left(ALL) == {'main': 7, 'other': 2}
  for run in results.next(ALL):
    _finish(results, run, abs(run.rate - 0.0003))
  assert results.left(ALL) == {'main': 2, 'other': 0}


def test_without_tuning_the_rate_is_that_of_the_config(tmp_path):
  plain = fake_runs.study(
    overrides={'optimizer.learning_rate': 0.25}, seeds=(0, 1), methods=['lion']
  )
  results = outcomes.Results([plain], tmp_path)
  assert _next(results, [('main', 'lion')]) == [
    'main/lion/rate_0.25/seed_0',
    'main/lion/rate_0.25/seed_1',
  ]


def test_best_has_the_known_seeds_at_the_best_rate(results):
  assert results.best(MAIN, 'adamw') == {}
  fake_runs.finish_all(results, lambda run: abs(run.rate - 0.002) + run.seed)
  best = results.best(MAIN, 'adamw')
  assert [(run.rate, run.seed) for run in best] == [
    (0.002, 5),
    (0.002, 6),
    (0.002, 7),
  ]
  assert [end.error_rate for end in best.values()] == [5, 6, 7]
