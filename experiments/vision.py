"""The task of telling what is in an image."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from experiments import errors, evaluate, tasks
from experiments.data import augmentation, images, pipeline, shards
from experiments.models import vit

# Images in a batch of an evaluation, and batches that are read together.
_BATCH, _BATCHES = 250, 8
_TOP = 5


@dataclasses.dataclass(frozen=True)
class Classify:
  """A ViT and the cross-entropy of the class.

  Attributes:
    model: the ViT.
    mean: of the pixels of each channel, from 0 to 1.
    std: their standard deviation.
    mixed: whether labels are shares of classes, as of MixUp.
  """

  model: vit.ViTConfig
  mean: tuple[float, ...]
  std: tuple[float, ...]
  mixed: bool
  unit = 'images'
  units_per_example = 1

  def init(self, key: jax.Array) -> optax.Params:
    """Returns new parameters."""
    return vit.init(self.model, key)

  def decay_mask(self, params: optax.Params) -> Any:
    """Returns True for matrices."""
    return vit.decay_mask(params)

  def loss(
    self,
    params: optax.Params,
    batch: dict[str, jax.Array],
    key: jax.Array | None,
  ) -> jax.Array:
    """Returns the mean of a batch: `images` and `labels`, as in `batch`."""
    logits_BxV = self._logits(params, batch['images'], key)
    if self.mixed:
      losses_B = optax.softmax_cross_entropy(logits_BxV, batch['labels'])
    else:
      losses_B = optax.softmax_cross_entropy_with_integer_labels(
        logits_BxV, batch['labels']
      )
    return jnp.mean(losses_B)

  def targets(self, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns the number of images."""
    return jnp.float32(len(batch['labels']))

  def shapes(self) -> optax.Params:
    """Returns the shapes of the parameters."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def batch(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes: bytes, and classes or their shares if mixed."""
    m = self.model
    shape = (batch_size, m.image_size, m.image_size, m.channels)
    labels = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    if self.mixed:
      labels = jax.ShapeDtypeStruct((batch_size, m.classes), jnp.float32)
    return {'images': jax.ShapeDtypeStruct(shape, jnp.uint8), 'labels': labels}

  def scores(
    self, params: optax.Params, batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns nats and hits of each image; `there` tells those that fill up."""
    logits_BxV = self._logits(params, batch['images'], None)
    labels_B, there_B = batch['labels'], batch['there']
    nats_B = optax.softmax_cross_entropy_with_integer_labels(
      logits_BxV, labels_B
    )
    own_Bx1 = jnp.take_along_axis(logits_BxV, labels_B[:, None], axis=-1)
    # Classes that are not behind; a NaN is not, and nothing is behind it.
    ahead_B = jnp.sum(~(logits_BxV < own_Bx1), axis=-1) - 1
    scores = {
      'validation_loss': nats_B,
      'top_1': ahead_B < 1,
      f'top_{_TOP}': ahead_B < _TOP,
    }
    return {evaluate.COUNT: there_B.astype(jnp.int32)} | {
      name: jnp.where(there_B, score, 0).astype(jnp.float32)
      for name, score in scores.items()
    }

  def _logits(self, params, images_BxHxWxC, key):
    pixels = images_BxHxWxC.astype(jnp.float32) / 255
    mean, std = (np.float32([[[n]]]) for n in (self.mean, self.std))
    return vit.apply(self.model, params, (pixels - mean) / std, key)


def objective(config: ml_collections.ConfigDict) -> Classify:
  """Returns the model and the loss of a config.

  Raises:
    UserError: if the means are not of as many channels as the deviations.
  """
  data = config.data
  numbers = all(isinstance(n, int | float) for n in (*data.mean, *data.std))
  if len(data.mean) != len(data.std) or not numbers or min(data.std) <= 0:
    raise errors.UserError(
      f'data.mean={data.mean} and data.std={data.std} must have a number for'
      ' each channel, those of data.std above 0.'
    )
  changes = augmentation.from_config(data.augmentation)
  model = vit.ViTConfig(
    image_size=data.image_size,
    channels=len(data.mean),
    classes=data.classes,
    **config.model,
  )
  mixed = changes.mixup_alpha > 0
  return Classify(model, tuple(data.mean), tuple(data.std), mixed)


def load(config: ml_collections.ConfigDict, only: Sequence[int]) -> tasks.Task:
  """Returns the task of a config, with the batches of some workers.

  Raises:
    UserError: if the data is not there, or not what the config says.
  """
  classify = objective(config)
  found = images.load(config.data)
  m = classify.model
  _require('data.classes', m.classes, found.classes)
  _require(
    'the shape by data.image_size and data.mean',
    (m.image_size, m.image_size, m.channels),
    tuple(found.shape),
  )
  own = shards.Shards(
    len(found.train),
    config.batch_size,
    config.workers,
    config.seed,
    only,
    config.data.sharding,
  )
  return tasks.Task(
    objective=classify,
    data=pipeline.batches(
      found.train, own, config.data.augmentation, m.classes, config.seed
    ),
    evaluator=functools.partial(evaluator, classify, found.validation),
    baselines=dict,
    source=found.name,
    sha256=found.sha256,
  )


def evaluator(
  classify: Classify,
  source: images.Source,
  max_images: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[[optax.Params], tasks.Measures]:
  """Returns what measures parameters on held-out images.

  Args:
    classify: the model.
    source: the images.
    max_images: take so many, spread evenly; all if None.
    mesh: as in `evaluate.estimates`.
  """
  count = min(len(source), max_images or len(source))
  indices = np.arange(count) * len(source) // count

  def measure(params):
    chunks = _chunks(source, indices)
    return evaluate.estimates(classify.scores, params, chunks, mesh)

  return measure


def _chunks(
  source: images.Source, indices: np.ndarray
) -> Iterator[dict[str, np.ndarray]]:
  """Yields chunks of batches; the last one is filled up."""
  size = min(_BATCH, indices.size)
  chunk = size * min(_BATCHES, -(-indices.size // size))
  for start in range(0, indices.size, chunk):
    pixels, labels = source.read(indices[start : start + chunk])
    there = np.ones(len(labels), bool)
    yield {
      name: _filled(values, chunk).reshape(-1, size, *values.shape[1:])
      for name, values in [
        ('images', pixels),
        ('labels', labels.astype(np.int32)),
        ('there', there),
      ]
    }


def _filled(values: np.ndarray, size: int) -> np.ndarray:
  fill = [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1)
  return np.pad(values, fill)


def _require(what: str, wanted: Any, found: Any) -> None:
  if wanted != found:
    raise errors.UserError(
      f'{what} in the config is {wanted}, of the images it is {found}.'
    )
