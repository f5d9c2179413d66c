"""Data sets of TensorFlow Datasets (TFDS), read without TensorFlow.

A set is downloaded and prepared once, by `experiments.prepare_tfds`; here it is
only read, at random, from array_record files. What is not prepared is an error
at once: TFDS would try to download it, for minutes without a network.

TFDS knows sets by name, 'cifar10' or 'c4/en', and finds prepared ones in its
folder even without knowing them, 'openwebtext' say.
"""

from collections.abc import Iterator
from concurrent import futures
import dataclasses
import difflib
import hashlib
import json
from typing import Any

from absl import logging
import numpy as np

from experiments import errors, outputs
from experiments.data import augmentation, tfds_packages

# What is held out: the first of these that a set has.
_VALIDATION = ('validation', 'test')
# Images that a thread of an evaluation reads together, and such threads.
_IMAGES, _THREADS = 128, 16
# Documents that are read together.
_DOCUMENTS = 1000
# Of TFDS, where its own message would be no help.
_ELSEWHERE = {
  'openwebtext': (
    'TFDS has no OpenWebText. Token files that nanoGPT makes of it '
    '(data/openwebtext/prepare.py) are read as they are, and '
    'experiments.make_token_files takes its documents as .jsonl or .txt.'
  ),
}


class TfdsImages:
  """One split of a prepared set of images.

  Args:
    records: the data source of TFDS.
    size: height and width of what `read` returns.
    central_fraction: see `augmentation.fit`.
  """

  in_memory = False

  def __init__(self, records: Any, size: int, central_fraction: float):
    self.size = size
    self._records = records
    self._central_fraction = central_fraction

  def __len__(self) -> int:
    return len(self._records)

  def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of one size, and labels."""
    parts = np.array_split(indices, max(1, len(indices) // _IMAGES))
    if len(parts) == 1:
      return self._read(indices)
    # An evaluation. Batches for training are smaller, and have threads already.
    with futures.ThreadPoolExecutor(_THREADS) as pool:
      pixels, labels = zip(*pool.map(self._read, parts), strict=True)
    return np.concatenate(pixels), np.concatenate(labels)

  def examples(
    self, indices: np.ndarray
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns images of their own sizes, and labels."""
    records = self._records.__getitems__(np.asarray(indices).tolist())
    labels = np.array([record['label'] for record in records], np.int32)
    return [record['image'] for record in records], labels

  def _read(self, indices):
    found, labels = self.examples(indices)
    pixels = [
      augmentation.fit(image, self.size, self._central_fraction)
      for image in found
    ]
    return np.stack(pixels), labels


@dataclasses.dataclass(frozen=True)
class Images:
  """A prepared set of images.

  Attributes:
    train: the split of this name.
    validation: the split that is held out.
    classes: number of classes.
    channels: of an image.
    sha256: of what TFDS says of the set: name, version, sizes.
  """

  train: TfdsImages
  validation: TfdsImages
  classes: int
  channels: int
  sha256: str


def images(
  name: str, data_dir: str, size: int, central_fraction: float
) -> Images:
  """Opens a set of images.

  Args:
    name: of the set, as TFDS has it.
    data_dir: the folder of TFDS; if empty, where TFDS has it by default.
    size: height and width of what `read` returns.
    central_fraction: see `augmentation.fit`.

  Raises:
    UserError: for a set that is unknown, not prepared or not of labelled
      images, and for missing packages.
  """
  builder = _prepared(name, data_dir)
  features = builder.info.features
  if not {'image', 'label'} <= set(features):
    raise errors.UserError(
      f'{name} is no set of labelled images: its features are '
      f'{", ".join(features)}.'
    )
  held_out = [split for split in _VALIDATION if split in builder.info.splits]
  if 'train' not in builder.info.splits or not held_out:
    raise errors.UserError(
      f'{name} needs the splits train and one of {", ".join(_VALIDATION)}; it '
      f'has {", ".join(builder.info.splits)}.'
    )
  found = Images(
    *(
      TfdsImages(_records(name, builder, split), size, central_fraction)
      for split in ('train', held_out[0])
    ),
    classes=features['label'].num_classes,
    channels=features['image'].shape[-1],
    sha256=_checksum(builder),
  )
  logging.info(
    'Images %s: %d to train, %d to validate (%s), %s',
    builder.info.full_name,
    len(found.train),
    len(found.validation),
    held_out[0],
    found.sha256,
  )
  return found


