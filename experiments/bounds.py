r"""What theory allows: right-hand sides of the theorems, with all constants.

Every bound here is, as a function of the step size :math:`a` alone,
``inverse / a + slope * a + constant``, and the step size that the theory says
is the one that makes it least.

In all of them a local drift occurs: after :math:`k` local steps at rate
:math:`\gamma` a worker is at most :math:`\gamma (k G + \sqrt k \sigma)` away in
expectation, so the mean gradient of a round is off by at most

.. math::
  \delta(\gamma) = L \gamma
    \left( \frac{\tau - 1}{2} G + \sqrt{\frac{\tau - 1}{2}} \sigma \right)
"""

import dataclasses
import math

import numpy as np
from scipy import optimize, special, stats

from experiments import nonconvex


@dataclasses.dataclass(frozen=True)
class Bound:
  """A bound as a function of the step size."""

  inverse: float
  slope: float
  constant: float

  def at(self, step: float) -> float:
    """The bound for this step size."""
    return self.inverse / step + self.slope * step + self.constant

  @property
  def best_step(self) -> float:
    """The step size for which it is least."""
    return math.sqrt(self.inverse / self.slope)


def exact_sign(
  problem: nonconvex.Problem,
  rounds: int,
  workers: int,
  local_steps: int,
  b1: float,
  b2: float,
) -> Bound:
  r"""Local SGD and the exact sign of outer momentum: on the l1 norm.

  Derived here (paper A's own constants are not in our sources), for outer rate
  1 and no decay, so that :math:`\gamma = a`. With :math:`e_t` the error of
  :math:`c_t / \tau` as an estimate of the gradient,

  .. math::
    f(x_{t+1}) \le f(x_t) - a \|\nabla f(x_t)\|_1 + 2 a \|e_t\|_1
      + \frac{L a^2 d}{2} \\
    \frac1T \sum_t E \|\nabla f(x_t)\|_1 \le \frac{f(x_0) - f^*}{a T}
      + \frac{L a d}{2} + 2 \left(
        \frac{\beta_1 \|\nabla f(x_0)\|_1}{T (1 - \beta_2)}
        + \frac{\beta_1 L a d}{1 - \beta_2}
        + \sqrt d \sigma \sqrt{\frac{C}{n \tau}} + \sqrt d \, \delta(a) \right)

  from :math:`|x| - x \, \text{sign}(y) \le 2 |x - y|`, with :math:`C` as in
  :func:`majority_vote`. :math:`1 - \beta \sim T^{-1/2}` and
  :math:`a \sim T^{-3/4}` make all of it :math:`T^{-1/4}`.
  """
  d, smooth = problem.dimension, problem.smoothness
  noise = math.sqrt(d * _variance(b1, b2) / (workers * local_steps))
  return Bound(
    inverse=problem.gap / rounds,
    slope=smooth * d / 2
    + 2 * b1 * smooth * d / (1 - b2)
    + 2 * math.sqrt(d) * _drift(problem, local_steps),
    constant=2 * b1 * problem.start_l1 / (rounds * (1 - b2))
    + 2 * noise * problem.sigma,
  )


def randomized_sign(
  problem: nonconvex.Problem, rounds: int, local_steps: int, limit: float
) -> Bound:
  r"""Local SGD and a randomized sign: on the squared l2 norm.

  Derived here (paper A states the rate, but its measure is not in our sources),
  for no momentum, outer rate 1 and no decay. Given the pseudo-gradient the step
  is in expectation a gradient step, :math:`E[s(g)] = g / B`, and it has at most
  the length :math:`\sqrt d`; with :math:`G` the largest norm of a gradient,

  .. math::
    E f(x_{t+1}) \le f(x_t) - \frac{a \tau}{B}
      \left( \|\nabla f(x_t)\|_2^2 - G \delta(a) \right)
      + \frac{L a^2 d}{2} \\
    \frac1T \sum_t E \|\nabla f(x_t)\|_2^2 \le
      \frac{B (f(x_0) - f^*)}{\tau a T} + \frac{B L a d}{2 \tau} + G \delta(a)

  and :math:`a \sim T^{-1/2}` makes all of it :math:`T^{-1/2}`.
  """
  per_step = limit / local_steps
  return Bound(
    inverse=per_step * problem.gap / rounds,
    slope=per_step * problem.smoothness * problem.dimension / 2
    + problem.steepest_l2 * _drift(problem, local_steps),
    constant=0.0,
  )


