"""The operations of RandAugment, on pictures of pillow.

The list is the paper's, 14 with the identity. How far each goes at the full
magnitude is not in the paper; these are torchvision's numbers, on a scale of 10
instead of 30. What a rotation or a shift uncovers is grey.

References:
  Cubuk et al., RandAugment <https://arxiv.org/abs/1909.13719>, 2020.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

MAX_MAGNITUDE = 10

_GREY = 128
_DEGREES = 30.0
_SHEAR = 0.3
_SHIFT = 150 / 331  # of the side
_ENHANCEMENT = 0.9
_POSTERIZED_BITS = 4  # of 8


def apply(
  picture: Image.Image,
  operations: int,
  magnitude: float,
  random: np.random.Generator,
) -> Image.Image:
  """Applies operations drawn at random, one after the other.

  Args:
    picture: grey or RGB.
    operations: how many; the same one may come again.
    magnitude: from 0 to `MAX_MAGNITUDE`.
    random: where chance comes from.
  """
  names = list(OPERATIONS)
  for _ in range(operations):
    operation = OPERATIONS[names[random.integers(len(names))]]
    # Drawn always, also for operations without directions.
    sign = 1 - 2 * int(random.integers(2))
    picture = operation(picture, magnitude / MAX_MAGNITUDE, sign)
  return picture


def _affine(picture, matrix):
  return picture.transform(
    picture.size,
    Image.Transform.AFFINE,
    matrix,
    Image.Resampling.NEAREST,
    fillcolor=_fill(picture),
  )


def _fill(picture):
  return _GREY if picture.mode == 'L' else (_GREY,) * 3


def _rotate(picture, strength, sign):
  angle = sign * strength * _DEGREES
  return picture.rotate(angle, fillcolor=_fill(picture))


def _shear_x(picture, strength, sign):
  return _affine(picture, (1, sign * strength * _SHEAR, 0, 0, 1, 0))


def _shear_y(picture, strength, sign):
  return _affine(picture, (1, 0, 0, sign * strength * _SHEAR, 1, 0))


def _shift_x(picture, strength, sign):
  pixels = sign * strength * _SHIFT * picture.width
  return _affine(picture, (1, 0, pixels, 0, 1, 0))


def _shift_y(picture, strength, sign):
  pixels = sign * strength * _SHIFT * picture.height
  return _affine(picture, (1, 0, 0, 0, 1, pixels))


def _solarize(picture, strength, sign):
  del sign
  # At 256 nothing is inverted.
  return ImageOps.solarize(picture, round(256 * (1 - strength)))


def _posterize(picture, strength, sign):
  del sign
  bits = 8 - round(strength * (8 - _POSTERIZED_BITS))
  return ImageOps.posterize(picture, bits)


def _enhance(kind):
  def operation(picture, strength, sign):
    return kind(picture).enhance(1 + sign * strength * _ENHANCEMENT)

  return operation


def _plain(function):
  return lambda picture, _strength, _sign: function(picture)


# Picture, strength from 0 to 1, sign 1 or -1; to a picture of the same size.
OPERATIONS: dict[str, Callable[[Image.Image, float, int], Image.Image]] = {
  'identity': _plain(lambda picture: picture),
  'auto_contrast': _plain(ImageOps.autocontrast),
  'equalize': _plain(ImageOps.equalize),
  'rotate': _rotate,
  'solarize': _solarize,
  'color': _enhance(ImageEnhance.Color),
  'posterize': _posterize,
  'contrast': _enhance(ImageEnhance.Contrast),
  'brightness': _enhance(ImageEnhance.Brightness),
  'sharpness': _enhance(ImageEnhance.Sharpness),
  'shear_x': _shear_x,
  'shear_y': _shear_y,
  'shift_x': _shift_x,
  'shift_y': _shift_y,
}
