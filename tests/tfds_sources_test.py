"""Sets of TFDS: made here, mocked, not there, and without TensorFlow."""

import json
import sys
import time

import ml_collections
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.testing import mocking

from experiments import errors
from experiments.data import (
  augmentation,
  documents,
  images,
  pipeline,
  shards,
  tfds_sources,
  token_files,
  token_writer,
)
from tests import tiny_tfds


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  """A folder in which the tiny sets are prepared."""
  folder = tmp_path_factory.mktemp('tfds')
  for name in ('tiny_images', 'tiny_texts'):
    tfds_sources.prepare(name, str(folder))
  return str(folder)


def _load(data_dir, name='tiny_images', **fields):
  defaults = {
    'source': 'tfds',
    'name': name,
    'path': data_dir,
    'image_size': 8,
    'central_fraction': 1.0,
  }
  return images.load(ml_collections.ConfigDict(defaults | fields))


def _numbers(source):
  """Returns the number of each image, from its corner."""
  found, labels = source.examples(np.arange(len(source)))
  numbers = [int(image[0, 0, 0]) for image in found]
  assert [number % tiny_tfds.CLASSES for number in numbers] == labels.tolist()
  return found, numbers


def test_images(data_dir):
  data = _load(data_dir)
  assert (data.classes, data.shape, data.name) == (3, (8, 8, 3), 'tiny_images')
  assert not data.train.in_memory
  for source, split, count in [
    (data.train, 'train', 40),
    (data.validation, 't', 11),
  ]:
    assert len(source) == count
    found, numbers = _numbers(source)
    assert sorted(numbers) == list(range(count))
    for image, number in zip(found, numbers, strict=True):
      np.testing.assert_array_equal(image, tiny_tfds.pixels(split, number))
  assert 'tensorflow' not in sys.modules


def test_read_makes_one_size(data_dir):
  data = _load(data_dir, image_size=6, central_fraction=0.75)
  indices = np.array([7, 3, 3, 20])
  pixels, labels = data.train.read(indices)
  assert pixels.shape == (4, 6, 6, 3)
  assert pixels.dtype == np.uint8
  assert labels.dtype == np.int32
  found, same = data.train.examples(indices)
  np.testing.assert_array_equal(labels, same)
  fitted = [augmentation.fit(image, 6, 0.75) for image in found]
  np.testing.assert_array_equal(pixels, fitted)


def test_many_are_read_by_threads(data_dir, monkeypatch):
  train = _load(data_dir).train
  indices = np.arange(39, -1, -1)
  pixels, labels = train.read(indices)
  monkeypatch.setattr(tfds_sources, '_IMAGES', 3)
  in_parts, labels_in_parts = train.read(indices)
  np.testing.assert_array_equal(in_parts, pixels)
  np.testing.assert_array_equal(labels_in_parts, labels)


@pytest.mark.parametrize('crop', ['none', 'padded', 'resized'])
def test_batches(data_dir, crop):
  augment = augmentation.Augmentation(crop=crop, flip=crop != 'none')

  def batches(only):
    train = _load(data_dir).train
    schedule = shards.Shards(len(train), 2, 4, 0, only)
    return pipeline.ImageBatches(train, schedule, augment, 3, 0)

  everything = batches(None).round(0, 12)
  assert everything['images'].shape == (4, 12, 2, 8, 8, 3)
  some = batches((3, 1))
  some.round(0, 2)
  resumed = some.round(7, 5)
  for name, array in everything.items():
    np.testing.assert_array_equal(resumed[name], array[[3, 1], 7:])


def test_checksum(data_dir, tmp_path, monkeypatch):
  first = _load(data_dir).sha256
  assert first == _load(data_dir).sha256
  monkeypatch.setattr(tiny_tfds, 'CLASSES', 2)
  monkeypatch.setattr(
    tiny_tfds, 'pixels', lambda split, i: np.zeros((8, 8, 3), np.uint8)
  )
  tiny_tfds.prepare('tiny_images', tmp_path)
  assert _load(str(tmp_path)).sha256 != first


