"""Studies: the grid of rates, and mistakes in sweep files."""

import dataclasses
import itertools
import math

import pytest

from experiments import config, errors, outcomes, settings
from tests import fake_runs

SWEEP = 'configs/sweeps/gpt2_nano.py'


def _tuned(best_power, known=None):
  """Tunes with a loss that is lowest at a power of two."""

  def loss(rate):
    if known is not None and rate not in known:
      return None
    return abs(math.log2(rate) - best_power)

  return settings.tune(1.0, loss)


@pytest.mark.parametrize(
  'best, low, high',
  [(0, -1, 1), (1, -1, 2), (-1, -2, 1), (2, -1, 3), (3, -1, 4), (-3, -4, 1)],
)
def test_the_grid_goes_on_until_the_best_is_inside(best, low, high):
  choice = _tuned(best)
  assert choice.rates == tuple(2.0**p for p in range(low, high + 1))
  assert choice == (choice.rates, 2.0**best, True, False)


@pytest.mark.parametrize('best, edge', [(4, 4), (9, 4), (-4, -4), (-9, -4)])
def test_the_grid_ends_after_three_more_and_says_so(best, edge):
  choice = _tuned(best)
  assert choice.best == 2.0**edge
  assert len(choice.rates) == 6
  assert choice.settled
  assert choice.at_edge


def test_nothing_is_settled_before_all_rates_are_known():
  choice = _tuned(1, known={0.5, 1.0})
  assert choice == ((0.5, 1.0, 2.0), 1.0, False, False)
  choice = _tuned(1, known={0.5, 1.0, 2.0})
  assert choice == ((0.5, 1.0, 2.0, 4.0), 2.0, False, False)
  assert _tuned(1, known={}).best is None


def test_a_rate_that_diverges_is_the_worst():
  losses = {0.5: 2.0, 1.0: 1.0, 2.0: math.inf}
  assert settings.tune(1.0, losses.get) == ((0.5, 1.0, 2.0), 1.0, True, False)


def test_where_all_diverge_the_lowest_rate_is_left():
  choice = settings.tune(1.0, lambda rate: math.inf)
  assert choice.best == choice.rates[0] == 2.0**-4
  assert choice.at_edge


def _edit(**fields):
  return dataclasses.replace(fake_runs.study(), **fields)


TUNED = _edit(name='tuned', tuned=True)


@pytest.mark.parametrize(
  'sweep, message',
  [
    ([TUNED, TUNED], 'studies: tuned is there more than once'),
    ([_edit(methods=())], 'main needs methods'),
    ([_edit(seeds=())], 'main needs methods and seeds'),
    ([_edit(seeds=(1, 0, 1))], 'seeds: 1 is there more than once'),
    ([_edit(methods=('lion', 'lion'))], 'methods: lion is there more'),
    ([_edit(methods=('lino',))], "nearest is 'lion'"),
    ([_edit(overrides={'seed': 3})], 'seed cannot be overridden'),
    ([_edit(overrides={'num_step': 3})], "nearest is 'num_steps'"),
    ([_edit(overrides={'optimizer.warmup_steps': 10**6})], 'warmup_steps'),
    ([_edit(overrides={'presence': 0.0})], 'presence'),
    ([_edit(config='configs/gpt2_nan.py')], 'gpt2_nano.py'),
    ([TUNED, _edit(rates_of='tune')], "nearest is 'tuned'"),
    ([TUNED, _edit(rates_of='tuned', tuned=True)], 'tuned=True, for one'),
    ([_edit(name='a'), _edit(rates_of='a')], 'must be a study with tuned=True'),
    (
      [TUNED, _edit(rates_of='tuned', methods=('lion', 'slowmo'))],
      "method of tuned, where main gets its rates 'slowmo'",
    ),
  ],
)
def test_mistakes_are_found(sweep, message):
  with pytest.raises(errors.UserError, match=message):
    settings.check(sweep)


