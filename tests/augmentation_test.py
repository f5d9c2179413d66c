"""Augmentation: sizes, bounds, what moves where, and what chance decides."""

import dataclasses

import ml_collections
import numpy as np
import pytest

from experiments import errors
from experiments.data import augmentation, randaugment


def _image(height=9, width=9, channels=3, seed=0):
  random = np.random.default_rng(seed)
  return random.integers(256, size=(height, width, channels), dtype=np.uint8)


def _random(seed=0):
  return np.random.default_rng(seed)


def test_nothing_is_nothing():
  image = _image()
  nothing = augmentation.Augmentation()
  assert not nothing.changes_images
  assert nothing(image, 9, _random()) is image


def test_flip():
  image = _image()
  flip = augmentation.Augmentation(flip=True)
  random = _random()
  results = [flip(image, 9, random) for _ in range(400)]
  flipped = [np.array_equal(result, image[:, ::-1]) for result in results]
  same = [np.array_equal(result, image) for result in results]
  assert all(a != b for a, b in zip(flipped, same, strict=True))
  # 5 standard deviations of a fair coin.
  assert abs(sum(flipped) - 200) < 50


def test_padded_crop_is_a_window_and_every_window_comes():
  image = np.arange(1, 17, dtype=np.uint8).reshape(4, 4, 1)
  crop = augmentation.Augmentation(crop='padded', padding=1)
  padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
  windows = {
    padded[top : top + 4, left : left + 4].tobytes()
    for top in range(3)
    for left in range(3)
  }
  random = _random()
  results = [crop(image, 4, random) for _ in range(200)]
  assert all(result.shape == image.shape for result in results)
  assert {result.tobytes() for result in results} == windows


@pytest.mark.parametrize('shape', [(40, 30), (30, 40), (8, 8), (3, 90), (1, 1)])
@pytest.mark.parametrize('channels', [1, 3])
def test_resized_crop_has_the_size(shape, channels):
  image = _image(*shape, channels)
  crop = augmentation.Augmentation(crop='resized')
  random = _random()
  for _ in range(20):
    result = crop(image, 8, random)
    assert result.shape == (8, 8, channels)
    assert result.dtype == np.uint8


def test_resized_crop_keeps_to_its_area():
  # The image is a slope: the values in a crop tell which part it has.
  slope = np.tile(np.arange(200, dtype=np.uint8), (200, 1))[..., None]
  random = _random()
  for min_area in (0.08, 0.9):
    crop = augmentation.Augmentation(crop='resized', min_area=min_area)
    widths = [int(np.ptp(crop(slope, 50, random))) for _ in range(200)]
    # At least the root of the area, at the narrowest shape.
    assert min(widths) >= 200 * (min_area * 3 / 4) ** 0.5 - 6
    assert max(widths) > 170
    assert (min(widths) < 90) == (min_area == 0.08)


def test_fit_is_the_centre():
  image = _image(10, 14)
  result = augmentation.fit(image, 5, 0.5)
  np.testing.assert_array_equal(result, image[2:7, 4:9])
  assert augmentation.fit(image, 20, 1.0).shape == (20, 20, 3)
  square = _image(8, 8)
  np.testing.assert_array_equal(augmentation.fit(square, 8, 1.0), square)


def test_fit_of_all_is_fit_of_each():
  several = np.stack([_image(8, 8, 1, seed) for seed in range(3)])
  together = augmentation.fit_all(several, 4, 0.75)
  each = [augmentation.fit(image, 4, 0.75) for image in several]
  np.testing.assert_array_equal(together, each)
  assert augmentation.fit_all(several, 8, 1.0) is several


@pytest.mark.parametrize('name', randaugment.OPERATIONS)
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('sign', [1, -1])
def test_operations(name, channels, sign):
  # Smooth, so that further is more different; an edge; not the full range of
  # values, so that there is contrast to stretch.
  y, x, channel = np.ogrid[:32, :32, :channels]
  image = (50 + 2 * x + 3 * y - 20 * channel).astype(np.uint8)
  image[8:16, 8:16] = 210
  picture = augmentation._picture(image)
  operation = randaugment.OPERATIONS[name]

  def distance(strength):
    result = operation(picture, strength, sign)
    assert (result.mode, result.size) == (picture.mode, picture.size)
    result = augmentation._array(result).astype(int)
    return abs(result - image).mean()

  if name in ('auto_contrast', 'equalize'):
    assert distance(0.0) == distance(1.0) > 1
  else:
    # Nothing happens at 0; the stronger, the further away.
    assert distance(0.0) == 0
    if name == 'identity' or (name == 'color' and channels == 1):
      assert distance(1.0) == 0
    else:
      assert distance(1.0) > distance(0.3) > 0


