"""The theory in numbers: problem, bounds, fits, and the command."""

import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import bounds, exponents, nonconvex, rates, studies
import signmomentum as sm

ROOT = pathlib.Path(__file__).parent.parent
PROBLEM = nonconvex.Problem(dimension=8, noise=2.0, weight_decay=0.25)
pytestmark = pytest.mark.usefixtures('quick_compilation')

POINTS = jax.random.uniform(jax.random.key(0), (500, 8), minval=-7, maxval=7)


class TestProblem:
  def test_gradient(self):
    np.testing.assert_allclose(
      PROBLEM.gradient(POINTS),
      np.sin(np.array(POINTS) - PROBLEM.minimum[None]),
      atol=2e-6,
    )

  def test_gap_is_start_minus_infimum(self):
    start = PROBLEM.value(jnp.zeros((1, 8)))
    np.testing.assert_allclose(start, PROBLEM.gap, rtol=1e-6)
    least = PROBLEM.value(jnp.array(PROBLEM.minimum)[None])
    np.testing.assert_allclose(least, 0, atol=1e-6)
    assert jnp.all(PROBLEM.value(POINTS) >= 0)

  def test_curvature(self):
    hessian = jax.jit(
      jax.vmap(jax.hessian(lambda x: PROBLEM.value(x[None])[0]))
    )
    edges = np.linalg.eigvalsh(hessian(POINTS))
    assert np.abs(edges).max() <= PROBLEM.smoothness + 1e-6
    assert edges.min() < -0.99  # not convex
    at_minimum = hessian(jnp.array(PROBLEM.minimum)[None])
    assert np.linalg.eigvalsh(at_minimum).max() == pytest.approx(
      PROBLEM.smoothness
    )

  def test_sizes_of_gradients(self):
    slope = np.array(PROBLEM.gradient(jnp.zeros((1, 8))))
    assert np.abs(slope).sum() == pytest.approx(PROBLEM.start_l1, rel=1e-6)
    assert np.linalg.norm(slope) == pytest.approx(PROBLEM.start_l2, rel=1e-6)
    steepest = PROBLEM.gradient(jnp.array(PROBLEM.minimum)[None] + math.pi / 2)
    assert np.abs(steepest).max() == pytest.approx(PROBLEM.steepest)
    assert np.linalg.norm(steepest) == pytest.approx(PROBLEM.steepest_l2)

  @pytest.mark.parametrize('kind', nonconvex.NOISES)
  def test_noise(self, kind):
    problem = nonconvex.Problem(dimension=8, noise=2.0, noise_kind=kind)
    noise = np.array(problem.draw(jax.random.key(1), (40_000, 8)), float)
    squares = (noise**2).sum(1)  # whose expectation is sigma**2
    for values, truth in [(noise.ravel(), 0), (squares, problem.sigma**2)]:
      error = values.std() / math.sqrt(values.size)
      assert abs(values.mean() - truth) < 5 * error
    if kind == 'uniform':
      assert np.abs(noise).max() <= 2.0 * math.sqrt(3)

  def test_measures(self):
    slope = np.sin(np.array(POINTS) - PROBLEM.minimum[None])
    l1, pull = np.abs(slope).sum(1), (slope * np.array(POINTS)).sum(1)
    for measure, truth in [
      (nonconvex.l1, l1),
      (nonconvex.squared_l2, (slope**2).sum(1)),
      (nonconvex.surrogate, l1 + 0.25 * pull),
    ]:
      np.testing.assert_allclose(measure(PROBLEM, POINTS), truth, rtol=1e-4)


class TestRunner:
  def test_is_the_average_of_an_ordinary_loop(self):
    workers, local_steps, repetitions, seed = 3, 2, 2, 7

    def make(rate):
      return sm.local_steps(
        optax.sgd(rate),
        optax.chain(
          sm.aggregate_by_mean('workers'),
          sm.sign_momentum(1.0, b1=0.5, b2=0.5, weight_decay=0.0),
        ),
        local_steps,
        'workers',
        learning_rate=rate,
      )

    run = nonconvex.runner(
      PROBLEM, make, nonconvex.l1, workers, local_steps, repetitions, seed
    )
    x, m = np.zeros((repetitions, 8)), 0.0
    seen = []
    for t in range(5):
      seen.append(np.abs(np.sin(x - PROBLEM.minimum)).sum(1))
      key = jax.random.fold_in(jax.random.key(seed), t)
      noise = np.array(PROBLEM.draw(key, (local_steps, workers, *x.shape)))
      moved = 0.0
      for i in range(workers):
        y = x
        for k in range(local_steps):
          y = y - 0.1 * (np.sin(y - PROBLEM.minimum) + noise[k, i])
        moved = moved + (x - y) / 0.1 / workers
      m = 0.5 * m + 0.5 * moved
      x = x - 0.1 * np.sign(m)
    for rounds, half in [(1, 1), (4, 2), (5, 3)]:
      averages, lasts = run(rounds, 0.1)
      truth = np.mean(seen[:rounds], 0)
      np.testing.assert_allclose(averages, truth, rtol=1e-5)
      truth = np.mean(seen[:rounds][-half:], 0)
      np.testing.assert_allclose(lasts, truth, rtol=1e-5)

  def test_repetitions_are_independent(self):
    def make(rate):
      return optax.chain(sm.aggregate_by_mean('workers'), optax.sgd(rate))

    run = nonconvex.runner(
      PROBLEM, make, nonconvex.l1, workers=1, repetitions=400
    )
    averages, _ = run(3, 0.1)
    assert len(set(averages.tolist())) > 390
    correlation = np.corrcoef(averages[::2], averages[1::2])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(200)