def test_methods_of_a_study_see_the_same_tokens(tmp_path):
  path = tmp_path / 'config.py'
  path.write_text(
    'from experiments import config as config_lib\n'
    'def get_config(arg):\n'
    '  config = config_lib.load("configs/gpt2_nano.py:smoke," + arg)\n'
    '  with config.unlocked():\n'
    '    config.num_steps = 12 * len(config.method)\n'
    '  return config\n'
  )
  with pytest.raises(errors.UserError, match='cannot be compared. adamw: .*60'):
    settings.check([_edit(config=str(path), overrides={})])


@pytest.mark.parametrize(
  'name, text, message',
  [
    ('swep.py', None, 'The nearest is .*sweep.py'),
    ('sweep.py', 'def get_sweeps(): ...', 'no function get_sweep'),
    ('sweep.txt', '', 'not a Python file'),
  ],
)
def test_files_that_are_no_sweeps(name, text, message, tmp_path):
  (tmp_path / 'sweep.py').touch()
  if text is not None:
    (tmp_path / name).write_text(text)
  with pytest.raises(errors.UserError, match=message):
    settings.load(tmp_path / name)


SOME = [fake_runs.study('a'), fake_runs.study('b', methods=('lion', 'diloco'))]


@pytest.mark.parametrize(
  'names, methods, pairs',
  [
    (['all'], ['all'], ['a adamw', 'a lion', 'b lion', 'b diloco']),
    (['all'], ['lion'], ['a lion', 'b lion']),
    (['b'], ['all'], ['b lion', 'b diloco']),
    (['b', 'a'], ['diloco', 'adamw'], ['a adamw', 'b diloco']),
  ],
)
def test_choose(names, methods, pairs):
  chosen = settings.choose(SOME, names, methods)
  assert [' '.join(pair) for pair in chosen] == pairs


@pytest.mark.parametrize(
  'names, methods, message',
  [
    (['c'], ['all'], "Unknown study 'c'.*Allowed: a, b"),
    (['all'], ['lino'], "nearest is 'lion'"),
    (['b'], ['adamw'], 'method of b .*Allowed: diloco, lion'),
  ],
)
def test_choose_explains_mistakes(names, methods, message):
  with pytest.raises(errors.UserError, match=message):
    settings.choose(SOME, names, methods)


@pytest.fixture(scope='module')
def committed():
  return settings.load(SWEEP)


def test_runs_of_the_committed_sweep_are_those_of_train(committed):
  """What a plain train command made in the right folder is not repeated."""
  results = outcomes.Results(committed, 'runs')
  runs = results.next(settings.choose(committed, ['methods'], ['slowmo']))
  assert list(map(str, runs)) == [
    'methods/slowmo/rate_0.001/seed_0',
    'methods/slowmo/rate_0.002/seed_0',
    'methods/slowmo/rate_0.004/seed_0',
  ]
  overrides = ['num_steps=9600', 'optimizer.learning_rate=0.001']
  trained = config.load('configs/gpt2_nano.py:method=slowmo', overrides)
  assert results.config(runs[0]) == trained


def test_the_committed_sweep_compares_at_equal_tokens(committed):
  found = {study.name: study.setting() for study in committed}
  for name, setting in found.items():
    if not name.startswith('budget'):
      assert setting.seen == found['methods'].seen, name
  places = {
    name: (s.workers, s.sync_every, s.steps, s.presence, s.adversaries)
    for name, s in found.items()
  }
  assert places == {
    'methods': (4, 12, 9600, 1.0, 0),
    'workers_8': (8, 12, 4800, 1.0, 0),
    'alone': (1, 12, 9600, 1.0, 0),
    'sync_6': (4, 6, 9600, 1.0, 0),
    'sync_24': (4, 24, 9600, 1.0, 0),
    'budget_2400': (4, 12, 2400, 1.0, 0),
    'budget_36000': (4, 12, 36_000, 1.0, 0),
    'dropouts': (8, 12, 4800, 0.75, 0),
    'adversaries_1': (8, 12, 4800, 1.0, 1),
    'adversaries_3': (8, 12, 4800, 1.0, 3),
  }


def test_the_committed_sweep_has_whole_rounds(committed):
  for study, field in itertools.product(
    committed, ('num_steps', 'log_every', 'eval_every', 'checkpoint_every')
  ):
    made = study.load(study.methods[0])
    assert made[field] % made.sync_every == 0, (study.name, field)