def test_randaugment_draws_all_operations(monkeypatch):
  calls = []
  for name in randaugment.OPERATIONS:
    monkeypatch.setitem(
      randaugment.OPERATIONS,
      name,
      lambda picture, *rest, name=name: calls.append((name, *rest)) or picture,
    )
  augment = augmentation.Augmentation(
    randaugment_ops=2, randaugment_magnitude=9.0
  )
  random = _random()
  for _ in range(100):
    augment(_image(), 9, random)
  assert len(calls) == 200
  assert {name for name, *_ in calls} == set(randaugment.OPERATIONS)
  assert {strength for _, strength, _ in calls} == {0.9}
  assert {sign for *_, sign in calls} == {1, -1}


def test_mixup():
  # As many images as classes: the labels tell what is in a mixture.
  several = np.stack([_image(seed=seed) for seed in range(6)])
  random = _random()
  shares = []
  for _ in range(300):
    mixed, targets = augmentation.mixup(several, np.arange(6), 0.5, 6, random)
    assert mixed.dtype == np.uint8
    assert targets.dtype == np.float32
    expected = np.einsum('ij,jhwc->ihwc', targets, several)
    np.testing.assert_allclose(mixed, expected, atol=0.51)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    assert ((targets > 0).sum(1) <= 2).all()
    shares.append(targets.diagonal())
  shares = np.array(shares)
  mixtures = shares[shares < 1]
  # One in six is mixed with itself; Beta(0.5, 0.5) has mean 0.5, variance 1/8.
  assert len(mixtures) == pytest.approx(1800 * 5 / 6, rel=0.1)
  assert mixtures.mean() == pytest.approx(0.5, abs=0.1)
  assert mixtures.var() == pytest.approx(0.125, rel=0.2)


@pytest.mark.parametrize(
  'augment',
  [
    augmentation.Augmentation(crop='padded', padding=2),
    augmentation.Augmentation(crop='resized', flip=True),
    augmentation.Augmentation(randaugment_ops=2, randaugment_magnitude=8.0),
  ],
)
def test_same_chance_same_result(augment):
  image = _image(16, 16)
  assert augment.changes_images
  first, again = (
    [augment(image, 16, random) for _ in range(10)]
    for random in (_random(3), _random(3))
  )
  np.testing.assert_array_equal(first, again)
  other = [augment(image, 16, random) for random in [_random(4)] * 10]
  assert not np.array_equal(first, other)


def test_from_config():
  fields = dataclasses.asdict(augmentation.Augmentation(flip=True, padding=2))
  config = ml_collections.ConfigDict(fields)
  found = augmentation.from_config(config)
  assert found == augmentation.Augmentation(flip=True, padding=2)
  config.crops = 'none'
  with pytest.raises(errors.UserError, match="nearest is 'crop'"):
    augmentation.from_config(config)
  del fields['flip']
  with pytest.raises(errors.UserError, match='lacks flip'):
    augmentation.from_config(ml_collections.ConfigDict(fields))


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'crop': 'pad'}, "nearest is 'padded'"),
    ({'padding': -1}, 'padding is a number of at least 0'),
    ({'min_area': 0.0}, 'min_area'),
    ({'randaugment_ops': -1}, 'randaugment_ops is a number'),
    ({'randaugment_magnitude': 11.0}, 'from 0 to 10'),
    ({'mixup_alpha': -0.5}, 'mixup_alpha is a number of at least 0'),
    ({'mixup_alpha': float('nan')}, 'mixup_alpha is a number'),
    ({'mixup_alpha': float('inf')}, 'mixup_alpha is a number'),
  ],
)
def test_wrong_fields(fields, message):
  with pytest.raises(errors.UserError, match=message):
    augmentation.Augmentation(**fields)


def test_channels():
  augment = augmentation.Augmentation(randaugment_ops=1)
  with pytest.raises(errors.UserError, match='1 or 3 channels, not 4'):
    augment(_image(channels=4), 9, _random())