def documents(name: str, data_dir: str) -> tuple[Iterator[str], int]:
  """Opens the training split of a set of texts.

  Args:
    name: of the set, as TFDS has it.
    data_dir: the folder of TFDS; if empty, where TFDS has it by default.

  Returns:
    The documents in the order of the files, and about how many bytes they are.

  Raises:
    UserError: for a set that is unknown, not prepared or not of texts, and for
      missing packages.
  """
  builder = _prepared(name, data_dir)
  if 'text' not in builder.info.features:
    raise errors.UserError(
      f'{name} is no set of texts: its features are '
      f'{", ".join(builder.info.features)}.'
    )
  records = _records(name, builder, 'train')

  def stream():
    for start in range(0, len(records), _DOCUMENTS):
      end = min(start + _DOCUMENTS, len(records))
      for record in records.__getitems__(list(range(start, end))):
        document = record['text'].decode()
        if document.strip():
          yield document

  return stream(), builder.info.splits['train'].num_bytes


def prepare(name: str, data_dir: str = '') -> str:
  """Prepares a set, if it is not.

  Args:
    name: of the set, as TFDS has it.
    data_dir: where to; if empty, where TFDS has its data by default.

  Returns:
    What there is now, in a line.

  Raises:
    UserError: if TensorFlow is needed and missing, the folder cannot be made,
      or the download fails.
  """
  found = _builder(name, data_dir, file_format='array_record')
  if not found.is_prepared():
    if missing := tfds_packages.missing(found):
      raise _lacks(name, ', '.join(missing))
    outputs.directory(found.data_path.parent, '--data_dir')
  try:
    found.download_and_prepare()
  except ImportError as error:
    raise _lacks(name, str(error)) from error
  except (OSError, AssertionError) as error:
    # No network, or archives that have to be downloaded by hand.
    raise errors.UserError(f'{name} was not prepared: {error}') from error
  sizes = ', '.join(
    f'{split} {info.num_examples}' for split, info in found.info.splits.items()
  )
  return f'{found.info.full_name} in {found.data_path}: {sizes}'


def _lacks(name: str, what: str) -> errors.UserError:
  return errors.UserError(
    f'TFDS makes {name} with a package that is not installed ({what}). If '
    'it is TensorFlow: pip install tensorflow-cpu, for this command alone.'
  )


def _prepare_command(name: str, data_dir: str) -> str:
  """Returns the command that downloads and prepares a set."""
  folder = f' --data_dir={data_dir}' if data_dir else ''
  return f'python -m experiments.prepare_tfds --name={name}{folder}'


def _builder(name: str, data_dir: str, **kwargs: str) -> Any:
  """Returns TFDS's builder of a set, prepared or not."""
  tfds = _tfds()
  if not name:
    raise errors.UserError('Name a set of TFDS: --config.data.name=cifar10.')
  if name.startswith('huggingface:'):
    # It would ask the hub, again and again, with whatever packages are there.
    raise errors.UserError(
      f'{name!r}: this does not open sets of the Hugging Face hub. Save its'
      ' texts as .jsonl, for experiments.make_token_files.'
    )
  try:
    return tfds.builder(name, data_dir=data_dir or None, **kwargs)
  except tfds.core.DatasetNotFoundError as error:
    if name.partition('/')[0] in _ELSEWHERE:
      raise errors.UserError(_ELSEWHERE[name.partition('/')[0]]) from error
    known = tfds.list_builders(with_community_datasets=False)
    # All of them would be hundreds.
    similar = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
    raise errors.UserError(
      f'TFDS has no set {name!r}, and there is none that is prepared in '
      f'{data_dir or "its folder"}. Similar: {", ".join(similar)}.'
    ) from error
  except (ValueError, AssertionError, ImportError) as error:
    # Of a config or version that the set does not have, or a package.
    raise errors.UserError(f'TFDS does not open {name!r}: {error}') from error


def _prepared(name: str, data_dir: str) -> Any:
  found = _builder(name, data_dir)
  if not found.is_prepared():
    raise errors.UserError(
      f'{name} is not prepared in {found.data_path}. Once, with a network: '
      f'{_prepare_command(name, data_dir)}'
    )
  return found


def _records(name: str, builder: Any, split: str) -> Any:
  try:
    return builder.as_data_source(split)
  except NotImplementedError as error:
    raise errors.UserError(
      f'{builder.data_path} has other files than array_record, which only '
      'TensorFlow reads. Prepare the set in another folder: '
      f'{_prepare_command(name, "FOLDER")}'
    ) from error


def _checksum(builder: Any) -> str:
  """Returns a checksum of what is known without reading everything."""
  info = builder.info
  facts = {
    'name': info.full_name,
    'splits': {
      name: [split.num_bytes, list(split.shard_lengths)]
      for name, split in sorted(info.splits.items())
    },
  }
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _tfds() -> Any:
  # Here, not above: the entry points of other data do without it.
  try:
    import array_record  # noqa: F401
    import importlib_resources  # noqa: F401
    import tensorflow_datasets as tfds

    # Some names are known only after this, 'c4' for one.
    import tensorflow_datasets.text
  except ModuleNotFoundError as error:
    raise errors.UserError(
      f'Data of TFDS need packages that are not installed ({error}): pip '
      "install -e '.[tfds]'."
    ) from error
  return tfds