class TestBounds:
  def test_best_step(self):
    bound = bounds.Bound(inverse=8.0, slope=2.0, constant=1.0)
    assert bound.best_step == 2.0
    assert bound.at(2.0) == 9.0
    assert min(bound.at(1.9), bound.at(2.1)) > 9.0

  def test_distributed_lion(self):
    # the theorems term by term: T = 100, n = 4, step 0.1, L = 1, d = 8
    b1, b2 = 0.5, 0.9
    common = (
      8 / (100 * 0.1)
      + 2 * b1 * b2 * 8**0.5 * 2.0 / (100 * 0.1)  # norm at the start: 2
      + 4 * b1 * 0.1 * 8 / 0.1
      + 2 * 0.1 * 8
    )
    sigma = 8**0.5 * 2.0
    mean = bounds.sign_mean(PROBLEM, 100, b1, b2).at(0.1)
    assert mean - common == pytest.approx(
      2 * b1 * 8**0.5 * sigma / 1.9**0.5 + 2 * 0.5 * 8**0.5 * sigma
    )
    c = b1**2 * 0.1 / 1.9 + 0.5**2
    rho = 8**0.5 / math.erf(1 / (2.0 * math.sqrt(2 * c)))
    vote = bounds.majority_vote(PROBLEM, 100, 4, b1, b2).at(0.1)
    assert vote - common == pytest.approx(
      (2 * 8**0.5 * sigma * (1 + c**0.5) + 2 * rho) / 4**0.5
    )

  def test_local_sgd(self):
    # d = 8, L = 1, n = 3, two local steps, T = 100, step and local rate 0.1
    sigma, drift = 8**0.5 * 2.0, 0.1 * (8**0.5 / 2 + 4.0)
    b = 0.9
    c = b**2 * 0.1 / 1.9 + 0.1**2
    exact = bounds.exact_sign(PROBLEM, 100, 3, 2, b, b).at(0.1)
    assert exact == pytest.approx(
      8 / 10
      + 0.1 * 8 / 2
      + 2 * b / math.sin(math.pi / 16) / (100 * 0.1)
      + 2 * b * 0.1 * 8 / 0.1
      + 2 * 8**0.5 * sigma * (c / 6) ** 0.5
      + 2 * 8**0.5 * drift
    )
    randomized = bounds.randomized_sign(PROBLEM, 100, 2, limit=6.0).at(0.1)
    assert randomized == pytest.approx(
      6 * 8 / (2 * 10) + 6 * 0.1 * 8 / 4 + 8**0.5 * drift
    )

  def test_exponents(self):
    def exponent(bound):
      least = [(lambda b: b.at(b.best_step))(bound(t)) for t in (1e12, 1e16)]
      return math.log10(least[1] / least[0]) / 4

    assert exponent(
      lambda t: bounds.exact_sign(PROBLEM, t, 4, 4, 1 - t**-0.5, 1 - t**-0.5)
    ) == pytest.approx(-1 / 4, abs=1e-3)
    assert exponent(
      lambda t: bounds.randomized_sign(PROBLEM, t, 4, 10.0)
    ) == pytest.approx(-1 / 2)


