"""Token files are made whole, as `text.load` would read them, or not at all."""

import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments import errors
from experiments.data import (
  corpora,
  documents,
  text,
  token_files,
  token_writer,
  tokenizers,
)

TEXTS = [f'Document {i}: it’s <|endoftext|> {i * i}.' for i in range(200)]

GPT2 = tokenizers.get('gpt2')


@pytest.fixture
def small(monkeypatch):
  # Reading the vocabulary takes most of the time of such a test.
  monkeypatch.setitem(tokenizers.TOKENIZERS, 'gpt2', lambda: GPT2)
  monkeypatch.setitem(corpora.CORPORA, 'small', lambda: list(TEXTS))
  return 'small'


def _make(source, out, tokenizer='gpt2', **kwargs):
  return token_writer.make(
    documents.read(str(source)), tokenizer, out, **kwargs
  )


def _content(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'])
@pytest.mark.parametrize('batch', [1, 1000, 10**6])
def test_same_as_text_load(small, tmp_path, monkeypatch, tokenizer, batch):
  monkeypatch.setattr(token_writer, '_BATCH_CHARACTERS', batch)
  _make(small, tmp_path / 'out', tokenizer)
  found = token_files.load(tmp_path / 'out', tokenizer)
  expected = text.load(small, tokenizer, cache=tmp_path / 'cache')
  np.testing.assert_array_equal(found.train, expected.train)
  np.testing.assert_array_equal(found.validation, expected.validation)
  assert found.bytes_per_token == expected.bytes_per_token
  assert found.corpus_sha256 == expected.corpus_sha256
  assert found.corpus == small


def test_description_is_right(small, tmp_path):
  meta = _make(small, tmp_path)
  assert meta == json.loads((tmp_path / 'meta.json').read_text())
  for name, file in meta['files'].items():
    content = (tmp_path / name).read_bytes()
    assert file['sha256'] == hashlib.sha256(content).hexdigest()
    assert 2 * file['tokens'] == len(content)
  assert set(_content(tmp_path)) == {'meta.json', 'train.bin', 'val.bin'}
  # Somebody else's description of the same files differs in the names only.
  (tmp_path / 'meta.json').unlink()
  token_files.load(tmp_path, 'gpt2')
  other = json.loads((tmp_path / 'meta.json').read_text())
  assert other['files'] == meta['files']
  assert other['validation_bytes'] == meta['validation_bytes']


def test_command(tmp_path):
  def run(*arguments):
    program = ['-m', 'experiments.make_token_files', '--from=pydoc_topics']
    return subprocess.run(
      [sys.executable, *program, f'--out={tmp_path / "a" / "b"}', *arguments],
      cwd=pathlib.Path(token_writer.__file__).parents[2],
      capture_output=True,
      text=True,
    )

  done = run('--tokenizer=bytes')
  assert done.returncode == 0, done.stderr
  assert 'train.bin: ' in done.stdout
  tokens = token_files.load(tmp_path / 'a' / 'b', 'bytes')
  assert f'train.bin: {tokens.train.size} tokens' in done.stdout
  refused = run('--tokenizer=gpt2')
  assert refused.returncode == 1
  assert refused.stderr.startswith('error: ')
  assert '--overwrite' in refused.stderr


def test_again_is_no_fault(small, tmp_path):
  _make(small, tmp_path)
  before = _content(tmp_path)
  _make(small, tmp_path)
  assert _content(tmp_path) == before


def test_other_content_is_kept(small, tmp_path, monkeypatch):
  _make(small, tmp_path)
  before = _content(tmp_path)

  def refused(source, tokenizer, message):
    with pytest.raises(errors.UserError, match=message):
      _make(source, tmp_path, tokenizer)
    assert _content(tmp_path) == before

  refused(small, 'bytes', 'of small by gpt2 already.*--overwrite')
  monkeypatch.setitem(corpora.CORPORA, 'other', lambda: TEXTS[:100])
  refused('other', 'gpt2', 'of small by gpt2 already.*--overwrite')
  monkeypatch.setitem(corpora.CORPORA, small, lambda: TEXTS[:100])
  refused(small, 'gpt2', 'of another state of small already')
  _make(small, tmp_path, overwrite=True)
  assert _content(tmp_path) != before
  token_files.load(tmp_path, 'gpt2')


def test_files_of_nanogpt_are_kept(small, tmp_path):
  (tmp_path / 'val.bin').write_bytes(b'ab')
  with pytest.raises(errors.UserError, match=r'files already \(val.bin\)'):
    _make(small, tmp_path)
  _make(small, tmp_path, overwrite=True)
  token_files.load(tmp_path, 'gpt2')


def test_overwrites_what_is_broken(small, tmp_path):
  (tmp_path / 'meta.json').write_text('{')
  with pytest.raises(errors.UserError, match='not in the format'):
    _make(small, tmp_path)
  _make(small, tmp_path, overwrite=True)


@pytest.mark.parametrize('overwrite', [True, False])
def test_a_fault_leaves_the_folder_as_it_was(small, tmp_path, overwrite):
  def broken():
    yield from TEXTS
    raise errors.UserError('line 201 is broken')

  source = documents.Documents(small, broken(), None)
  out = tmp_path / 'out'
  with pytest.raises(errors.UserError, match='line 201'):
    token_writer.make(source, 'bytes', out, overwrite)
  assert not out.exists()
  _make(small, out)
  before = _content(out)
  source = documents.Documents(small, broken(), None)
  with pytest.raises(errors.UserError, match='line 201'):
    token_writer.make(source, 'gpt2', out, overwrite)
  assert _content(out) == before


@pytest.mark.parametrize('texts, part', [([], 'train'), (['a'], 'validation')])
def test_too_little_text(tmp_path, texts, part):
  source = documents.Documents('nothing', iter(texts), None)
  with pytest.raises(errors.UserError, match=f'nothing has no text for {part}'):
    token_writer.make(source, 'gpt2', tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_folder_that_cannot_be_made(small, tmp_path):
  (tmp_path / 'file').write_text('in the way')
  with pytest.raises(errors.UserError, match='Cannot make the .*--out'):
    _make(small, tmp_path / 'file' / 'out')
