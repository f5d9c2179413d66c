"""The studies of ``theory``: methods of both papers, each along one axis."""

from collections.abc import Sequence
import dataclasses
import time
from typing import Any

import jax
import numpy as np
import optax

from experiments import bounds, nonconvex, rates
import signmomentum as sm

_WORKERS, _LOCAL_STEPS = 4, 4  # of local SGD
_VOTERS = 7  # of Distributed Lion, where rounds vary
_B1, _B2 = 0.5, 0.9  # of Distributed Lion
_AGGREGATIONS = {'majority_vote': 'majority vote', 'sign_mean': 'sign mean'}

_EXACT = nonconvex.Problem(dimension=16, noise=4.0)
_RANDOMIZED = nonconvex.Problem(dimension=16, noise=1.0, noise_kind='uniform')
_LION = nonconvex.Problem(dimension=16, noise=2.0, weight_decay=0.25)
# no sum of a round's gradients is larger, see nonconvex.NOISES
_LIMIT = _LOCAL_STEPS * (_RANDOMIZED.steepest + 3**0.5 * _RANDOMIZED.noise)


@dataclasses.dataclass(frozen=True)
class Scale:
  """How much is run.

  Attributes:
    exact: numbers of rounds T with the exact sign.
    randomized: T with a randomized sign.
    lion: T of Distributed Lion.
    voters: numbers of workers n, odd, so that no vote is a tie.
    voters_rounds: T where n varies.
    repetitions: of each run.
  """

  exact: tuple[int, ...]
  randomized: tuple[int, ...]
  lion: tuple[int, ...]
  voters: tuple[int, ...]
  voters_rounds: int
  repetitions: int


FULL = Scale(
  exact=tuple(2**k for k in range(10, 16)),
  randomized=tuple(2**k for k in range(10, 15)),
  lion=tuple(2**k for k in range(10, 15)),
  voters=(1, 3, 7, 15, 31, 63),
  voters_rounds=4096,
  repetitions=16,
)
QUICK = Scale(
  exact=(32, 64),
  randomized=(32, 64),
  lion=(32, 64),
  voters=(1, 3),
  voters_rounds=64,
  repetitions=4,
)


def exact_sign(scale: Scale, seed: int) -> rates.Study:
  """Local SGD, and the exact sign of the outer momentum, in T."""

  def make(rate, beta):
    return _local_sgd(
      rate, sm.sign_momentum(1.0, b1=beta, b2=beta, weight_decay=0.0)
    )

  def beta(rounds):
    return 1 - rounds**-0.5

  run = nonconvex.runner(
    _EXACT,
    make,
    nonconvex.l1,
    _WORKERS,
    _LOCAL_STEPS,
    scale.repetitions,
    seed,
  )
  limits = [
    bounds.exact_sign(_EXACT, t, _WORKERS, _LOCAL_STEPS, beta(t), beta(t))
    for t in scale.exact
  ]
  averages = _averages(
    lambda t, step: run(t, step, beta(t)), scale.exact, limits
  )
  return rates.Study(
    what='local SGD, exact sign',
    measure='mean of the l1 norm of the gradient',
    axis='T',
    paper=-1 / 4,
    x=scale.exact,
    fitted=averages,
    averages=averages,
    **_of_bounds(limits),
  )


def randomized_sign(scale: Scale, seed: int, support: str) -> rates.Study:
  """Local SGD, and a randomized sign of its displacement, in T."""

  def make(rate):
    # a seed that is not the one of the gradients' noise
    sign = sm.scale_by_randomized_sign(_LIMIT, seed + 1, support)
    return _local_sgd(rate, sign, optax.scale_by_learning_rate(1.0))

  run = nonconvex.runner(
    _RANDOMIZED,
    make,
    nonconvex.squared_l2,
    _WORKERS,
    _LOCAL_STEPS,
    scale.repetitions,
    seed,
  )
  limits = [
    bounds.randomized_sign(_RANDOMIZED, t, _LOCAL_STEPS, _LIMIT)
    for t in scale.randomized
  ]
  averages = _averages(run, scale.randomized, limits)
  return rates.Study(
    what=f'local SGD, {support.replace("_", "-")} sign',
    measure='mean of the squared l2 norm of the gradient',
    axis='T',
    paper=-1 / 2,
    x=scale.randomized,
    fitted=averages,
    averages=averages,
    **_of_bounds(limits),
  )


