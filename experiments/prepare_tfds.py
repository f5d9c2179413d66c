"""Downloads a set of TFDS and prepares it for reading without TensorFlow.

    python -m experiments.prepare_tfds --name=cifar10 --data_dir=data/tfds

Some sets are made with TensorFlow, CIFAR-10 and ImageNet among them: for this
command alone it must be installed (`pip install tensorflow-cpu`, best in an
environment of its own); without it nothing is downloaded. The archives of
ImageNet must be downloaded by hand, to DATA_DIR/downloads/manual.
"""

from collections.abc import Sequence

from absl import flags

from experiments import entry
from experiments.data import tfds_sources

_NAME = flags.DEFINE_string(
  'name', None, 'Of the set, with its config: cifar10, c4/en.', required=True
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', '', 'Where to; empty: where TFDS has its data by default.'
)


def main(argv: Sequence[str]) -> None:
  """Reads the flags and prepares the set."""
  entry.require_flags_only(argv)
  print(tfds_sources.prepare(_NAME.value, _DATA_DIR.value))


if __name__ == '__main__':
  entry.run(main)
