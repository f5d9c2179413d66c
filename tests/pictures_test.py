"""The pictures of a sweep, and which panels there are."""

from matplotlib import figure
import pytest

from experiments import outcomes, pictures
from tests import fake_runs

MAIN = fake_runs.study(seeds=(0, 1), tuned=True)


def _other(name, arguments='sync_every=3', overrides=()):
  return fake_runs.study(name, arguments, overrides, rates_of='main')


# Equal tokens: 4 workers with a batch of 2 make 6 steps.
LONGER = _other('longer', overrides={'num_steps': 12})
ROUNDS = _other('rounds', 'sync_every=6')
MORE = _other('more', 'sync_every=3,workers=8', {'num_steps': 3})
AWAY = _other('away', overrides={'presence': 0.5})
AGAINST = _other('against', overrides={'adversaries': 1})
BOTH = _other('both', overrides={'adversaries': 2, 'presence': 0.5})


def _loss(run):
  return 2.0 + run.rate + 0.1 * run.seed


@pytest.fixture
def draw(tmp_path, monkeypatch):
  """Returns a function that draws all but files: axes by their labels."""
  saved = {}
  monkeypatch.setattr(
    figure.Figure,
    'savefig',
    lambda canvas, path, **_: saved.update({path.name: canvas}),
  )

  def function(*others, loss=_loss, bits=4.0):
    results = outcomes.Results([MAIN, *others], tmp_path)
    fake_runs.finish_all(results, loss, bits)
    pictures.draw(results)
    assert set(saved) == {'main.png'} | ({'overview.png'} if others else set())
    canvas = saved['overview.png' if others else 'main.png']
    return {axes.get_xlabel(): axes for axes in canvas.axes}

  return function


def _points(axes):
  """Returns `{method: [places, losses, spreads]}` of a panel."""
  points = {}
  for container in axes.containers:
    line, _, (bars,) = container.lines
    ends = [segment[:, 1] for segment in bars.get_segments()]
    points[container.get_label()] = [
      list(line.get_xdata()),
      list(line.get_ydata()),
      [(high - low) / 2 for low, high in ends],
    ]
  return points


def test_files_are_pictures(tmp_path):
  results = outcomes.Results([MAIN, LONGER], tmp_path)
  fake_runs.finish_all(results, _loss)
  pictures.draw(results)
  for name in ('main.png', 'overview.png'):
    assert (tmp_path / name).read_bytes().startswith(b'\x89PNG')


def test_the_curves_of_a_study(draw):
  panels = draw()
  tokens, bits = panels.values()
  assert list(panels) == ['tokens', 'bits sent per parameter, by each worker']
  assert bits.get_xscale() == 'log'
  lines = {line.get_label(): line for line in tokens.lines}
  # Two evaluations on the way, and the end of the table; 64 tokens a step.
  assert list(lines['adamw (2.050)'].get_xdata()) == [2 * 64, 4 * 64, 6 * 64]
  assert lines['adamw (2.050)'].get_ydata()[-1] == pytest.approx(2.05, abs=1e-3)
  assert 'bigram (2.50)' in lines


def test_nothing_is_drawn_before_there_is_a_run(tmp_path):
  pictures.draw(outcomes.Results([MAIN, LONGER], tmp_path / 'nowhere'))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'others, labels',
  [
    ([LONGER], ['rounds']),
    ([ROUNDS], ['local steps a round, at equal tokens']),
    ([MORE], ['workers, at equal tokens']),
    ([AWAY], ['faults among 4 workers']),
    (
      [BOTH, AGAINST, LONGER, MORE],
      ['rounds', 'workers, at equal tokens', 'faults among 4 workers'],
    ),
  ],
)
def test_panels_follow_from_the_settings(others, labels, draw):
  panels = draw(*others)
  assert list(panels) == ['bits sent per parameter and local step', *labels]


def test_who_sends_nothing_has_no_panel_of_bits(draw):
  assert list(draw(ROUNDS, bits=0.0)) == [
    'local steps a round, at equal tokens'
  ]


def test_a_method_has_a_point_for_each_study(draw):
  def loss(run):
    return 2.0 + (run.study == 'longer') + 0.1 * run.seed

  points = _points(draw(LONGER, ROUNDS, loss=loss)['rounds'])
  assert set(points) == {'adamw', 'lion'}
  spread = pytest.approx(0.1 / 2**0.5)
  assert points['lion'] == [[2, 4], [pytest.approx(2.05), 3.0], [spread, 0]]


def test_what_diverges_is_a_cross_on_top(draw):
  def loss(run):
    bad = run.method == 'lion' and run.study == 'against'
    return fake_runs.DIVERGED if bad else 2.0

  axes = draw(AGAINST, loss=loss)['faults among 4 workers']
  assert [len(x) for x, _, _ in _points(axes).values()] == [2, 1]
  crosses = [line for line in axes.lines if line.get_marker() == 'x']
  assert [len(line.get_xdata()) for line in crosses] == [0, 1]


def test_methods_keep_their_colour(draw):
  panels = draw(LONGER, MORE, AGAINST)
  colors = [
    {end.get_label(): end.lines[0].get_color() for end in axes.containers}
    for axes in panels.values()
  ]
  assert len(set(colors[0].values())) == 2
  assert all(color == colors[0] for color in colors)


def test_columns_of_faults(draw):
  axes = draw(BOTH, AGAINST, AWAY)['faults among 4 workers']
  assert [label.get_text() for label in axes.get_xticklabels()] == [
    'no faults',
    '50% present',
    '1 negate',
    '50% present, 2 negate',
  ]
