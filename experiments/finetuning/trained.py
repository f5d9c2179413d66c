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
from experiments.finetuning import architectures, weights
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
  config, objective = _read(workdir)
  # Any executor can read what another one wrote. The values are replaced, so
  # given weights need not be read.
  state = executors.get('simulated', config.workers).init(
    assembly.optimizer(config, objective),
    decoder.init(objective.model, jax.random.key(0)),
  )
  with checkpoints.Checkpoints(workdir) as store:
    _, state, _ = store.restore(state)
  return Trained(config, objective.model, evaluate.shared_params(state))


def export(
  workdir: str | os.PathLike,
  folder: str | os.PathLike,
  model_path: str | os.PathLike | None = None,
) -> None:
  """Writes the model of a run in Hugging Face's layout.

  Args:
    workdir: the run's directory.
    folder: of the weights, without a model yet. If the run began with given
      weights, it gets their tokenizer, too.
    model_path: folder of the weights that the run began with; empty: without
      any; None: where the run's config has them.

  Raises:
    UserError: if there is no run, or one whose model they have not, or if a
      folder is not what it is to be.
  """
  config, objective = _read(workdir)
  if model_path is None:
    model_path = config.data.get('model_path', '')
  # What may be wrong is found here, not after the work.
  if model_path:
    _require_begin(model_path, objective.model)
  weights.require_room(objective.model, folder)
  run = load(workdir)
  weights.save(run.params, run.model, folder, begun_with=model_path)


def tokenizer(config: ml_collections.ConfigDict) -> str:
  """Returns the name of a run's vocabulary, as `vocabularies` has it.

  Raises:
    UserError: if it was that of given weights, which are not there any more.
  """
  if config.data.tokenizer:
    return config.data.tokenizer
  model_path = config.data.get('model_path', '')
  if model_path and not pathlib.Path(model_path).exists():
    raise errors.UserError(
      f'The tokenizer of this run is that of the weights in {model_path}, which'
      ' is not there. Put them back, or a link to where they are now.'
    )
  return model_path


def _read(
  workdir: str | os.PathLike,
) -> tuple[ml_collections.ConfigDict, tasks.Objective]:
  """Returns the config of a run and what it trained, a decoder."""
  config = config_lib.read(pathlib.Path(workdir) / provenance.CONFIG)
  objective = tasks.objective(config)
  if not isinstance(objective.model, decoder.DecoderConfig):
    raise errors.UserError(
      f'The task of {workdir} is {config.task!r}: its model has no texts.'
    )
  return config, objective


def _require_begin(
  model_path: str | os.PathLike, model: decoder.DecoderConfig
) -> None:
  """Sees that a folder has the weights that a run began with."""
  if not (pathlib.Path(model_path) / architectures.CONFIG).is_file():
    raise errors.UserError(
      f'The run began with the weights in {model_path}, and'
      f' {architectures.CONFIG} is not there: their tokenizer belongs to what'
      ' is written. If they have been moved, say where to with'
      ' --model_path=DIR; --model_path= does without a tokenizer.'
    )
  architectures.require_same(model, model_path)