def majority_vote(
  problem: nonconvex.Problem, rounds: int, workers: int, b1: float, b2: float
) -> Bound:
  r"""Theorem 3.6 of Distributed Lion, on the mean of the surrogate.

  .. math::
    \frac{f(x_0) - f^*}{T \epsilon}
    + \frac{2 D \beta_1 \beta_2 \sqrt d \|\nabla f(x_0)\|}{T (1 - \beta_2)}
    + \frac{4 \beta_1 L \epsilon d}{1 - \beta_2}
    + \frac{2 \sqrt d \sigma (1 + \sqrt C) + 2 \rho}{\sqrt N}
    + 2 L \epsilon d

  with :math:`C = \beta_1^2 \frac{1 - \beta_2}{1 + \beta_2} + (1 - \beta_1)^2`.
  Its :math:`D` is 1 here: the proof needs a larger one only for coordinates
  whose expected sign is 0 where their expectation is not, and normal noise has
  none. :math:`\rho` is the norm of ratios of an expectation to an expected
  sign, here bounded by that of the largest slope. (The last but one line of the
  proof has :math:`\rho \sqrt d`, the theorem :math:`\rho`; this is the theorem,
  the lower of the two. Its average is of :math:`x_1` to :math:`x_T`; that of
  :math:`x_0` to :math:`x_{T-1}`, which runs here measure, differs by no more
  than :math:`(S(x_0) - S(x_T)) / T`.)
  """
  deviation = problem.noise * math.sqrt(_variance(b1, b2))
  ratio = problem.steepest / special.erf(
    problem.steepest / (math.sqrt(2) * deviation)
  )
  rho = math.sqrt(problem.dimension) * ratio
  spread = math.sqrt(problem.dimension) * problem.sigma
  spread *= 1 + math.sqrt(_variance(b1, b2))
  noise = 2 * (spread + rho) / math.sqrt(workers)
  return _distributed_lion(problem, rounds, b1, b2, noise)


def sign_mean(
  problem: nonconvex.Problem, rounds: int, b1: float, b2: float
) -> Bound:
  r"""Theorem 3.8 of Distributed Lion: no number of workers is in it.

  As :func:`majority_vote`, with :math:`D = 1` and the fraction over
  :math:`\sqrt N` replaced by :math:`\frac{2 \beta_1 \sqrt d \sigma}
  {\sqrt{1 + \beta_2}} + 2 (1 - \beta_1) \sqrt d \sigma`.
  """
  spread = math.sqrt(problem.dimension) * problem.sigma
  noise = 2 * spread * (b1 / math.sqrt(1 + b2) + 1 - b1)
  return _distributed_lion(problem, rounds, b1, b2, noise)


def floor(
  problem: nonconvex.Problem,
  aggregation: str,
  workers: int,
  b1: float,
  b2: float,
) -> float:
  r"""Where the surrogate of Distributed Lion ends, as the step goes to zero.

  Derived here. With a step that small the point stands still while the momentum
  forgets, so a worker's vote is the sign of the slope plus normal noise of
  variance :math:`C s^2`, and the point rests where the expected outcome of the
  vote is :math:`-\lambda x`. There the slope is not zero: it has to be as large
  as the noise of an outcome makes it, which is :math:`\propto n^{-1/2}` for a
  majority of many, and the same for any number in a mean of signs.

  Args:
    problem: with normal noise.
    aggregation: ``'majority_vote'`` or ``'sign_mean'``.
    workers: an odd number, so that there are no ties.
    b1: of Distributed Lion.
    b2: of Distributed Lion.

  Returns:
    the surrogate at that point.
  """
  deviation = problem.noise * math.sqrt(_variance(b1, b2))

  def force(x, minimum):
    plus = stats.norm.cdf(np.sin(x - minimum) / deviation)
    if aggregation == 'majority_vote':
      plus = stats.binom.sf(workers // 2, workers, plus)
    return 2 * plus - 1 + problem.weight_decay * x

  total = 0.0
  for minimum in problem.minimum.astype(float):
    x = optimize.brentq(force, 0.0, minimum, args=(minimum,))
    slope = math.sin(x - minimum)
    total += slope * (math.copysign(1, slope) + problem.weight_decay * x)
  return total


def _distributed_lion(
  problem: nonconvex.Problem, rounds: int, b1: float, b2: float, noise: float
) -> Bound:
  d, smooth = problem.dimension, problem.smoothness
  start = 2 * b1 * b2 * math.sqrt(d) * problem.start_l2
  return Bound(
    inverse=problem.gap / rounds,
    slope=4 * b1 * smooth * d / (1 - b2) + 2 * smooth * d,
    constant=start / (rounds * (1 - b2)) + noise,
  )


def _variance(b1: float, b2: float) -> float:
  """Of the noise in Lion's direction, for noise of variance 1: the C above."""
  return b1**2 * (1 - b2) / (1 + b2) + (1 - b1) ** 2


def _drift(problem: nonconvex.Problem, local_steps: int) -> float:
  """The local drift for rate 1; it is proportional to the rate."""
  mean = (local_steps - 1) / 2
  return problem.smoothness * (
    mean * problem.steepest_l2 + math.sqrt(mean) * problem.sigma
  )
