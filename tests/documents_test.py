"""Documents from files, one after the other."""

import json

import pytest

from experiments import errors
from experiments.data import corpora, documents


def _all(source):
  return list(documents.read(str(source)).stream)


def test_corpora(monkeypatch):
  monkeypatch.setitem(corpora.CORPORA, 'small', lambda: ['a', 'bé'])
  found = documents.read('small')
  assert list(found.stream) == ['a', 'bé']
  assert (found.name, found.total_bytes) == ('small', 4)


def test_folder_in_the_order_of_names(tmp_path):
  (tmp_path / 'sub').mkdir()
  (tmp_path / 'sub' / 'b.txt').write_text('second\n')
  (tmp_path / 'a.txt').write_text('first\n\nstill the first\n')
  lines = ['third', {'text': 'fourth\n'}, ' ', {'text': ''}]
  content = '\n'.join(json.dumps(line) for line in lines) + '\n\n'
  (tmp_path / 'sub' / 'c.jsonl').write_text(content)
  (tmp_path / 'README.md').write_text('not a document')
  assert _all(tmp_path) == [
    'first\n\nstill the first',
    'second',
    'third',
    'fourth\n',
  ]
  size = documents.read(str(tmp_path)).total_bytes
  assert size == 7 + 23 + len(content)


def test_long_text_is_cut_at_empty_lines(tmp_path):
  paragraphs = [f'{i}: ' + 'word ' * 300 + '\nend' for i in range(40)]
  text = '\n\n'.join(paragraphs)
  (tmp_path / 'book.txt').write_text(text)
  found = _all(tmp_path / 'book.txt')
  assert '\n\n'.join(found) == text
  assert 4 <= len(found) <= 7
  assert all(10_000 <= len(part) < 12_000 for part in found[:-1])


def test_nothing_is_held_in_memory(tmp_path):
  (tmp_path / 'a.jsonl').write_text('"first"\nnonsense')
  stream = documents.read(str(tmp_path)).stream
  assert next(stream) == 'first'
  with pytest.raises(errors.UserError, match='line 2'):
    next(stream)


def test_one_in_twenty_is_held_out():
  held_out = [documents.held_out(f'Document {i}') for i in range(4000)]
  # 13 of 256; five standard deviations.
  assert abs(sum(held_out) - 4000 * 13 / 256) < 70


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('a.jsonl', b'"x"\n{"content": "y"}', "line 2 .*KeyError\\('text'\\)"),
    ('a.jsonl', b'{"text": 5}', 'line 1'),
    ('a.jsonl', b'["x"]', 'line 1'),
    ('a.jsonl', b'"\\ud800"', 'line 1'),
    ('a.txt', b'fine\n\xff\n', 'a.txt is not UTF-8'),
    ('a.md', b'text', 'a.md is not of the kinds'),
  ],
)
def test_broken_files(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.UserError, match=message):
    _all(tmp_path / name)


def test_no_source(tmp_path):
  with pytest.raises(errors.UserError, match='has no files'):
    _all(tmp_path)
  with pytest.raises(errors.UserError, match=r'english.*tfds:NAME'):
    _all('englisch')
