"""The task of images: what is measured, and what does not fit together."""

import jax
import ml_collections
import numpy as np
import pytest

from experiments import config, errors, tasks, vision
from experiments.data import images
from experiments.models import vit

_SPEC = 'configs/vit_mnist.py:smoke'
CONFIG = config.load(_SPEC, {'data.image_size': 14, 'model.width': 8})
CLASSIFY = vision.objective(CONFIG)
PARAMS = jax.tree.map(
  lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape),
  CLASSIFY.init(jax.random.key(0)),
)


def _source(count=37):
  random = np.random.default_rng(0)
  pixels = random.integers(0, 256, (count, 14, 14, 1)).astype(np.uint8)
  labels = random.integers(0, 10, count).astype(np.int32)
  return images.Memory(pixels, labels, 14)


def _expected(source):
  """Image by image."""
  pixels, labels = source.read(np.arange(len(source)))
  inputs = (np.float32(pixels) / 255 - 0.1314) / 0.3086
  logits = np.asarray(vit.apply(CLASSIFY.model, PARAMS, inputs), np.float64)
  losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(37), labels]
  order = np.argsort(-logits, axis=-1)
  hits = order == labels[:, None]
  return losses.mean(), hits[:, 0].mean(), hits[:, :5].any(-1).mean()


@pytest.mark.parametrize('batch, batches', [(250, 8), (5, 3), (37, 1), (8, 1)])
def test_every_image_counts_once(batch, batches, monkeypatch):
  monkeypatch.setattr(vision, '_BATCH', batch)
  monkeypatch.setattr(vision, '_BATCHES', batches)
  source = _source()
  found = vision.evaluator(CLASSIFY, source)(PARAMS)
  values = [found[n].value for n in ('validation_loss', 'top_1', 'top_5')]
  np.testing.assert_allclose(values, _expected(source), rtol=1e-4)
  share = found['top_1'].value
  error = (share * (1 - share) / 36) ** 0.5
  assert found['top_1'].error == pytest.approx(error, rel=1e-3)


def test_devices_share_the_work_and_change_nothing():
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((8,), ('workers',), auto)
  alone, together = (
    vision.evaluator(CLASSIFY, _source(), None, where)(PARAMS)
    for where in (None, mesh)
  )
  assert alone == together


def test_some_images_are_spread_over_all():
  read = []
  source = _source()

  class Spy:
    def __len__(self):
      return 37

    def read(self, indices):
      read.extend(indices)
      return source.read(indices)

  vision.evaluator(CLASSIFY, Spy(), 4)(PARAMS)
  assert read == [0, 9, 18, 27]


def test_what_is_not_a_number_is_no_hit():
  broken = jax.tree.map(lambda leaf: leaf * np.nan, PARAMS)
  found = vision.evaluator(CLASSIFY, _source())(broken)
  assert found['top_1'].value == found['top_5'].value == 0.0
  assert np.isnan(found['validation_loss'].value)


def test_mixed_labels_are_shares_of_classes():
  mixed = vision.Classify(CLASSIFY.model, (0.0,), (1.0,), mixed=True)
  plain = vision.Classify(CLASSIFY.model, (0.0,), (1.0,), mixed=False)
  pixels, labels = _source().read(np.arange(8))
  batch = {'images': pixels, 'labels': labels}
  one_hot = batch | {'labels': np.eye(10, dtype=np.float32)[labels]}
  np.testing.assert_allclose(
    mixed.loss(PARAMS, one_hot, None),
    plain.loss(PARAMS, batch, None),
    rtol=1e-6,
  )
  shapes = mixed.batch(8)
  assert shapes['labels'].shape == (8, 10)
  assert shapes['images'].shape == (8, 14, 14, 1)


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('data.classes', 11, 'data.classes in the config is 11, .* 10'),
    ('data.std', (0.3, 0.3), 'a number for each channel'),
    ('data.std', (0.0,), 'above 0'),
    ('data.mean', ('a',), 'a number for each channel'),
    ('data.augmentation.crop', 'foo', 'Unknown crop'),
    ('data.sharding', 'hole', "nearest is 'whole'"),
    ('batch_size', 5000, '4000 examples are too few'),
  ],
)
def test_what_does_not_fit(field, value, message):
  with pytest.raises(errors.UserError, match=message):
    tasks.load(config.load(_SPEC, {field: value}), only=range(4))


def test_of_a_config():
  task = tasks.load(config.load(_SPEC), only=[1])
  batch = task.data.round(0, 3)
  assert batch['images'].shape == (1, 3, 8, 28, 28, 1)
  assert task.source == 'mnist_5k'
  shapes = jax.tree.map(lambda x: x.shape[2:], batch)
  assert shapes == jax.tree.map(lambda s: s.shape, task.objective.batch(8))


@pytest.mark.parametrize('task', ['language', 'answers'])
def test_a_task_that_does_not_go_with_the_fields(task):
  with pytest.raises(errors.UserError, match=f'task={task} does not go'):
    tasks.objective(config.load(_SPEC, {'task': task}))


def test_unknown_task():
  wrong = ml_collections.ConfigDict({'task': 'visoin'})
  with pytest.raises(errors.UserError, match="nearest is 'vision'"):
    tasks.objective(wrong)
