"""Writes token files: text of any size, never all of it in memory."""

from collections.abc import Iterable, Iterator
import hashlib
import os
import pathlib
import sys
import tempfile
from typing import Any

import tqdm

from experiments import errors, outputs
from experiments.data import documents, token_files, tokenizers

# Documents are encoded in batches of about so many characters.
_BATCH_CHARACTERS = 4_000_000


def make(
  source: documents.Documents,
  tokenizer: str,
  out: str | os.PathLike,
  overwrite: bool = False,
) -> dict[str, Any]:
  """Makes token files.

  Args:
    source: the documents.
    tokenizer: a key of `tokenizers.TOKENIZERS`.
    out: the folder; it has whole files at the end, or is as it was.
    overwrite: replace other token files that are there.

  Returns:
    What `meta.json` has.

  Raises:
    UserError: if the source has no text for one of the sides, if the folder
      cannot be written, or has other files.
  """
  vocabulary = tokenizers.get(tokenizer)
  folder = pathlib.Path(out)
  outputs.directory(folder, '--out')
  try:
    _require_free(folder, source.name, tokenizer, overwrite)
    with tempfile.TemporaryDirectory(prefix='.partial-', dir=folder) as partial:
      meta = _write(source, vocabulary, pathlib.Path(partial))
      _publish(pathlib.Path(partial), folder, meta, overwrite)
  except OSError as error:
    raise errors.UserError(
      f'Cannot write to {folder}: {error}. Name another folder with --out.'
    ) from error
  finally:
    if folder.is_dir() and not any(folder.iterdir()):
      folder.rmdir()
  return meta


def _require_free(folder, source, tokenizer, overwrite) -> None:
  """Refuses before the work what would be refused after it."""
  if overwrite:
    return
  meta = token_files.read_meta(folder)
  made_from = meta and (meta['source'], meta['tokenizer'])
  present = [
    name for name in token_files.FILES.values() if (folder / name).exists()
  ]
  if present and made_from != (source, tokenizer):
    of = f' of {made_from[0]} by {made_from[1]}' if made_from else ''
    raise errors.UserError(
      f'{folder} has token files{of} already ({", ".join(present)}). Name '
      'another folder with --out, or replace them with --overwrite.'
    )


def _write(
  source: documents.Documents,
  tokenizer: tokenizers.Tokenizer,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Writes both files, going through the documents once."""
  dtype = token_files.dtype_of(tokenizer.vocab_size)
  corpus = _Joined()
  digests = {part: hashlib.sha256() for part in token_files.FILES}
  tokens = dict.fromkeys(token_files.FILES, 0)
  validation_bytes = 0
  files = {
    part: (folder / name).open('wb') for part, name in token_files.FILES.items()
  }
  bar = tqdm.tqdm(
    total=source.total_bytes,
    desc=source.name,
    unit='B',
    unit_scale=True,
    disable=not sys.stderr.isatty(),
  )
  try:
    with bar:
      for batch in _batches(source.stream):
        sides = {part: [] for part in token_files.FILES}
        for document in batch:
          size = corpus.add(document)
          bar.update(size)
          part = 'validation' if documents.held_out(document) else 'train'
          validation_bytes += (size + 1) * (part == 'validation')
          sides[part].append(document)
        for part, chosen in sides.items():
          ids = tokenizer.encode_documents(chosen).astype(dtype)
          content = ids.tobytes()
          files[part].write(content)
          digests[part].update(content)
          tokens[part] += ids.size
  finally:
    for file in files.values():
      file.close()
  for part, count in tokens.items():
    if not count:
      raise errors.UserError(
        f'{source.name} has no text for {part}: {corpus.count} documents are '
        'too few, as one in twenty is held out.'
      )
  return {
    'tokenizer': tokenizer.name,
    'vocab_size': tokenizer.vocab_size,
    'dtype': dtype.name,
    'validation_bytes': validation_bytes,
    'source': source.name,
    'corpus_sha256': corpus.hexdigest(),
    'files': {
      name: {'tokens': tokens[part], 'sha256': digests[part].hexdigest()}
      for part, name in token_files.FILES.items()
    },
  }


class _Joined:
  """The checksum of documents joined by NUL, as `corpora.read` has it."""

  def __init__(self):
    self.count = 0
    self._digest = hashlib.sha256()

  def add(self, document: str) -> int:
    """Adds a document and returns its bytes."""
    content = document.encode()
    self._digest.update(b'\0' * (self.count > 0) + content)
    self.count += 1
    return len(content)

  def hexdigest(self) -> str:
    """Returns the checksum."""
    return self._digest.hexdigest()


def _batches(stream: Iterable[str]) -> Iterator[list[str]]:
  batch, characters = [], 0
  for document in stream:
    batch.append(document)
    characters += len(document)
    if characters >= _BATCH_CHARACTERS:
      yield batch
      batch, characters = [], 0
  if batch:
    yield batch


def _publish(partial, folder, meta, overwrite) -> None:
  """Moves whole files to where they belong; `meta.json` comes last."""
  old = None if overwrite else token_files.read_meta(folder)
  if old and old != meta:
    raise errors.UserError(
      f'{folder} has token files of another state of {meta["source"]} already. '
      'Name another folder with --out, or replace them with --overwrite.'
    )
  # A crash from here on leaves a folder that is refused, not a mixture.
  for name in [token_files.META, *token_files.FILES.values()]:
    (folder / name).unlink(missing_ok=True)
  for name in token_files.FILES.values():
    os.replace(partial / name, folder / name)
  token_files.write_meta(folder, meta)
