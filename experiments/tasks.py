"""Tasks: what a run learns, and how well.

A config names one of `TASKS`, a module with two functions:

    objective(config) -> Objective     model and loss; needs no data
    load(config, only) -> Task         the same with data

`only` are the workers whose batches are wanted. A batch is a tree of arrays
that only its own objective looks into.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib
from typing import Any, NamedTuple, Protocol

import jax
import ml_collections
import optax

from experiments import errors

# Modules by name, imported when they are asked for: text needs no image
# packages, and images need none for text.
TASKS = {
  'language': 'experiments.language',
  'vision': 'experiments.vision',
  'answers': 'experiments.answers',
}


class Objective(Protocol):
  """A model and what it is trained for. Equal ones compile once."""

  # What speed and cost are counted in: 'tokens', 'images'.
  unit: str
  units_per_example: int

  def init(self, key: jax.Array) -> optax.Params:
    """Returns new parameters."""

  def loss(
    self, params: optax.Params, batch: Any, key: jax.Array | None
  ) -> jax.Array:
    """Returns the mean loss of a batch in nats, with dropout if with a key."""

  def targets(self, batch: Any) -> jax.Array:
    """Returns of how many losses the mean of a batch is one."""

  def shapes(self) -> optax.Params:
    """Returns the shapes of the parameters; reads and allocates nothing."""

  def decay_mask(self, params: optax.Params) -> Any:
    """Returns True for what weight decay is meant for."""

  def batch(self, batch_size: int) -> Any:
    """Returns the shapes of a batch."""


class Data(Protocol):
  """The batches of some workers, functions of seed, step and worker."""

  def round(self, first_step: int, steps: int) -> Any:
    """Returns batches: a tree of arrays `[workers, steps, batch_size, ...]`."""

  def epoch(self, step: int) -> float:
    """Returns how often the data has been seen before a step."""


class Estimate(NamedTuple):
  """A mean over examples and its standard error, 0 for a single example."""

  value: float
  error: float


Measures = Mapping[str, Estimate]


@dataclasses.dataclass(frozen=True)
class Task:
  """What is learnt, from what, and how that is measured.

  Attributes:
    objective: model and loss.
    data: to train on.
    evaluator: of a limit, in units (None: everything), and of a mesh (None:
      one device), returns what measures some parameters. There is always a
      `validation_loss`.
    baselines: returns losses that are to be beaten, in nats, by name; some take
      a while to compute.
    source: name of the data.
    sha256: its checksum.
  """

  objective: Objective
  data: Data
  evaluator: Callable[
    [int | None, jax.sharding.Mesh | None], Callable[[optax.Params], Measures]
  ]
  baselines: Callable[[], Mapping[str, float]]
  source: str
  sha256: str


def objective(config: ml_collections.ConfigDict) -> Objective:
  """Returns the model and the loss of a config.

  Raises:
    UserError: for an unknown task, or a mistake in the config.
  """
  try:
    return _module(config).objective(config)
  except (AttributeError, KeyError, TypeError) as error:
    raise errors.UserError(
      f'task={config.task} does not go with the fields of this config: {error}'
    ) from error


def load(config: ml_collections.ConfigDict, only: Sequence[int]) -> Task:
  """Returns the task of a config.

  Args:
    config: the experiment.
    only: make the batches of these workers.

  Raises:
    UserError: for a mistake in the config, or data that is not there.
  """
  return _module(config).load(config, only)


def _module(config: ml_collections.ConfigDict) -> Any:
  return importlib.import_module(errors.lookup(TASKS, config.task, 'task'))