def lion_in_rounds(scale: Scale, seed: int, aggregation: str) -> rates.Study:
  """Distributed Lion in T."""
  run = _lion(aggregation, _VOTERS, scale, seed)
  limits = [_lion_bound(aggregation, t, _VOTERS) for t in scale.lion]
  averages = _averages(run, scale.lion, limits)
  floor = _lion_floor(aggregation, _VOTERS)
  return rates.Study(
    what=f'Distributed Lion, {_AGGREGATIONS[aggregation]}, n = {_VOTERS}',
    measure='mean of S above its floor',
    axis='T',
    paper=-1 / 2,
    x=scale.lion,
    fitted=averages - floor,
    averages=averages,
    floors=(floor,) * len(scale.lion),
    **_of_bounds(limits),
  )


def lion_in_workers(scale: Scale, seed: int, aggregation: str) -> rates.Study:
  """The floor of Distributed Lion in n."""
  t = scale.voters_rounds
  limits = [_lion_bound(aggregation, t, n) for n in scale.voters]
  results = [
    _lion(aggregation, n, scale, seed)(t, limit.best_step)
    for n, limit in zip(scale.voters, limits, strict=True)
  ]
  averages, lasts = map(np.array, zip(*results, strict=True))
  return rates.Study(
    what=f'Distributed Lion, {_AGGREGATIONS[aggregation]}, T = {t:,}',
    measure='mean of S over the last half of the rounds',
    axis='n',
    paper=-1 / 2 if aggregation == 'majority_vote' else 0.0,
    x=scale.voters,
    fitted=lasts,
    averages=averages,
    floors=tuple(_lion_floor(aggregation, n) for n in scale.voters),
    **_of_bounds(limits),
  )


def measure(scale: Scale, seed: int) -> dict[str, list[rates.Study]]:
  """Runs everything, and says what is done.

  Args:
    scale: how much.
    seed: of all noise.

  Returns:
    the studies, in groups of the same measure.
  """
  plan = [
    ('Exact sign', exact_sign, [()]),
    ('Randomized sign', randomized_sign, [('two_point',), ('three_point',)]),
    ('Distributed Lion in T', lion_in_rounds, zip(_AGGREGATIONS)),
    ('Distributed Lion in n', lion_in_workers, zip(_AGGREGATIONS)),
  ]
  groups = {}
  for title, make, kinds in plan:
    began = time.perf_counter()
    groups[title] = [make(scale, seed, *kind) for kind in kinds]
    print(f'{title}: {time.perf_counter() - began:.0f} s')
  return groups


def facts(scale: Scale) -> dict[str, Any]:
  """What was run, for the record."""
  return {
    'scale': dataclasses.asdict(scale),
    'workers of local SGD': _WORKERS,
    'local steps': _LOCAL_STEPS,
    'betas of Distributed Lion': [_B1, _B2],
    'problem of the exact sign': _EXACT.constants(),
    'problem of the randomized sign': _RANDOMIZED.constants() | {'B': _LIMIT},
    'problem of Distributed Lion': _LION.constants(),
  }


def _local_sgd(
  rate: jax.typing.ArrayLike, *outer: optax.GradientTransformation
) -> optax.GradientTransformation:
  return sm.local_steps(
    optax.sgd(rate),
    optax.chain(sm.aggregate_by_mean('workers'), *outer),
    _LOCAL_STEPS,
    'workers',
    learning_rate=rate,
  )


def _lion(
  aggregation: str, workers: int, scale: Scale, seed: int
) -> nonconvex.Run:
  return nonconvex.runner(
    _LION,
    lambda step: sm.distributed_lion(
      step, _B1, _B2, _LION.weight_decay, aggregation=aggregation
    ),
    nonconvex.surrogate,
    workers,
    repetitions=scale.repetitions,
    seed=seed,
  )


def _lion_bound(aggregation: str, rounds: int, workers: int) -> bounds.Bound:
  if aggregation == 'majority_vote':
    return bounds.majority_vote(_LION, rounds, workers, _B1, _B2)
  return bounds.sign_mean(_LION, rounds, _B1, _B2)


def _lion_floor(aggregation: str, workers: int) -> float:
  return bounds.floor(_LION, aggregation, workers, _B1, _B2)


def _averages(
  run: nonconvex.Run, rounds: Sequence[int], limits: Sequence[bounds.Bound]
) -> np.ndarray:
  """Runs of several lengths, each with the step of its bound."""
  pairs = zip(rounds, limits, strict=True)
  return np.array([run(t, limit.best_step)[0] for t, limit in pairs])


def _of_bounds(limits: Sequence[bounds.Bound]) -> dict[str, tuple[float, ...]]:
  """What a study keeps of its bounds."""
  return {
    'steps': tuple(limit.best_step for limit in limits),
    'bounds': tuple(limit.at(limit.best_step) for limit in limits),
  }