def test_texts(data_dir, tmp_path):
  found = documents.read('tfds:tiny_texts', data_dir)
  assert found.total_bytes > sum(len(text) for text in tiny_tfds.TEXTS)
  texts = list(found.stream)
  assert texts != tiny_tfds.TEXTS, 'TFDS mixes them'
  assert sorted(texts) == sorted(tiny_tfds.TEXTS)
  token_writer.make(
    documents.read('tfds:tiny_texts', data_dir), 'bytes', tmp_path / 'out'
  )
  tokens = token_files.load(tmp_path / 'out', 'bytes')
  train = [text for text in texts if not documents.held_out(text)]
  assert bytes(tokens.train.tolist()).decode() == '\0' + '\0'.join(train)


@pytest.mark.parametrize('name', ['cifar10', 'mnist', 'imagenet2012', 'c4/en'])
def test_not_prepared_is_an_error_at_once(tmp_path, name):
  start = time.monotonic()
  command = f'experiments.prepare_tfds --name={name} --data_dir={tmp_path}'
  with pytest.raises(errors.UserError, match=command):
    _load(str(tmp_path), name)
  with pytest.raises(errors.UserError, match=command):
    documents.read('tfds:' + name.replace('/', ':'), str(tmp_path))
  assert time.monotonic() - start < 10


def _pretend_prepared(name, folder, file_format='array_record', **counts):
  """Writes what is known of a prepared set, without its data."""
  builder = tfds.builder(name, data_dir=folder, file_format=file_format)
  splits = [
    tfds.core.SplitInfo(
      name=split,
      shard_lengths=[count],
      num_bytes=count,
      filename_template=tfds.core.ShardedFileTemplate(
        data_dir=builder.data_path,
        dataset_name=builder.name,
        split=split,
        filetype_suffix=file_format,
      ),
    )
    for split, count in counts.items()
  ]
  builder.info.set_splits(tfds.core.splits.SplitDict(splits))
  builder.data_path.mkdir(parents=True)
  builder.info.write_to_directory(builder.data_path)


@pytest.fixture
def mock(tmp_path, monkeypatch):
  """TFDS mocks the data of sets of which the description is there."""

  # What TFDS puts in place of a method lacks an argument; and a text of its
  # is no bytes, as real ones are.
  def getitems(record_keys, generator):
    records = [generator[key] for key in record_keys]
    for record in records:
      if isinstance(record.get('text'), str):
        record['text'] = record['text'].encode()
    return records

  monkeypatch.setattr(mocking, '_getitems', getitems)
  _pretend_prepared('cifar10', tmp_path, train=50, test=10)
  _pretend_prepared('imagenet2012', tmp_path, train=50, validation=10)
  _pretend_prepared('c4/en', tmp_path, train=50, validation=10)
  with tfds.testing.mock_data(num_examples=50, data_dir=str(tmp_path)):
    yield str(tmp_path)


@pytest.mark.parametrize(
  'name, size, classes, fraction',
  [('cifar10', 32, 10, 1.0), ('imagenet2012', 224, 1000, 0.875)],
)
def test_mocked_images(mock, name, size, classes, fraction):
  data = _load(mock, name, image_size=size, central_fraction=fraction)
  assert data.shape == (size, size, 3)
  assert data.classes == classes
  assert len(data.train) == 50
  schedule = shards.Shards(50, 2, 4, 0)
  augment = augmentation.Augmentation(
    crop='padded' if size == 32 else 'resized',
    flip=True,
    randaugment_ops=2,
    randaugment_magnitude=9.0,
    mixup_alpha=0.5,
  )
  batches = pipeline.ImageBatches(data.train, schedule, augment, classes, 0)
  found = batches.round(0, 3)
  batches.close()
  assert found['images'].shape == (4, 3, 2, size, size, 3)
  assert found['labels'].shape == (4, 3, 2, classes)
  pixels, labels = data.validation.read(np.arange(5))
  assert pixels.shape == (5, size, size, 3)
  assert labels.shape == (5,)


def test_mocked_texts(mock):
  found = list(documents.read('tfds:c4:en', mock).stream)
  assert len(found) == 50
  assert all(isinstance(text, str) for text in found)


