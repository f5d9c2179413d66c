"""Labelled images: what a run trains on and is evaluated on.

    config.data.source        'mnist_5k', 'digits', 'fashion_mnist' or 'tfds'
    config.data.name          the data set of TFDS; else empty
    config.data.path          the folder of the files; empty: where they
                              usually are
    config.data.image_size    height and width that the model sees
    config.data.central_fraction
                              of the shorter side: what `read` cuts out before
                              it resizes (1.0; 0.875 is usual for ImageNet)
    config.data.augmentation  see `experiments.data.augmentation`

The two sides of a data set are sources:

    len(source)               number of examples
    source.size               height and width of the images of `read`
    source.in_memory          whether reading them costs nothing
    source.read(indices)      images uint8 [n, height, width, channels], labels
                              int32 [n]
    source.examples(indices)  the same before anything is cut off or resized,
                              as a sequence: sizes may differ
"""

from collections.abc import Sequence
import dataclasses
from typing import Protocol

import ml_collections
import numpy as np

from experiments import errors
from experiments.data import augmentation, image_sources


class Source(Protocol):
  """One side of a data set; see the module's docstring."""

  size: int
  in_memory: bool

  def __len__(self) -> int: ...

  def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of one size, and labels."""

  def examples(
    self, indices: np.ndarray
  ) -> tuple[Sequence[np.ndarray], np.ndarray]:
    """Returns images of any size, and labels."""


@dataclasses.dataclass(frozen=True)
class Images:
  """A data set of labelled images.

  Attributes:
    train: the source to train on.
    validation: the held-out source.
    classes: number of classes; labels are 0 .. classes - 1.
    shape: (height, width, channels) of the images of `read`.
    name: of the data set.
    sha256: its checksum.
  """

  train: Source
  validation: Source
  classes: int
  shape: tuple[int, int, int]
  name: str
  sha256: str


class Memory:
  """A source whose images are in memory.

  Args:
    images: uint8 `[n, height, width, channels]`.
    labels: int32 `[n]`.
    size: height and width of what `read` returns.
    central_fraction: see `augmentation.fit`.
  """

  in_memory = True

  def __init__(
    self,
    images: np.ndarray,
    labels: np.ndarray,
    size: int,
    central_fraction: float = 1.0,
  ):
    self.size = size
    self._examples = images
    self._labels = labels
    # Once, before training: it takes seconds where it changes anything.
    self._images = augmentation.fit_all(images, size, central_fraction)

  def __len__(self) -> int:
    return len(self._labels)

  def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of one size, and labels."""
    return self._images[indices], self._labels[indices]

  def examples(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of their own size, and labels."""
    return self._examples[indices], self._labels[indices]


def load(data: ml_collections.ConfigDict) -> Images:
  """Loads the images of a config.

  Args:
    data: `config.data`; its fields are in the module's docstring.

  Raises:
    UserError: for a source that is unknown or not there, and for fields that
      contradict each other.
  """
  size, fraction = data.image_size, data.central_fraction
  if size < 1:
    raise errors.UserError(f'image_size must be at least 1, not {size}.')
  if not 0 < fraction <= 1:
    raise errors.UserError(
      f'central_fraction must be above 0 and at most 1, not {fraction}.'
    )
  if data.source == 'tfds':
    # Here, not above: other sources do without its packages.
    from experiments.data import tfds_sources

    found = tfds_sources.images(data.name, data.path, size, fraction)
    name = data.name
    train, validation = found.train, found.validation
    classes, channels = found.classes, found.channels
  else:
    if data.source not in image_sources.SOURCES:
      allowed = [*image_sources.SOURCES, 'tfds']
      raise errors.unknown('source of images', data.source, allowed)
    if data.name:
      raise errors.UserError(
        f'config.data.name is for --config.data.source=tfds; {data.source!r} '
        f'has no set {data.name!r}: leave it empty.'
      )
    found = image_sources.read(data.source, data.path)
    name = data.source
    for side, kept in (
      ('train on', found.train),
      ('hold out', found.validation),
    ):
      if not len(kept.labels):
        raise errors.UserError(f'{name} has no images to {side}.')
    classes = 1 + max(
      int(side.labels.max()) for side in (found.train, found.validation)
    )
    channels = found.train.images.shape[-1]
    train, validation = (
      Memory(*side, size, fraction) for side in (found.train, found.validation)
    )
  return Images(
    train=train,
    validation=validation,
    classes=classes,
    shape=(size, size, channels),
    name=name,
    sha256=found.sha256,
  )
