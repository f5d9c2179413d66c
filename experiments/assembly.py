"""What a config asks for, put together: data, model, method, workers, program.

The training loop runs it, and so does whatever looks at how that runs.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import ml_collections
import numpy as np
import optax

from experiments import (
  errors,
  faults,
  hosts,
  methods,
  plans,
  ranges,
  rounds,
  tasks,
  updates,
)
import signmomentum as sm


@dataclasses.dataclass(frozen=True)
class Assembly:
  """All that rounds are made of; nothing has run yet.

  Attributes:
    config: the experiment.
    team: the workers.
    exchange: passes data between them and this process.
    task: model and data, with the batches of the workers of this process.
    params: its first parameters.
    tx: the method.
    faults: what goes wrong.
  """

  config: ml_collections.ConfigDict
  team: sm.Workers
  exchange: hosts.Exchange
  task: tasks.Task
  params: optax.Params
  tx: optax.GradientTransformationExtraArgs
  faults: faults.Faults

  @property
  def parameters(self) -> int:
    """Number of parameters of the model."""
    return sum(leaf.size for leaf in jax.tree.leaves(self.params))

  @property
  def units_per_step(self) -> int:
    """What all workers together see in a step, in units of the task."""
    config = self.config
    each = config.batch_size * self.task.objective.units_per_example
    return config.workers * each

  def state(self) -> sm.WorkerState:
    """The state that a run begins with."""
    return self.team.init(self.tx, self.params)

  def program(
    self, tx: optax.GradientTransformationExtraArgs | None = None
  ) -> Callable:
    """The round of all workers, of the state and `arguments`.

    Args:
      tx: makes the updates instead of the method; its state is the method's.
    """
    task = self.task
    return self.team.step(round_of(self.config, tx or self.tx, task.objective))

  def state_shapes(self) -> sm.WorkerState:
    """The shapes of `state`, and where it lies."""
    return updates.state_shapes(self.tx, self.params, self.team)

  def batches(self, step: int) -> Any:
    """The batches of the round that a step is in, for `arguments`."""
    sync_every = self.config.sync_every
    return self.task.data.round(step - step % sync_every, sync_every)

  def arguments(
    self, batches: Any, first: int, start: int, stop: int
  ) -> tuple[Any, ...]:
    """What `program` takes after the state.

    Always of the same types: nothing is compiled twice.

    Args:
      batches: those of the round.
      first: its first step.
      start: where in the round to begin.
      stop: where to end.
    """
    inputs = jax.tree.map(self.exchange.scatter, batches)
    return (inputs, *map(np.int32, (first, start, stop)))


def build(config: ml_collections.ConfigDict, team: sm.Workers) -> Assembly:
  """Puts together what a config asks for.

  Args:
    config: the experiment.
    team: the workers.

  Raises:
    UserError: for a mistake in the config.
  """
  exchange = hosts.Exchange(team)
  task = tasks.load(config, exchange.own)
  return Assembly(
    config=config,
    team=team,
    exchange=exchange,
    task=task,
    params=task.objective.init(jax.random.key(config.seed)),
    tx=optimizer(config, task.objective),
    faults=faults.get(config),
  )


def check(config: ml_collections.ConfigDict) -> None:
  """Finds mistakes in a config before anything is trained.

  Raises:
    UserError: for the first one.
  """
  ranges.check(config)
  _require_whole_rounds(config)
  if config.batch_size % config.micro_batches:
    raise errors.UserError(
      f'batch_size={config.batch_size} cannot be cut into'
      f' micro_batches={config.micro_batches} equal parts.'
    )
  optimizer(config, tasks.objective(config))


def round_of(
  config: ml_collections.ConfigDict,
  tx: optax.GradientTransformationExtraArgs,
  objective: tasks.Objective,
) -> Callable:
  """Returns what one worker does in a round, for `Workers.step`."""
  return rounds.program(
    tx,
    objective.loss,
    config.sync_every,
    config.seed,
    faults.get(config),
    config.micro_batches,
    objective.targets,
  )


def optimizer(
  config: ml_collections.ConfigDict, objective: tasks.Objective
) -> optax.GradientTransformationExtraArgs:
  """Returns the transformation of a config.

  Raises:
    UserError: for fields of the optimizer that are not its own, or too large or
      too small.
  """
  plan = plans.Plan(
    num_steps=config.num_steps,
    sync_every=config.sync_every,
    decay_mask=objective.decay_mask,
    seed=config.seed,
  )
  try:
    return methods.build(config.method, config.optimizer, plan)
  except errors.UserError:
    raise
  except ValueError as error:
    raise errors.UserError(f'The config group optimizer: {error}') from error


def _require_whole_rounds(config: ml_collections.ConfigDict) -> None:
  for field in ('num_steps', 'log_every', 'eval_every', 'checkpoint_every'):
    value, rest = config[field], config[field] % config.sync_every
    if value < 1 or rest:
      below = max(value - rest, config.sync_every)
      raise errors.UserError(
        f'{field}={value} is not a whole number of rounds of'
        f' sync_every={config.sync_every} steps. Near it are {below} and'
        f' {below + config.sync_every}.'
      )