def test_other_file_format(tmp_path):
  _pretend_prepared('cifar10', tmp_path, 'tfrecord', train=5, test=5)
  message = 'other files than array_record.*--name=cifar10 --data_dir=FOLDER'
  with pytest.raises(errors.UserError, match=message):
    _load(str(tmp_path), 'cifar10')
  with pytest.raises(errors.UserError, match='format is already set to'):
    tfds_sources.prepare('cifar10', str(tmp_path))


@pytest.mark.parametrize(
  'name, message',
  [
    ('imagnet', 'Similar: imagenette, '),
    ('openwebtext', r'nanoGPT makes of it .*\.jsonl'),
    ('cifar10:9.9.9', 'cannot be loaded at version 9.9.9'),
    ('c4/martian', 'martian not found'),
    ('', 'Name a set'),
    ('huggingface:openwebtext', 'does not open'),
    ('tiny_texts', 'no set of labelled images: its features are text'),
  ],
)
def test_wrong_names(data_dir, name, message):
  with pytest.raises(errors.UserError, match=message):
    _load(data_dir, name)


def test_no_texts(data_dir):
  with pytest.raises(errors.UserError, match='no set of texts'):
    documents.read('tfds:tiny_images', data_dir)


def test_no_split_to_hold_out(tmp_path):
  _pretend_prepared('cifar10', tmp_path, train=5, extra=5)
  with pytest.raises(errors.UserError, match='one of validation, test'):
    _load(str(tmp_path), 'cifar10')


def test_a_prepared_set_needs_no_code(data_dir, tmp_path):
  # As somebody else's set has it: a folder with a name that TFDS lacks.
  source = tfds.builder('tiny_texts', data_dir=data_dir).data_path
  folder = tmp_path / 'foreign_texts' / '1.0.0'
  folder.mkdir(parents=True)
  for path in source.iterdir():
    name = path.name.replace('tiny_texts', 'foreign_texts')
    (folder / name).write_bytes(path.read_bytes())
  info = json.loads((folder / 'dataset_info.json').read_text())
  info['name'] = 'foreign_texts'
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  found = documents.read('tfds:foreign_texts', str(tmp_path))
  assert sorted(found.stream) == sorted(tiny_tfds.TEXTS)


@pytest.mark.parametrize(
  'module', ['tensorflow_datasets', 'array_record', 'importlib_resources']
)
def test_missing_package(monkeypatch, module):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(errors.UserError, match=r"pip install -e '.\[tfds\]'"):
    _load('', 'cifar10')


@pytest.mark.parametrize(
  'fault, message',
  [
    (ImportError('No module named tensorflow'), 'pip install tensorflow-cpu'),
    (OSError('no network'), 'was not prepared: no network'),
    (AssertionError('Manual download'), 'was not prepared: Manual'),
  ],
)
def test_prepare_fails(tmp_path, monkeypatch, fault, message):
  def fail(self):
    raise fault

  monkeypatch.setattr(tiny_tfds.TinyImages, 'download_and_prepare', fail)
  with pytest.raises(errors.UserError, match=message):
    tfds_sources.prepare('tiny_images', str(tmp_path))


@pytest.mark.parametrize('name', ['cifar10', 'imagenet2012', 'c4/en'])
def test_a_missing_package_is_told_before_the_download(
  name, tmp_path, monkeypatch
):
  def download(self):
    raise AssertionError('it downloads')

  monkeypatch.setattr(
    tfds.core.DatasetBuilder, 'download_and_prepare', download
  )
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  message = r'not installed \(.*tensorflow.*pip install tensorflow-cpu'
  with pytest.raises(errors.UserError, match=message):
    tfds_sources.prepare(name, str(tmp_path))
  assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('in the way')
  with pytest.raises(errors.UserError, match='Cannot make .*--data_dir'):
    tfds_sources.prepare('tiny_images', str(tmp_path / 'file' / 'tfds'))


def test_prepare(data_dir):
  line = tfds_sources.prepare('tiny_images', data_dir)
  assert line.startswith('tiny_images/1.0.0 in ')
  assert line.endswith('train 40, test 11')
