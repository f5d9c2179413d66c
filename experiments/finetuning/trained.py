"""The decoder that a run has come to."""

import os
import pathlib
from typing import Any, NamedTuple

import jax
import ml_collections

from experiments import (
  assembly,
  checkpoints,
  errors,
  evaluate,
  executors,
  provenance,
  tasks,
)
from experiments import config as config_lib
from experiments.finetuning import weights
from experiments.models import decoder


class Trained(NamedTuple):
  """A decoder of a run.

  Attributes:
    config: of the run.
    model: the decoder.
    params: its parameters, those that all workers share.
  """

  config: ml_collections.ConfigDict
  model: decoder.DecoderConfig
  params: dict[str, Any]


def load(workdir: str | os.PathLike) -> Trained:
  """Returns the newest checkpoint of a run.

  Args:
    workdir: the run's directory.

  Raises:
    UserError: if there is no run, or one whose model is no decoder.
  """
  config = config_lib.read(pathlib.Path(workdir) / provenance.CONFIG)
  objective = tasks.objective(config)
  if not isinstance(objective.model, decoder.DecoderConfig):
    raise errors.UserError(
      f'The task of {workdir} is {config.task!r}: its model has no texts.'
    )
  # Any executor can read what another one wrote. The values are replaced, so
  # given weights need not be read.
  state = executors.get('simulated', config.workers).init(
    assembly.optimizer(config, objective),
    decoder.init(objective.model, jax.random.key(0)),
  )
  with checkpoints.Checkpoints(workdir) as store:
    _, state, _ = store.restore(state)
  return Trained(config, objective.model, evaluate.shared_params(state))


def export(workdir: str | os.PathLike, folder: str | os.PathLike) -> None:
  """Writes the model of a run in Hugging Face's layout.

  Args:
    workdir: the run's directory.
    folder: of the weights, without a model yet. If the run began with given
      weights, it gets their tokenizer, too.

  Raises:
    UserError: if there is no run, or one whose model they have not.
  """
  run = load(workdir)
  begun_with = run.config.data.get('model_path', '')
  weights.save(run.params, run.model, folder, begun_with=begun_with)


def tokenizer(config: ml_collections.ConfigDict) -> str:
  """Returns the name of a run's vocabulary, as `vocabularies` has it."""
  return config.data.tokenizer or config.data.get('model_path', '')
