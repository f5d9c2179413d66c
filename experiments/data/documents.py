"""Documents one after the other, from sources too large for the memory.

    english, code, ...       an installed corpus (`experiments.data.corpora`)
    tfds:NAME[:CONFIG]       the `text` of a prepared set of TFDS
    a file or a folder       .txt and .jsonl files, in the order of their names

A line of a .jsonl file is a document: a string, or an object with the string
under "text". A .txt file of up to 10,000 characters is a document; a longer one
is cut at the empty lines that follow that many characters, so that a single
book also has documents to hold out.
"""

from collections.abc import Iterator
import dataclasses
import hashlib
import json
import pathlib

from experiments import errors
from experiments.data import corpora

# Of the 256 values of a document's first checksum byte: about 5 %.
_VALIDATION_BYTES = 13
_SUFFIXES = ('.txt', '.jsonl')
_CHARACTERS = 10_000


@dataclasses.dataclass(frozen=True)
class Documents:
  """Documents of a source; they can be gone through once.

  Attributes:
    name: of the source.
    stream: yields the documents.
    total_bytes: about how many there are, if that is known.
  """

  name: str
  stream: Iterator[str]
  total_bytes: int | None


def held_out(document: str) -> bool:
  """Returns whether a document is for validation, by its own checksum."""
  return hashlib.sha256(document.encode()).digest()[0] < _VALIDATION_BYTES


def read(source: str, data_dir: str = '') -> Documents:
  """Opens a source.

  Args:
    source: see the module's docstring.
    data_dir: where TFDS has its data, by default its own choice.

  Raises:
    UserError: for a source that is not there; while streaming, for a file that
      is not UTF-8 or not of its format.
  """
  if source in corpora.CORPORA:
    found = corpora.read(source).documents
    size = sum(len(document.encode()) for document in found)
    return Documents(source, iter(found), size)
  kind, _, name = source.partition(':')
  if kind == 'tfds':
    # Here, not above: other sources do without its packages.
    from experiments.data import tfds_sources

    stream, size = tfds_sources.documents(name.replace(':', '/'), data_dir)
    return Documents(source, stream, size)
  path = pathlib.Path(source)
  if not path.exists():
    raise errors.UserError(
      f'No source of text {source!r}. There are: {", ".join(corpora.CORPORA)}, '
      'tfds:NAME[:CONFIG], and files or folders of .txt and .jsonl.'
    )
  files = _files(path)
  size = sum(file.stat().st_size for file in files)
  return Documents(source, _of_files(files), size)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_file():
    files = [path] if path.suffix in _SUFFIXES else []
  else:
    files = [
      file
      for file in sorted(path.rglob('*'))
      if file.suffix in _SUFFIXES and file.is_file()
    ]
  if not files:
    what = 'is not' if path.is_file() else 'has no files'
    raise errors.UserError(f'{path} {what} of the kinds .txt and .jsonl.')
  return files


def _of_files(files: list[pathlib.Path]) -> Iterator[str]:
  for path in files:
    try:
      with path.open(encoding='utf-8') as file:
        yield from (_lines if path.suffix == '.jsonl' else _parts)(file, path)
    except UnicodeDecodeError as error:
      raise errors.UserError(f'{path} is not UTF-8: {error}.') from error
    except OSError as error:
      raise errors.UserError(f'{path}: {error.strerror}.') from error


def _parts(file: Iterator[str], path: pathlib.Path) -> Iterator[str]:
  """Yields the text in parts; nothing but the empty lines between is lost."""
  del path
  lines, characters = [], 0
  for line in file:
    lines.append(line)
    characters += len(line)
    if characters >= _CHARACTERS and not line.strip():
      yield from _text(lines)
      lines, characters = [], 0
  yield from _text(lines)


def _text(lines: list[str]) -> Iterator[str]:
  text = ''.join(lines).strip('\n')
  # Empty documents teach nothing.
  if text.strip():
    yield text


def _lines(file: Iterator[str], path: pathlib.Path) -> Iterator[str]:
  for number, line in enumerate(file, 1):
    if not line.strip():
      continue
    try:
      document = json.loads(line)
      if isinstance(document, dict):
        document = document['text']
      # Half a surrogate pair is valid JSON, but no text.
      document.encode()
    except (ValueError, KeyError, AttributeError) as error:
      raise errors.UserError(
        f'{path}, line {number} is neither a JSON string nor an object with a '
        f'string under "text": {error!r}.'
      ) from error
    if document.strip():
      yield document
