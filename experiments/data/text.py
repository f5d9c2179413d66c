"""A corpus and a tokenizer make two streams of tokens.

Documents are split by their own checksum, so a document stays on its side
whatever else the corpus holds, and no two runs can disagree.
"""

import dataclasses
import os
import pathlib
import tempfile

from absl import logging
import numpy as np

from experiments.data import corpora, tokenizers
from experiments.data import documents as documents_lib


@dataclasses.dataclass(frozen=True)
class Tokens:
  """The tokens of a corpus.

  Attributes:
    train: ids of the training documents, one after the other.
    validation: ids of the held-out documents.
    tokenizer: what made them; it can encode and decode.
    bytes_per_token: of the validation text, a separator counting as one byte.
      Nats per token divided by it are nats per byte, for any tokenizer.
    corpus: the name of the corpus.
    corpus_sha256: the checksum of all its documents.
  """

  train: np.ndarray
  validation: np.ndarray
  tokenizer: tokenizers.Tokenizer
  bytes_per_token: float
  corpus: str
  corpus_sha256: str

  @property
  def vocab_size(self) -> int:
    """Number of ids."""
    return self.tokenizer.vocab_size


def load(
  corpus: str, tokenizer: str, cache: str | os.PathLike | None = None
) -> Tokens:
  """Reads a corpus as tokens.

  Args:
    corpus: a key of `corpora.CORPORA`.
    tokenizer: a key of `tokenizers.TOKENIZERS`.
    cache: where ids that are slow to compute are kept; by default
      `$XDG_CACHE_HOME/signmomentum`, or `~/.cache/signmomentum`.

  Returns:
    Tokens that depend on the corpus and the tokenizer alone.

  Raises:
    UserError: for an unknown name or a package that is not installed.
  """
  vocabulary = tokenizers.get(tokenizer)
  documents, digest = corpora.read(corpus)
  folder = pathlib.Path(cache) if cache else _cache_folder()
  parts = {}
  sides = _split(documents)
  for part, texts in sides.items():
    path = folder / f'{digest}-{tokenizer}-{part}.npy'
    parts[part] = _encode(vocabulary, texts, path)
  text_bytes = sum(len(text.encode()) + 1 for text in sides['validation'])
  return Tokens(
    **parts,
    tokenizer=vocabulary,
    bytes_per_token=text_bytes / max(1, parts['validation'].size),
    corpus=corpus,
    corpus_sha256=digest,
  )


def _split(documents: list[str]) -> dict[str, list[str]]:
  sides = {'train': [], 'validation': []}
  for document in documents:
    held_out = documents_lib.held_out(document)
    sides['validation' if held_out else 'train'].append(document)
  return sides


def _encode(
  tokenizer: tokenizers.Tokenizer, documents: list[str], path: pathlib.Path
) -> np.ndarray:
  """Encodes documents, or reads what an earlier call kept at `path`."""
  if not tokenizer.slow:
    return tokenizer.encode_documents(documents)
  try:
    ids = np.load(path)
    if ids.dtype == tokenizer.dtype and ids.ndim == 1:
      return ids
  # Absent, or cut short by an older crash: make it again.
  except (OSError, ValueError, EOFError):
    pass
  logging.info('Encoding %d documents (%s)', len(documents), tokenizer.name)
  ids = tokenizer.encode_documents(documents)
  _keep(ids, path)
  return ids


def _keep(ids: np.ndarray, path: pathlib.Path) -> None:
  """Writes the cache; a run goes on without one.

  The file appears whole or not at all, so several processes may write the same
  path at once: the last one wins, and all of them wrote the same.
  """
  partial = None
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
      dir=path.parent, suffix='.partial', delete=False
    ) as file:
      partial = file.name
      np.save(file, ids)
    os.replace(partial, path)
  except OSError as error:
    logging.warning('Tokens are not cached: %s', error)
    if partial is not None:
      pathlib.Path(partial).unlink(missing_ok=True)


def _cache_folder() -> pathlib.Path:
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(home) / 'signmomentum'
