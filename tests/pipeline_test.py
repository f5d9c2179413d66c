"""Batches of images: whose, in which order, and the same on every way there."""

import dataclasses
import sys

import ml_collections
import numpy as np
import pytest

from experiments import errors
from experiments.data import augmentation, images, pipeline, shards

SIZE, CLASSES = 53, 7
NOTHING = augmentation.Augmentation()
ALL = augmentation.Augmentation(
  crop='padded',
  padding=1,
  flip=True,
  randaugment_ops=1,
  randaugment_magnitude=5.0,
  mixup_alpha=0.5,
)
FLIP = augmentation.Augmentation(flip=True)
RESIZED = augmentation.Augmentation(crop='resized')


class Disk(images.Memory):
  """Images that count as being on disk, and some that count what is read."""

  in_memory = False


def _source(kind=images.Memory, size=4):
  random = np.random.default_rng(0)
  pixels = random.integers(256, size=(SIZE, 4, 4, 3), dtype=np.uint8)
  # The first pixel is the index.
  pixels[:, 0, 0, 0] = np.arange(SIZE)
  return kind(pixels, np.arange(SIZE, dtype=np.int32) % CLASSES, size)


def _make(augment=NOTHING, kind=images.Memory, only=None, seed=0, **kwargs):
  schedule = shards.Shards(SIZE, 2, 3, seed, only, **kwargs)
  return pipeline.ImageBatches(_source(kind), schedule, augment, CLASSES, seed)


def _equal(a, b):
  assert a.keys() == b.keys() == {'images', 'labels'}
  for name in a:
    assert a[name].dtype == b[name].dtype
    np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize('kind', [images.Memory, Disk])
def test_without_augmentation_exact(kind):
  found = _make(kind=kind).round(5, 9)
  indices = shards.Shards(SIZE, 2, 3, 0).indices(5, 9)
  pixels, labels = _source().read(indices)
  _equal(found, {'images': pixels, 'labels': labels})
  assert found['images'].shape == (3, 9, 2, 4, 4, 3)
  assert found['images'].dtype == np.uint8
  assert found['labels'].dtype == np.int32


def test_shards_are_disjoint():
  # Of 53 examples a worker has 17 or 18: an epoch ends within a batch.
  first_epoch = _make(FLIP).round(0, 8)
  positions = first_epoch['labels'].reshape(3, -1)
  assert positions.shape == (3, 16)
  plain = _make().round(0, 8)['images'][..., 0, 0, 0].reshape(3, -1)
  for worker in range(3):
    assert (plain[worker] % 3 == worker).all()
    assert len(set(plain[worker])) == 16


@pytest.mark.parametrize('augment', [NOTHING, ALL, FLIP, RESIZED])
@pytest.mark.parametrize('only', [(1,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize('sharding', shards.SHARDING)
def test_rows_of_some_workers_are_those_of_all(augment, only, sharding):
  everything = _make(augment, sharding=sharding).round(3, 8)
  some = _make(augment, only=only, sharding=sharding).round(3, 8)
  rows = {name: array[list(only)] for name, array in everything.items()}
  _equal(some, rows)


@pytest.mark.parametrize('kind', [images.Memory, Disk])
@pytest.mark.parametrize('augment', [NOTHING, ALL, RESIZED])
def test_restart_in_the_middle(kind, augment):
  whole = _make(augment, kind).round(0, 24)
  parts = _make(augment, kind)
  # In order, then back, then further on.
  for first, steps in [(0, 4), (4, 8), (12, 1), (3, 2), (20, 4), (0, 1)]:
    part = {n: array[:, first:][:, :steps] for n, array in whole.items()}
    _equal(parts.round(first, steps), part)
  resumed = _make(augment, kind)
  _equal(resumed.round(17, 7), {n: array[:, 17:] for n, array in whole.items()})


def test_reads_ahead_once(monkeypatch):
  read = []

  class Counting(Disk):
    def read(self, indices):
      read.append(indices.tolist())
      return super().read(indices)

  monkeypatch.setattr(pipeline, '_BATCHES_AHEAD', 4)
  data = _make(kind=Counting)
  for first in range(0, 20, 2):
    data.round(first, 2)
  # No batch twice, and not far beyond what was asked for.
  assert 60 <= len(read) <= 60 + 4 + pipeline._THREADS
  data.close()


@pytest.mark.parametrize('augment', [FLIP, RESIZED, ALL])
def test_chance_differs(augment):
  def pixels(step=0, seed=0):
    # All three workers see one batch, in one order, with their own chance.
    data = _make(augment, seed=seed)
    same = np.zeros((3, 1, 2), np.int64) + np.arange(2)
    data._schedule.indices = lambda first, steps: same
    found = data.round(step, 1)['images']
    data.close()
    return found

  first = pixels()
  np.testing.assert_array_equal(first, pixels())
  several = [first, pixels(step=1), pixels(step=2), pixels(seed=1)]
  batches = {row.tobytes() for found in several for row in found}
  # A flip has four outcomes for two images.
  assert len(batches) >= (3 if augment == FLIP else 10)


def test_images_are_augmented_one_by_one():
  found = _make(FLIP).round(0, 8)['images']
  plain = _make().round(0, 8)['images']
  flipped = np.where(
    (found == plain).all((3, 4, 5), keepdims=True), plain, plain[..., ::-1, :]
  )
  np.testing.assert_array_equal(found, flipped)
  unchanged = (found == plain).all((3, 4, 5))
  assert 10 < unchanged.sum() < 38


def test_mixup_labels():
  mixed = _make(augmentation.Augmentation(mixup_alpha=0.5)).round(0, 3)
  assert mixed['labels'].shape == (3, 3, 2, CLASSES)
  assert mixed['labels'].dtype == np.float32
  np.testing.assert_allclose(mixed['labels'].sum(-1), 1, rtol=1e-6)


def test_resized_crop_is_of_the_whole_image():
  source = _source(size=2)
  schedule = shards.Shards(SIZE, 2, 3, 0)
  seen = []
  whole = source.examples
  source.examples = lambda indices: seen.append(1) or whole(indices)
  data = pipeline.ImageBatches(source, schedule, RESIZED, CLASSES, 0)
  assert data.round(0, 2)['images'].shape == (3, 2, 2, 2, 2, 3)
  assert seen
  data.close()


def test_epoch():
  assert _make().epoch(53) == 6.0


def test_fault_in_a_source_comes_through():
  class Broken(Disk):
    def read(self, indices):
      if 5 in indices:
        raise errors.UserError('record 5 is broken')
      return super().read(indices)

  data = _make(kind=Broken)
  with pytest.raises(errors.UserError, match='record 5 is broken'):
    data.round(0, 30)
  # And again: a fault is no end of data.
  with pytest.raises(errors.UserError, match='record 5 is broken'):
    data.round(0, 30)


def test_batches_of_a_config():
  config = ml_collections.ConfigDict(dataclasses.asdict(ALL))
  schedule = shards.Shards(SIZE, 2, 3, 0)
  data = pipeline.batches(_source(), schedule, config, CLASSES, 0)
  _equal(data.round(0, 2), _make(ALL).round(0, 2))


def test_grain_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, 'grain', None)
  _make().round(0, 1)
  with pytest.raises(errors.UserError, match='pip install'):
    _make(FLIP)
  with pytest.raises(errors.UserError, match='pip install'):
    _make(kind=Disk)
