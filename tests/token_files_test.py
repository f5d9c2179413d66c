"""Token files: nanoGPT's format, what describes it, and what is refused."""

import dataclasses
import hashlib
import json
import os
import time

import numpy as np
import pytest

from experiments import errors
from experiments.data import token_files, tokenizers

GPT2 = tokenizers.get('gpt2')
TEXTS = ['It’s a naïve café.', 'Second document\nwith two lines.', '東京 😀']


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  """Reading the vocabulary takes most of the time of such a test."""
  monkeypatch.setitem(tokenizers.TOKENIZERS, 'gpt2', lambda: GPT2)


def _write(folder, tokenizer='gpt2', dtype='<u2'):
  """Writes a folder as nanoGPT does, the separator after each document."""
  vocabulary = tokenizers.get(tokenizer)
  ids = []
  for document in TEXTS:
    ids += [*vocabulary.encode(document).tolist(), vocabulary.separator]
  np.array(ids * 3, dtype).tofile(folder / 'train.bin')
  np.array(ids, dtype).tofile(folder / 'val.bin')
  return np.array(ids)


def _edit_meta(folder, **fields):
  path = folder / 'meta.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_folder_of_nanogpt(tmp_path):
  ids = _write(tmp_path)
  tokens = token_files.load(tmp_path, 'gpt2')
  assert isinstance(tokens.train, np.memmap)
  assert tokens.train.dtype == np.uint16
  np.testing.assert_array_equal(tokens.train, np.tile(ids, 3))
  np.testing.assert_array_equal(tokens.validation, ids)
  text_bytes = sum(len(text.encode()) + 1 for text in TEXTS)
  assert tokens.bytes_per_token * ids.size == pytest.approx(text_bytes)
  assert tokens.corpus == tmp_path.name
  assert tokens.vocab_size == 50257
  with pytest.raises(ValueError, match='read-only'):
    tokens.train[0] = 0


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'])
def test_meta(tmp_path, tokenizer):
  _write(tmp_path, tokenizer)
  first = token_files.load(tmp_path, tokenizer)
  meta = json.loads((tmp_path / 'meta.json').read_text())
  content = (tmp_path / 'train.bin').read_bytes()
  assert meta['files']['train.bin'] == {
    'tokens': first.train.size,
    'sha256': hashlib.sha256(content).hexdigest(),
  }
  assert meta['tokenizer'] == tokenizer
  assert meta['dtype'] == 'uint16'
  again = token_files.load(tmp_path, tokenizer)
  assert again.corpus_sha256 == first.corpus_sha256
  assert again.bytes_per_token == first.bytes_per_token
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'meta.json',
    'train.bin',
    'val.bin',
  ]


def test_files_are_read_in_full_only_once(tmp_path, monkeypatch):
  _write(tmp_path)
  scans = []
  scan = token_files._scan
  monkeypatch.setattr(
    token_files, '_scan', lambda *args: scans.append(args) or scan(*args)
  )
  for _ in range(3):
    token_files.load(tmp_path, 'gpt2')
  assert len(scans) == 1
  # Older than the files, which are what they were: read again, once.
  os.utime(tmp_path / 'meta.json', (0, 0))
  for _ in range(3):
    token_files.load(tmp_path, 'gpt2')
  assert len(scans) == 2


@pytest.mark.parametrize('same_size', [True, False])
def test_replaced_file(tmp_path, same_size):
  ids = _write(tmp_path)
  token_files.load(tmp_path, 'gpt2')
  other = ids[::-1] if same_size else ids[1:]
  other.astype('<u2').tofile(tmp_path / 'val.bin')
  if same_size:
    # However coarse the clock of the file system is.
    os.utime(tmp_path / 'meta.json', (0, 0))
  with pytest.raises(errors.UserError, match=r'val.bin is not the file'):
    token_files.load(tmp_path, 'gpt2')
  (tmp_path / 'meta.json').unlink()
  token_files.load(tmp_path, 'gpt2')


