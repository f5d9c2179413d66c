"""Augmentation of images, and how images get one size without it.

    crop        'none', 'padded' (a window of the image with `padding` black
                pixels around it, as usual for CIFAR-10) or 'resized' (a window
                of random area and shape, as usual for ImageNet)
    padding     in pixels, of 'padded'
    min_area    share of the image, of 'resized'
    flip        left to right, every other time
    randaugment_ops, randaugment_magnitude
                RandAugment: how many operations, and how strong (0 to 10);
                0 operations for none
    mixup_alpha of the Beta distribution of MixUp; 0 for none

Images are uint8 `[height, width, channels]` with 1 or 3 channels. All chance
comes from the numpy generator that is given.

References:
  Cubuk et al., RandAugment <https://arxiv.org/abs/1909.13719>, 2020.
  Zhang et al., mixup <https://arxiv.org/abs/1710.09412>, 2018.
"""

import dataclasses
import math

import ml_collections
import numpy as np
from PIL import Image

from experiments import errors
from experiments.data import randaugment

CROPS = ('none', 'padded', 'resized')
# Of windows of 'resized', width by height, as everybody has it for ImageNet.
_MAX_RATIO = 4 / 3
_TRIES = 10


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """What is done to images; the fields are in the module's docstring."""

  crop: str = 'none'
  padding: int = 4
  min_area: float = 0.08
  flip: bool = False
  randaugment_ops: int = 0
  randaugment_magnitude: float = 0.0
  mixup_alpha: float = 0.0

  def __post_init__(self):
    if self.crop not in CROPS:
      raise errors.unknown('crop', self.crop, CROPS)
    if not 0 < self.min_area <= 1:
      raise errors.UserError(
        f'min_area is a share above 0 and at most 1, not {self.min_area}.'
      )
    if not 0 <= self.randaugment_magnitude <= randaugment.MAX_MAGNITUDE:
      raise errors.UserError(
        f'randaugment_magnitude is from 0 to {randaugment.MAX_MAGNITUDE}, not '
        f'{self.randaugment_magnitude}.'
      )
    for name in ('padding', 'randaugment_ops', 'mixup_alpha'):
      if not 0 <= getattr(self, name) < math.inf:
        raise errors.UserError(
          f'{name} is a number of at least 0, not {getattr(self, name)}.'
        )

  @property
  def changes_images(self) -> bool:
    """Whether there is anything to do to a single image."""
    return self.crop != 'none' or self.flip or self.randaugment_ops > 0

  def __call__(
    self, image: np.ndarray, size: int, random: np.random.Generator
  ) -> np.ndarray:
    """Augments an image.

    Args:
      image: of any size for the crop 'resized'; otherwise `[size, size, ...]`.
      size: height and width of the result.
      random: where chance comes from.
    """
    if self.crop == 'resized':
      image = _resized_crop(image, size, self.min_area, random)
    elif self.crop == 'padded':
      image = _padded_crop(image, self.padding, random)
    if self.flip and random.integers(2):
      image = image[:, ::-1]
    if self.randaugment_ops:
      picture = randaugment.apply(
        _picture(image),
        self.randaugment_ops,
        self.randaugment_magnitude,
        random,
      )
      image = _array(picture)
    return image


def from_config(config: ml_collections.ConfigDict) -> Augmentation:
  """Returns the augmentation of `config.data.augmentation`.

  Raises:
    UserError: for a field that is missing, unknown or out of range.
  """
  fields = {field.name for field in dataclasses.fields(Augmentation)}
  for name in config:
    if name not in fields:
      raise errors.unknown('augmentation field', name, fields)
  if missing := fields - set(config):
    raise errors.UserError(
      f'config.data.augmentation lacks {", ".join(sorted(missing))}.'
    )
  return Augmentation(**config)


def fit(image: np.ndarray, size: int, central_fraction: float) -> np.ndarray:
  """Cuts out the central square and resizes it, bilinearly.

  Args:
    image: of any size.
    size: height and width of the result.
    central_fraction: side of the square, as a share of the shorter side. 0.875
      with size 224 is the common validation of ImageNet (256 to 224).

  Returns:
    uint8 `[size, size, channels]`; the image itself where nothing is to do.
  """
  height, width = image.shape[:2]
  side = max(1, round(central_fraction * min(height, width)))
  top, left = (height - side) // 2, (width - side) // 2
  return _cut(image, top, left, side, side, size)


def fit_all(
  images: np.ndarray, size: int, central_fraction: float
) -> np.ndarray:
  """Does `fit` to all images of an array `[n, height, width, channels]`."""
  if images.shape[1:3] == (size, size) and central_fraction == 1:
    return images
  return np.stack([fit(image, size, central_fraction) for image in images])


def mixup(
  images: np.ndarray,
  labels: np.ndarray,
  alpha: float,
  classes: int,
  random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Mixes every image of a batch with another, and their labels alike.

  One share, drawn from Beta(alpha, alpha), for the whole batch, as in the
  paper's code.

  Args:
    images: uint8 `[batch, ...]`.
    labels: int `[batch]`.
    alpha: the parameter of the distribution.
    classes: number of classes.
    random: where chance comes from.

  Returns:
    uint8 images and float32 `[batch, classes]` that sum to 1.
  """
  share = random.beta(alpha, alpha)
  others = random.permutation(len(labels))
  mixed = share * images + (1 - share) * images[others]
  one_hot = np.eye(classes, dtype=np.float32)[labels]
  targets = share * one_hot + (1 - share) * one_hot[others]
  return np.rint(mixed).astype(np.uint8), targets.astype(np.float32)


def _padded_crop(
  image: np.ndarray, padding: int, random: np.random.Generator
) -> np.ndarray:
  height, width = image.shape[:2]
  top, left = random.integers(2 * padding + 1, size=2)
  padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
  return padded[top : top + height, left : left + width]


def _resized_crop(
  image: np.ndarray, size: int, min_area: float, random: np.random.Generator
) -> np.ndarray:
  """Inception's crop: tries a few windows; if none fits, the central square."""
  height, width = image.shape[:2]
  for _ in range(_TRIES):
    area = height * width * random.uniform(min_area, 1)
    limit = math.log(_MAX_RATIO)
    ratio = math.exp(random.uniform(-limit, limit))
    rows = round(math.sqrt(area / ratio))
    columns = round(math.sqrt(area * ratio))
    if 0 < rows <= height and 0 < columns <= width:
      top = random.integers(height - rows + 1)
      left = random.integers(width - columns + 1)
      return _cut(image, top, left, rows, columns, size)
  return fit(image, size, 1.0)


def _cut(
  image: np.ndarray, top: int, left: int, rows: int, columns: int, size: int
) -> np.ndarray:
  """Cuts out a window and resizes it."""
  window = image[top : top + rows, left : left + columns]
  if (rows, columns) == (size, size):
    return window
  resized = _picture(window).resize((size, size), Image.Resampling.BILINEAR)
  return _array(resized)


def _picture(image: np.ndarray) -> Image.Image:
  channels = image.shape[-1]
  if channels not in (1, 3):
    raise errors.UserError(f'Images have 1 or 3 channels, not {channels}.')
  pixels = image[..., 0] if channels == 1 else image
  return Image.fromarray(np.ascontiguousarray(pixels))


def _array(picture: Image.Image) -> np.ndarray:
  pixels = np.asarray(picture)
  return pixels[..., None] if pixels.ndim == 2 else pixels
