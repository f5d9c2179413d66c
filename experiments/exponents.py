"""Exponents of power laws from repeated measurements, with intervals."""

from collections.abc import Sequence
import dataclasses

import numpy as np
from scipy import stats

_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Fit:
  """A power law ``y ~ x**exponent``.

  Attributes:
    exponent: the slope of the line through all points, in logarithms.
    low: lower end of its 95 % interval.
    high: upper end.
    last: the slope between the last two points, which shows where it tends.
    last_error: half the width of its 95 % interval.
  """

  exponent: float
  low: float
  high: float
  last: float
  last_error: float


def fit(x: Sequence[float], y_XxR: np.ndarray) -> Fit:
  """Fits a power law to repetitions of a whole series of measurements.

  Each repetition gives an exponent by least squares in logarithms; the interval
  is Student's, of their mean. It is about chance alone: a series that is not a
  power law has an exponent too.

  Args:
    x: where was measured, at least two different places.
    y_XxR: what was measured, a column for each of at least two repetitions.

  Returns:
    the exponent.

  Raises:
    ValueError: too few places or repetitions, or something that is not above 0
      and has no logarithm.
  """
  x, y_XxR = np.asarray(x, float), np.asarray(y_XxR, float)
  if len(set(x)) < 2 or y_XxR.shape[1] < 2:
    raise ValueError(
      'fit: at least two different x and two repetitions are needed, not x ='
      f' {x.tolist()} and {y_XxR.shape[1]} repetitions.'
    )
  if not (np.all(x > 0) and np.all(y_XxR > 0)):
    raise ValueError(
      'fit: only what is above 0 has a logarithm, but the least x is'
      f' {x.min()} and the least y {y_XxR.min()}.'
    )
  exponent, error = _mean(_slopes(x, y_XxR))
  last, last_error = _mean(_slopes(x[-2:], y_XxR[-2:]))
  return Fit(exponent, exponent - error, exponent + error, last, last_error)


def _slopes(x: np.ndarray, y_XxR: np.ndarray) -> np.ndarray:
  centred = np.log(x) - np.log(x).mean()
  return centred @ np.log(y_XxR) / (centred @ centred)


def _mean(slopes: np.ndarray) -> tuple[float, float]:
  """The mean, and half the width of its interval."""
  quantile = stats.t.ppf((1 + _LEVEL) / 2, len(slopes) - 1)
  return float(slopes.mean()), float(quantile * stats.sem(slopes))