def test_replaced_by_a_copy_that_keeps_its_time(tmp_path):
  ids = _write(tmp_path)
  token_files.load(tmp_path, 'gpt2')
  time.sleep(0.02)  # however coarse the clock of the file system is
  ids[::-1].astype('<u2').tofile(tmp_path / 'val.bin')
  os.utime(tmp_path / 'val.bin', (0, 0))  # as `cp -p` leaves it
  with pytest.raises(errors.UserError, match=r'val.bin is not the file'):
    token_files.load(tmp_path, 'gpt2')


def test_large_vocabulary(tmp_path, monkeypatch):
  large = dataclasses.replace(
    tokenizers.get('bytes'), name='large', vocab_size=100_000
  )
  monkeypatch.setitem(tokenizers.TOKENIZERS, 'large', lambda: large)
  _write(tmp_path, 'large', '<u4')
  tokens = token_files.load(tmp_path, 'large')
  assert tokens.train.dtype == np.uint32
  meta = json.loads((tmp_path / 'meta.json').read_text())
  assert meta['dtype'] == 'uint32'


def test_other_tokenizer(tmp_path):
  _write(tmp_path, 'bytes')
  token_files.load(tmp_path, 'bytes')
  with pytest.raises(errors.UserError, match=r'data.tokenizer=bytes'):
    token_files.load(tmp_path, 'gpt2')


@pytest.mark.parametrize('content', [b'', b'abc'])
def test_no_whole_number_of_ids(tmp_path, content):
  _write(tmp_path)
  (tmp_path / 'val.bin').write_bytes(content)
  with pytest.raises(errors.UserError, match=f'{len(content)} bytes'):
    token_files.load(tmp_path, 'gpt2')


@pytest.mark.parametrize('place', [0, 3, 1000])
def test_id_beyond_the_vocabulary(tmp_path, monkeypatch, place):
  monkeypatch.setattr(token_files, '_CHUNK', 512)
  _write(tmp_path)
  ids = np.zeros(1001, '<u2')
  ids[place] = 50257
  ids.tofile(tmp_path / 'train.bin')
  message = f'train.bin has the id 50257 at position {place}, beyond the 50257'
  with pytest.raises(errors.UserError, match=message):
    token_files.load(tmp_path, 'gpt2')
  ids[place] = 50256
  ids.tofile(tmp_path / 'train.bin')
  token_files.load(tmp_path, 'gpt2')


def test_no_files(tmp_path):
  with pytest.raises(errors.UserError, match='make_token_files --from=SOURCE'):
    token_files.load(tmp_path / 'nowhere', 'gpt2')
  _write(tmp_path)
  (tmp_path / 'val.bin').unlink()
  with pytest.raises(errors.UserError, match=r'no token file .*val.bin'):
    token_files.load(tmp_path, 'gpt2')


@pytest.mark.parametrize('content', ['{', '[]', '{"tokenizer": "gpt2"}'])
def test_broken_meta(tmp_path, content):
  _write(tmp_path)
  (tmp_path / 'meta.json').write_text(content)
  with pytest.raises(errors.UserError, match='Remove it'):
    token_files.load(tmp_path, 'gpt2')


def test_broken_meta_types(tmp_path):
  _write(tmp_path)
  token_files.load(tmp_path, 'gpt2')
  _edit_meta(tmp_path, validation_bytes='many')
  with pytest.raises(errors.UserError, match='not a whole number'):
    token_files.load(tmp_path, 'gpt2')


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
  _write(tmp_path)
  logged = []
  monkeypatch.setattr(
    token_files.logging, 'warning', lambda *args: logged.append(args)
  )

  def fail(*args):
    raise OSError('read-only file system')

  monkeypatch.setattr(token_files.os, 'replace', fail)
  token_files.load(tmp_path, 'gpt2')
  assert len(logged) == 1
  assert len(list(tmp_path.iterdir())) == 2
