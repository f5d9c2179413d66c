"""Batches of images for all workers, augmented, read ahead.

What lies in memory and is not augmented is taken by plain indexing. Everything
else goes through grain: a random-access data set whose element i is the batch
of one worker at one step, read ahead by threads as long as rounds follow each
other; a round from elsewhere (a run that resumes) starts reading there.

The chance in a batch is a function of (seed, step, worker), like its examples
(`experiments.data.shards`): nothing to save in a checkpoint, and any number of
processes sees the same batches.
"""

from collections.abc import Iterator
import sys
import threading
from typing import NamedTuple

import ml_collections
import numpy as np

from experiments import errors
from experiments.data import augmentation as augmentation_lib
from experiments.data import images, shards

# Threads that decode and augment; pillow works without the interpreter's lock.
_THREADS = 16
# Batches that are ready at most, for all threads together.
_BATCHES_AHEAD = 32
# Between this and the orders of the shards no stream of chance is shared.
_STREAM = 1


class Batch(NamedTuple):
  """Images uint8 `[batch, ...]`, labels int32 or float32 `[batch, ...]`."""

  images: np.ndarray
  labels: np.ndarray


class ImageBatches:
  """Training batches of the workers of `schedule.rows`.

  Args:
    source: the images.
    schedule: which of them a worker sees at which step.
    augmentation: what is done to them.
    classes: number of classes, for MixUp.
    seed: of the augmentation.
  """

  def __init__(
    self,
    source: images.Source,
    schedule: shards.Shards,
    augmentation: augmentation_lib.Augmentation,
    classes: int,
    seed: int,
  ):
    self._source = source
    self._schedule = schedule
    self._augmentation = augmentation
    self._classes = classes
    self._seed = seed
    self._plain = source.in_memory and not augmentation.changes_images
    self._ahead: Iterator[Batch] | None = None
    self._next_step = None
    self._lock = threading.Lock()
    self._known: dict[int, np.ndarray] = {}  # indices by step
    if not self._plain:
      # Now, not after a minute of compilation.
      _grain()

  def round(self, first_step: int, steps: int) -> dict[str, np.ndarray]:
    """Returns the batches of consecutive steps.

    Args:
      first_step: the first of them, counted from 0.
      steps: how many.

    Returns:
      `images`, uint8 `[rows, steps, batch, height, width, channels]`, and
      `labels`, int32 `[rows, steps, batch]` or, with MixUp, float32 `[rows,
      steps, batch, classes]` that sum to 1.
    """
    if self._plain and not self._augmentation.mixup_alpha:
      found = self._source.read(self._schedule.indices(first_step, steps))
      return Batch(*found)._asdict()
    rows = len(self._schedule.rows)
    if self._plain:
      elements = range(first_step * rows, (first_step + steps) * rows)
      batches = [self._batch(element) for element in elements]
    else:
      batches = self._read_ahead(first_step, steps)
    # Elements go through the rows of a step before the next step.
    return {
      name: np.stack(
        [
          np.stack([getattr(b, name) for b in batches[row::rows]])
          for row in range(rows)
        ]
      )
      for name in Batch._fields
    }

  def epoch(self, step: int) -> float:
    """Returns how often the mean example has been seen before `step`."""
    return self._schedule.epoch(step)

  def close(self) -> None:
    """Stops reading ahead."""
    if self._ahead is not None:
      self._ahead.close()
      self._ahead = None

  def _read_ahead(self, first_step: int, steps: int) -> list[Batch]:
    rows = len(self._schedule.rows)
    if self._ahead is None or self._next_step != first_step:
      self.close()
      grain = _grain()
      elements = grain.MapDataset.range(first_step * rows, sys.maxsize)
      self._ahead = iter(
        elements.map(self._batch).to_iter_dataset(
          grain.ReadOptions(
            num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD
          )
        )
      )
    self._next_step = None  # until all is well
    batches = [next(self._ahead) for _ in range(steps * rows)]
    self._next_step = first_step + steps
    return batches

  def _batch(self, element: int) -> Batch:
    """Returns the batch of one worker at one step."""
    step, row = divmod(element, len(self._schedule.rows))
    worker = self._schedule.rows[row]
    indices = self._indices(step)[row]
    random = np.random.default_rng([self._seed, step, worker, _STREAM])
    augmentation = self._augmentation
    if augmentation.changes_images:
      whole = augmentation.crop == 'resized'
      read = self._source.examples if whole else self._source.read
      found, labels = read(indices)
      size = self._source.size
      pixels = np.stack([augmentation(image, size, random) for image in found])
    else:
      pixels, labels = self._source.read(indices)
    if augmentation.mixup_alpha:
      pixels, labels = augmentation_lib.mixup(
        pixels, labels, augmentation.mixup_alpha, self._classes, random
      )
    return Batch(pixels, labels)

  def _indices(self, step: int) -> np.ndarray:
    # Threads work on several rows of a step, and on steps of two epochs: what
    # all need is computed once.
    with self._lock:
      if step not in self._known:
        while len(self._known) >= _BATCHES_AHEAD:
          self._known.pop(next(iter(self._known)))
        self._known[step] = self._schedule.indices(step, 1)[:, 0]
      return self._known[step]


def batches(
  source: images.Source,
  schedule: shards.Shards,
  augmentation: ml_collections.ConfigDict,
  classes: int,
  seed: int,
) -> ImageBatches:
  """Returns the batches of a config.

  Args:
    source: the images.
    schedule: which of them a worker sees at which step.
    augmentation: `config.data.augmentation`.
    classes: number of classes.
    seed: of the augmentation.

  Raises:
    UserError: for a wrong augmentation, or if grain is needed and missing.
  """
  found = augmentation_lib.from_config(augmentation)
  return ImageBatches(source, schedule, found, classes, seed)


def _grain():
  # Here, not above: images in memory do without it.
  try:
    import grain
  except ModuleNotFoundError as error:
    raise errors.UserError(
      'Augmentation and images on disk need grain, which is not installed '
      f"({error}): pip install -e '.[tfds]'."
    ) from error
  return grain
