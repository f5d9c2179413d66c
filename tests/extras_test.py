"""Runs import what they need: text no images, images no text, both no TFDS."""

import pathlib
import subprocess
import sys

import pytest

import experiments

ROOT = pathlib.Path(experiments.__file__).parent.parent
# What a tokenizer is made of.
TEXT = {'tiktoken', 'regex'}
# Of any kind of image, and of prepared data sets.
IMAGES = {'PIL', 'mlxtend', 'sklearn', 'pandas'}
# Files of Hugging Face's layout.
WEIGHTS = {'safetensors', 'tokenizers'}
TFDS = {'grain', 'tensorflow_datasets', 'array_record', 'tensorflow'}


@pytest.mark.parametrize(
  'modules, unwanted',
  [
    (
      ['language', 'data.token_files', 'data.token_writer'],
      TEXT | IMAGES | TFDS,
    ),
    (
      ['vision', 'data.images', 'data.pipeline'],
      TEXT | IMAGES - {'PIL'} | TFDS,
    ),
    (['data.tfds_sources', 'data.documents'], TFDS),
    (['answers', 'finetuning.weights'], TEXT | IMAGES | TFDS | WEIGHTS),
  ],
)
def test_imports(modules, unwanted):
  program = f"""
import sys
{'; '.join(f'import experiments.{module}' for module in modules)}
print(sorted({unwanted} & set(sys.modules)))
"""
  command = [sys.executable, '-W', 'error', '-c', program]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip() == '[]'
