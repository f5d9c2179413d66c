"""Studies: in which settings which methods are compared, and at which rates.

    tuned=True           each method on a grid of learning rates, with the first
                         seed; the best rate then gets the other seeds
    rates_of='methods'   at the rates that were best there
    neither              at the rate of the config

A sweep is a file with studies (`configs/sweeps`). Nothing here trains.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import os
from typing import Any, NamedTuple

import ml_collections

from experiments import assembly, errors, methods, tasks
from experiments import config as config_lib

_RATE = 'optimizer.learning_rate'
# The grid, as powers of two that multiply the preset's rate, and how many more
# may follow at either end while the best rate is there.
_LOWEST, _HIGHEST, _MORE = -1, 1, 3


class Run(NamedTuple):
  """One training run of a study."""

  study: str
  method: str
  rate: float
  seed: int

  def __str__(self) -> str:
    return f'{self.study}/{self.method}/rate_{self.rate:g}/seed_{self.seed}'


class Setting(NamedTuple):
  """What all runs of a study have in common."""

  workers: int
  sync_every: int
  steps: int
  seen: int
  unit: str
  presence: float
  adversaries: int


@dataclasses.dataclass(frozen=True)
class Study:
  """Methods, compared in one setting.

  Attributes:
    name: its folder in the directory of the sweep.
    config: config file with arguments, apart from method and seed.
    methods: names of methods.
    seeds: of the runs of each method; the first one chooses the rate.
    overrides: fields of the config, as in `config.load`.
    tuned: whether the rate is chosen here.
    rates_of: the tuned study whose rates are taken.
  """

  name: str
  config: str
  methods: Sequence[str]
  seeds: Sequence[int] = (0,)
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  tuned: bool = False
  rates_of: str | None = None

  def load(
    self, method: str, rate: float | None = None, seed: int | None = None
  ) -> ml_collections.ConfigDict:
    """Returns the config of a run, by default with preset and first seed."""
    overrides = dict(self.overrides)
    if rate is not None:
      overrides[_RATE] = rate
    if seed is None:
      seed = self.seeds[0]
    return config_lib.load(self.config, overrides, method=method, seed=seed)

  def setting(self) -> Setting:
    """Returns what all runs have in common."""
    return _setting(self.load(self.methods[0]))


class Choice(NamedTuple):
  """The learning rate of a method.

  Attributes:
    rates: to be tried with the first seed, from low to high; empty while
      another study has not settled on one.
    best: of those that have been tried, None before any.
    settled: whether this is final.
    at_edge: whether the best is the lowest or the highest that was tried.
  """

  rates: tuple[float, ...]
  best: float | None
  settled: bool
  at_edge: bool = False


def tune(preset: float, error_rate: Callable[[float], float | None]) -> Choice:
  """Chooses a rate: the same rule for every method.

  The grid is half the preset, the preset and twice the preset. While the best
  is the lowest or the highest, half of it or twice it is tried as well, up to
  three times at either end.

  Args:
    preset: where to begin.
    error_rate: of the run at a rate, infinite if it diverged, None if it is
      not known yet.
  """
  low, high = _LOWEST, _HIGHEST
  while True:
    rates = tuple(preset * 2.0**power for power in range(low, high + 1))
    found = {rate: error_rate(rate) for rate in rates}
    known = {rate: end for rate, end in found.items() if end is not None}
    # Where all diverged, the lowest is the best guess.
    best = min(known, key=known.get, default=None)
    if len(known) < len(rates):
      return Choice(rates, best, settled=False)
    if best == rates[0] and low > _LOWEST - _MORE:
      low -= 1
    elif best == rates[-1] and high < _HIGHEST + _MORE:
      high += 1
    else:
      return Choice(rates, best, True, best in (rates[0], rates[-1]))


def load(path: str | os.PathLike) -> list[Study]:
  """Returns the studies of a sweep file: what its `get_sweep()` returns.

  Raises:
    UserError: if there is no such file, or a study makes no sense.
  """
  module = config_lib.run_file(path, 'sweep file', 'get_sweep()')
  sweep = list(module.get_sweep())
  check(sweep)
  return sweep


def check(sweep: Sequence[Study]) -> None:
  """Sees that all studies can run: names, rates and every config.

  Raises:
    UserError: for the first mistake.
  """
  by_name = {study.name: study for study in sweep}
  _require_unique('studies', [study.name for study in sweep])
  for study in sweep:
    _check_names(study)
    if study.rates_of is not None:
      _check_source(study, by_name)
    settings = {}
    for method in study.methods:
      config = study.load(method)
      assembly.check(config)
      settings.setdefault(_setting(config), method)
    if len(settings) > 1:
      listed = '; '.join(f'{name}: {s}' for s, name in settings.items())
      raise errors.UserError(
        f'{study.name}: the config differs between methods, which then cannot'
        f' be compared. {listed}.'
      )


def choose(
  sweep: Sequence[Study], studies: Sequence[str], names: Sequence[str]
) -> list[tuple[str, str]]:
  """Returns the names of studies and their methods, in the sweep's order.

  Args:
    sweep: all studies.
    studies: names of studies, or all.
    names: names of methods, or all: those that each study has.

  Raises:
    UserError: for an unknown name; the message has the nearest one.
  """
  by_name = {study.name: study for study in sweep}
  if list(studies) == ['all']:
    studies = list(by_name)
  for name in studies:
    errors.lookup(by_name, name, 'study')
  pairs = [
    (study.name, method)
    for study in sweep
    if study.name in studies
    for method in study.methods
  ]
  if list(names) == ['all']:
    return pairs
  there = {method for _, method in pairs}
  for name in names:
    if name not in there:
      raise errors.unknown(f'method of {", ".join(studies)}', name, there)
  return [(study, method) for study, method in pairs if method in names]


def _setting(config: ml_collections.ConfigDict) -> Setting:
  objective = tasks.objective(config)
  examples = config.num_steps * config.workers * config.batch_size
  return Setting(
    workers=config.workers,
    sync_every=config.sync_every,
    steps=config.num_steps,
    seen=examples * objective.units_per_example,
    unit=objective.unit,
    presence=config.presence,
    adversaries=config.adversaries,
  )


def _check_names(study: Study) -> None:
  if not study.methods or not study.seeds:
    raise errors.UserError(f'{study.name} needs methods and seeds.')
  if min(study.seeds) < 0:
    raise errors.UserError(
      f'{study.name}: seeds must be at least 0, not {min(study.seeds)}.'
    )
  _require_unique(f'{study.name}: methods', study.methods)
  _require_unique(f'{study.name}: seeds', study.seeds)
  methods.names(study.methods)
  for field in ('method', 'seed'):
    if field in study.overrides:
      raise errors.UserError(
        f'{study.name}: {field} cannot be overridden, as it tells runs apart.'
      )


def _check_source(study: Study, by_name: Mapping[str, Study]) -> None:
  source = errors.lookup(by_name, study.rates_of, 'study')
  if study.tuned or not source.tuned:
    raise errors.UserError(
      f'{study.name}: rates_of={study.rates_of!r} must be a study with'
      ' tuned=True, for one that has it not.'
    )
  for method in study.methods:
    if method not in source.methods:
      raise errors.unknown(
        f'method of {source.name}, where {study.name} gets its rates',
        method,
        source.methods,
      )


def _require_unique(what: str, values: Sequence[Any]) -> None:
  twice = {value for value in values if list(values).count(value) > 1}
  if twice:
    listed = ', '.join(map(str, sorted(twice)))
    raise errors.UserError(f'{what}: {listed} is there more than once.')
