"""Fields that all configs have, so that a config says what is its own."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import ml_collections

from experiments import errors

NO_AUGMENTATION = {
  'crop': 'none',  # or 'padded', 'resized'
  'padding': 4,  # pixels, of 'padded'
  'min_area': 0.08,  # share of the image, of 'resized'
  'flip': False,
  'randaugment_ops': 0,
  'randaugment_magnitude': 0.0,  # 0 to 10
  'mixup_alpha': 0.0,
}


def run(
  args: ml_collections.ConfigDict,
  task: str,
  num_steps: int,
  batch_size: int,
  eval_limit: int,
  points: tuple[int, int, int],
  micro_batches: int = 1,
) -> ml_collections.ConfigDict:
  """Returns the fields of a run; data, model and optimizer are to be added.

  Args:
    args: method, workers, sync_every, seed.
    task: a key of `tasks.TASKS`.
    num_steps: local steps of every worker, cut to whole rounds.
    batch_size: examples per worker and step.
    eval_limit: units of an evaluation while training; at the end it is all.
    points: how often to log, to evaluate and to write a checkpoint, in steps;
      whole rounds are made of them.
    micro_batches: parts of a batch, one after the other.

  Raises:
    UserError: for numbers below 1.
  """
  for name in ('workers', 'sync_every'):
    if args[name] < 1:
      raise errors.UserError(f'{name} must be at least 1, not {args[name]}.')

  if num_steps < args.sync_every:
    raise errors.UserError(
      f'sync_every={args.sync_every} is more than the {num_steps} steps of the'
      ' run.'
    )

  def rounds(steps):
    return max(1, steps // args.sync_every) * args.sync_every

  log_every, eval_every, checkpoint_every = map(rounds, points)
  return ml_collections.ConfigDict(
    {
      'task': task,
      'seed': args.seed,  # of initialisation, data order and dropout
      'method': args.method,
      'workers': args.workers,
      'sync_every': args.sync_every,  # local steps in a round
      'num_steps': rounds(num_steps),  # local steps, of every worker
      'batch_size': batch_size,  # examples per worker and step
      'micro_batches': micro_batches,  # parts of it, one after the other
      'presence': 1.0,  # probability that a worker takes part in a step
      'adversaries': 0,  # workers that negate their gradients
      # All in local steps, whole rounds of them.
      'log_every': log_every,
      'eval_every': eval_every,
      'checkpoint_every': checkpoint_every,
      'eval_limit': eval_limit,  # units, while training; at the end all
    }
  )


def text(tokenizer: str, context: int, **fields: Any) -> dict[str, Any]:
  """Returns `config.data` of a text, in token files unless told otherwise."""
  return {
    'source': 'token_files',  # or 'embedded'
    'corpus': '',  # a key of `corpora.CORPORA`, of 'embedded'
    'path': '',  # a folder, of 'token_files'
    'tokenizer': tokenizer,
    'sharding': 'disjoint',  # or 'whole': all workers see all windows
    'context': context,  # tokens
  } | fields


def images(
  image_size: int,
  classes: int,
  mean: tuple[float, ...],
  std: tuple[float, ...],
  augmentation: Mapping[str, Any] | None = None,
  **fields: Any,
) -> dict[str, Any]:
  """Returns `config.data` of images, of TFDS unless told otherwise."""
  return {
    'source': 'tfds',  # or 'mnist_5k', 'digits', 'fashion_mnist'
    'name': '',  # of the set, of 'tfds'
    'path': '',  # of its folder; empty: where it usually is
    'image_size': image_size,
    'central_fraction': 1.0,  # that is cut out to evaluate
    'classes': classes,
    'mean': mean,  # of the pixels from 0 to 1, a number for each channel
    'std': std,
    'sharding': 'disjoint',  # or 'whole': all workers see all images
    'augmentation': NO_AUGMENTATION | dict(augmentation or {}),
  } | fields


def model(preset: Any, *known: str) -> dict[str, Any]:
  """Returns `config.model`: a preset without what data or tokenizer decide."""
  fields = dataclasses.asdict(preset)
  return {name: fields[name] for name in fields if name not in known}


def decoder(preset: Any) -> dict[str, Any]:
  """Returns `config.model` of a preset of `models.decoder`."""
  return model(preset, 'vocab_size', 'context')


def vit(preset: Any) -> dict[str, Any]:
  """Returns `config.model` of a preset of `models.vit`."""
  return model(preset, 'image_size', 'channels', 'classes')


def optimizer(
  every_method: Mapping[str, Mapping[str, Any]], method: str
) -> dict[str, Any]:
  """Returns `config.optimizer`: the keyword arguments of a method.

  Raises:
    UserError: for an unknown method.
  """
  return dict(errors.lookup(every_method, method, 'method'))
