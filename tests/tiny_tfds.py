"""Tiny data sets of TFDS, made here: no network, no TensorFlow.

TFDS finds them by name once this module is imported: 'tiny_images' and
'tiny_texts'.
"""

import io

import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

CLASSES = 3
TEXTS = [f'Document {i}: it’s {i * i}.\n' for i in range(150)]


def pixels(split, i):
  """Returns image i of a split, of its own size, with i in the corner."""
  random = np.random.default_rng([len(split), i])
  shape = (8 + i % 3, 8 + i % 2, 3)
  image = random.integers(256, size=shape, dtype=np.uint8)
  image[0, 0, 0] = i
  return image


def _info(builder, features):
  # `dataset_info_from_configs` wants builders inside a package.
  return tfds.core.DatasetInfo(
    builder=builder, features=tfds.features.FeaturesDict(features)
  )


class TinyImages(tfds.core.GeneratorBasedBuilder):
  """Images of several sizes: 40 to train, 11 to validate."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return _info(
      self,
      {
        # Pictures that are arrays would need TensorFlow to be encoded.
        'image': tfds.features.Image(
          shape=(None, None, 3), encoding_format='png'
        ),
        'label': tfds.features.ClassLabel(num_classes=CLASSES),
      },
    )

  def _split_generators(self, dl_manager):
    return {
      'train': self._examples('train', 40),
      'test': self._examples('t', 11),
    }

  def _examples(self, split, count):
    for i in range(count):
      file = io.BytesIO()
      Image.fromarray(pixels(split, i)).save(file, 'png')
      file.seek(0)
      yield i, {'image': file, 'label': i % CLASSES}

  _generate_examples = _examples


class TinyTexts(tfds.core.GeneratorBasedBuilder):
  """Documents, an empty one among them."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return _info(self, {'text': tfds.features.Text()})

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples()}

  def _generate_examples(self):
    for i, text in enumerate([*TEXTS, ' ']):
      yield i, {'text': text}


def prepare(name, data_dir):
  """Prepares one of the sets."""
  builder = tfds.builder(name, data_dir=data_dir, file_format='array_record')
  builder.download_and_prepare()
  return builder