class TestFloor:
  def test_of_a_mean_is_that_of_one_voter(self):
    one = bounds.floor(PROBLEM, 'majority_vote', 1, 0.5, 0.9)
    for n in (1, 7):
      mean = bounds.floor(PROBLEM, 'sign_mean', n, 0.5, 0.9)
      assert mean == pytest.approx(one)

  def test_of_a_majority_falls_as_the_root_of_the_number(self):
    few, many = (
      bounds.floor(PROBLEM, 'majority_vote', n, 0.5, 0.9)
      for n in (1001, 100_001)
    )
    assert few / many == pytest.approx(10, rel=0.01)

  @pytest.mark.parametrize('aggregation', ['majority_vote', 'sign_mean'])
  def test_is_where_runs_end(self, aggregation):
    run = nonconvex.runner(
      PROBLEM,
      lambda step: sm.distributed_lion(
        step, 0.5, 0.9, PROBLEM.weight_decay, aggregation=aggregation
      ),
      nonconvex.surrogate,
      workers=3,
      repetitions=32,
    )
    _, last = run(3000, 0.005)
    floor = bounds.floor(PROBLEM, aggregation, 3, 0.5, 0.9)
    assert last.mean() == pytest.approx(floor, rel=0.05)


class TestFit:
  def test_an_exact_law(self):
    x = (10, 100, 1000)
    fit = exponents.fit(x, 5 * np.array(x)[:, None] ** -0.25 * np.ones((1, 3)))
    assert fit.exponent == pytest.approx(-0.25)
    assert fit.last == pytest.approx(-0.25)
    assert fit.high - fit.low < 1e-9

  def test_the_interval_has_the_truth_as_often_as_it_says(self):
    rng = np.random.default_rng(0)
    x = np.array([256, 512, 1024, 4096])
    hits = lasts = 0
    for _ in range(1000):
      noise = np.exp(0.1 * rng.standard_normal((4, 6)))
      fit = exponents.fit(x, 3 * x[:, None] ** -0.5 * noise)
      hits += fit.low <= -0.5 <= fit.high
      lasts += abs(fit.last + 0.5) <= fit.last_error
    # 950, and five standard deviations of a binomial
    assert abs(hits - 950) < 35
    assert abs(lasts - 950) < 35

  def test_last_is_of_the_last_two(self):
    y = np.array([[8.0, 8.0], [4.0, 4.0], [1.0, 1.0]])
    assert exponents.fit((1, 2, 4), y).last == pytest.approx(-2)

  @pytest.mark.parametrize(
    'x, y, message',
    [
      ((2, 2), np.ones((2, 3)), 'two different x'),
      ((1, 2), np.ones((2, 1)), 'two repetitions'),
      ((1, 2), np.array([[1.0, 1.0], [1.0, 0.0]]), 'above 0'),
      ((1, 2), np.array([[1.0, 1.0], [1.0, np.nan]]), 'above 0'),
    ],
  )
  def test_refuses(self, x, y, message):
    with pytest.raises(ValueError, match=message):
      exponents.fit(x, y)


def _study(paper, exponent, level=1.0):
  x = np.array([1.0, 10.0, 100.0])
  noise = np.array([[0.99, 1.01], [1.0, 1.0], [1.01, 0.99]])
  y = level * x[:, None] ** exponent * noise
  return rates.Study(
    what='a method',
    measure='a norm',
    axis='T',
    paper=paper,
    x=(1, 10, 100),
    steps=(0.1, 0.1, 0.1),
    fitted=y,
    averages=y,
    bounds=(2.0, 2.0, 2.0),
  )


class TestTable:
  def test_faster_than_the_bound_is_as_fast(self):
    assert _study(-0.25, -0.5).slower == 0
    assert '| yes | 0.50 |' in rates.markdown([_study(-0.25, -0.5)])

  def test_slower_is_said(self):
    study = _study(-0.5, -0.25)
    assert study.fit.low < study.fit.exponent - 0.01
    assert study.slower == pytest.approx(study.fit.low + 0.5)
    assert f'| no, by {study.slower:.3f} | ' in rates.markdown([study])

  def test_above_the_bound_is_seen(self):
    assert _study(-0.25, -0.25, level=3.0).share == pytest.approx(1.5)


def test_the_command_leaves_its_files(tmp_path):
  folder = tmp_path / 'new' / 'folder'
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'experiments.theory',
      '--quick',
      f'--workdir={folder}',
      '--seed=3',
    ],
    cwd=ROOT,
    env=os.environ
    | {'JAX_PLATFORMS': 'cpu', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'},
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  table = (folder / 'theory.md').read_text()
  assert table in done.stdout
  picture = (folder / 'theory.png').read_bytes()
  assert picture.startswith(b'\x89PNG')
  record = json.loads((folder / 'theory.json').read_text())
  assert record['seed'] == 3
  assert record['versions']['jax'] == jax.__version__
  assert len(record['studies']) == 7
  for study in record['studies']:
    assert f'| {study["what"]} | {study["measure"]} | ' in table
    assert 0 < study['largest_share_of_bound'] < 1
    assert study['repetitions'] == studies.QUICK.repetitions
