"""What is known of the runs of a sweep, and which are needed next.

A run is an ordinary one of `loop.train`, in `STUDY/METHOD/rate_R/seed_S` of the
sweep's directory. It is known when it has a summary, or has diverged: that is a
result too, for which there is a file of its own.
"""

import collections
from collections.abc import Collection, Iterator, Sequence
import dataclasses
import json
import math
import os
import pathlib

import ml_collections

from experiments import outputs, provenance, report, settings

_DIVERGED = 'diverged.json'


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended.

  Attributes:
    summary: of a run that went well, else None.
    diverged: what was not finite, None if all was.
  """

  summary: report.Summary | None
  diverged: str | None = None

  @property
  def error_rate(self) -> float:
    """By which runs are ranked, infinite if the run diverged."""
    return math.inf if self.summary is None else self.summary.error_rate


def read(folder: str | os.PathLike) -> Outcome | None:
  """Returns how a run ended, None if it has not."""
  path = pathlib.Path(folder) / _DIVERGED
  if path.exists():
    return Outcome(None, json.loads(path.read_text())['message'])
  summary = report.load(folder)
  if summary is not None and not math.isfinite(summary.validation_loss):
    return Outcome(None, f'The loss ends at {summary.validation_loss}.')
  return Outcome(summary) if summary else None


def record_divergence(
  folder: str | os.PathLike, error: FloatingPointError
) -> None:
  """Notes that a run is over because something is not finite."""
  text = json.dumps({'message': str(error)}, indent=2) + '\n'
  outputs.write(pathlib.Path(folder) / _DIVERGED, text)


class Results:
  """The runs of a sweep in a directory.

  Args:
    sweep: all studies.
    workdir: the directory.
  """

  def __init__(
    self, sweep: Sequence[settings.Study], workdir: str | os.PathLike
  ):
    self.sweep = {study.name: study for study in sweep}
    self.workdir = pathlib.Path(workdir)
    self._outcomes: dict[settings.Run, Outcome] = {}
    self._presets: dict[tuple[str, str], float] = {}

  def folder(self, run: settings.Run) -> pathlib.Path:
    """The directory of a run."""
    return self.workdir / str(run)

  def config(self, run: settings.Run) -> ml_collections.ConfigDict:
    """The config of a run."""
    return self.sweep[run.study].load(run.method, run.rate, run.seed)

  def outcome(self, run: settings.Run) -> Outcome | None:
    """How a run ended, None if it has not.

    Raises:
      UserError: if its directory has a run with another config.
    """
    if run not in self._outcomes:
      self._require_same_config(run)
      outcome = read(self.folder(run))
      if outcome is None:
        return None
      self._outcomes[run] = outcome
    return self._outcomes[run]

  def choice(self, study: settings.Study, method: str) -> settings.Choice:
    """The learning rate of a method in a study."""
    if study.rates_of is not None:
      rate = self.choice(self.sweep[study.rates_of], method)
      if not rate.settled:
        return settings.Choice((), None, settled=False)
      return settings.Choice((rate.best,), rate.best, settled=True)
    key = study.name, method
    if key not in self._presets:
      self._presets[key] = study.load(method).optimizer.learning_rate
    preset = self._presets[key]
    if not study.tuned:
      return settings.Choice((preset,), preset, settled=True)

    def error_rate(rate):
      run = settings.Run(study.name, method, rate, study.seeds[0])
      outcome = self.outcome(run)
      return None if outcome is None else outcome.error_rate

    return settings.tune(preset, error_rate)

  def runs(
    self, study: settings.Study, method: str, seeds: Sequence[int]
  ) -> list[settings.Run]:
    """The runs that are needed, as far as that is known yet."""
    choice = self.choice(study, method)
    first, *others = seeds
    runs = [
      settings.Run(study.name, method, rate, first) for rate in choice.rates
    ]
    if choice.settled:
      runs += [
        settings.Run(study.name, method, choice.best, seed) for seed in others
      ]
    return runs

  def next(self, chosen: Collection[tuple[str, str]]) -> list[settings.Run]:
    """The runs that can be made now, in order.

    That is study by study, and in each the first seed of all methods before
    the others.

    Args:
      chosen: names of studies and methods.
    """
    runs = []
    for study in self.sweep.values():
      own = [
        run
        for method, seeds in self._wanted(study, chosen)
        for run in self.runs(study, method, seeds)
        if self.outcome(run) is None
      ]
      runs += sorted(own, key=lambda run: study.seeds.index(run.seed))
    return runs

  def left(self, chosen: Collection[tuple[str, str]]) -> dict[str, int]:
    """How many runs each study needs yet, at least."""
    left = collections.Counter()
    for study in self.sweep.values():
      for method, seeds in self._wanted(study, chosen):
        runs = self.runs(study, method, seeds)
        left[study.name] += sum(self.outcome(run) is None for run in runs)
        seen = {run.seed for run in runs}
        left[study.name] += sum(seed not in seen for seed in seeds)
    return left

  def best(
    self, study: settings.Study, method: str
  ) -> dict[settings.Run, Outcome]:
    """The known runs at the best rate, of each seed."""
    rate = self.choice(study, method).best
    if rate is None:
      return {}
    runs = [settings.Run(study.name, method, rate, s) for s in study.seeds]
    outcomes = {run: self.outcome(run) for run in runs}
    return {run: end for run, end in outcomes.items() if end is not None}

  def known(self) -> list[Outcome]:
    """What has been asked for and was there."""
    return list(self._outcomes.values())

  def _wanted(
    self, study: settings.Study, chosen: Collection[tuple[str, str]]
  ) -> Iterator[tuple[str, Sequence[int]]]:
    """Yields methods and their seeds: what is chosen, or tunes for it."""
    sources = {(self.sweep[name].rates_of, method) for name, method in chosen}
    for method in study.methods:
      if (study.name, method) in chosen:
        yield method, study.seeds
      elif (study.name, method) in sources:
        yield method, study.seeds[:1]

  def _require_same_config(self, run: settings.Run) -> None:
    folder = self.folder(run)
    path = folder / provenance.CONFIG
    if not path.exists():
      return
    config = self.config(run)
    if json.loads(config.to_json()) != json.loads(path.read_text()):
      provenance.record(config, folder)  # raises, and names the fields
