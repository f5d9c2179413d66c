"""Tokens in files that need not fit into the memory.

A folder in nanoGPT's format: `train.bin` and `val.bin` are ids and nothing
else, little-endian uint16, or uint32 for a vocabulary above 65,536. Beside them
`meta.json` says what they are, their checksums above all:

    tokenizer, vocab_size, dtype
    validation_bytes    of the validation text, a separator counting as one
    source              what they were made from
    corpus_sha256       of all documents, as `corpora.read` has it
    files               tokens and sha256 of each file

`python -m experiments.make_token_files` makes such folders. Folders without
`meta.json`, as nanoGPT's scripts make them, are read once from end to end to
write it; so are those with a file that is newer than its `meta.json`.
"""

from collections.abc import Mapping
import hashlib
import itertools
import json
import os
import pathlib
import sys
import time
from typing import Any

from absl import logging
import numpy as np
import tqdm

from experiments import errors, outputs
from experiments.data import text, tokenizers

META = 'meta.json'
FILES = {'train': 'train.bin', 'validation': 'val.bin'}

_CHUNK = 1 << 24  # bytes that are read at once


def dtype_of(vocab_size: int) -> np.dtype:
  """Returns the type of ids in files."""
  return np.dtype('<u2' if vocab_size <= 1 << 16 else '<u4')


def load(path: str | os.PathLike, tokenizer: str) -> text.Tokens:
  """Opens a folder of token files; what is used of them is read when it is.

  Args:
    path: the folder.
    tokenizer: a key of `tokenizers.TOKENIZERS`: what made the ids.

  Raises:
    UserError: if the folder is not one of whole token files of this tokenizer.
  """
  vocabulary = tokenizers.get(tokenizer)
  folder = pathlib.Path(path)
  parts = {
    part: _open(folder / file, vocabulary) for part, file in FILES.items()
  }
  meta = _current_meta(folder, vocabulary, parts)
  for part, file in FILES.items():
    logging.info(
      'Token file %s: %d tokens, sha256 %s',
      folder / file,
      parts[part].size,
      meta['files'][file]['sha256'],
    )
  return text.Tokens(
    **parts,
    tokenizer=vocabulary,
    bytes_per_token=meta['validation_bytes'] / parts['validation'].size,
    corpus=meta['source'],
    corpus_sha256=meta['corpus_sha256'],
  )


def write_meta(folder: pathlib.Path, meta: Mapping[str, Any]) -> None:
  """Writes `meta.json`, whole or not at all."""
  outputs.write(folder / META, json.dumps(meta, indent=2) + '\n')


def read_meta(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns what `meta.json` has, None if there is none.

  Raises:
    UserError: if it is not of the format.
  """
  path = folder / META
  if not path.is_file():
    return None
  try:
    meta = json.loads(path.read_bytes())
    # All that is used, so that nothing is missing later.
    [meta[key] for key in ('tokenizer', 'source', 'corpus_sha256')]
    if not (isinstance(meta['validation_bytes'], int)):
      raise TypeError('validation_bytes is not a whole number')
    for file in FILES.values():
      [meta['files'][file][key] for key in ('tokens', 'sha256')]
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
      f'{path} is not in the format of token files ({error!r}). Remove it, and '
      'it is made anew.'
    ) from error
  return meta


def _open(path: pathlib.Path, tokenizer: tokenizers.Tokenizer) -> np.ndarray:
  dtype = dtype_of(tokenizer.vocab_size)
  if not path.is_file():
    raise errors.UserError(
      f'There is no token file {path}. Make them by: python -m '
      f'experiments.make_token_files --from=SOURCE --tokenizer='
      f'{tokenizer.name} --out={path.parent}'
    )
  size = path.stat().st_size
  if not size or size % dtype.itemsize:
    raise errors.UserError(
      f'{path} has {size} bytes: not a whole number of ids of '
      f'{dtype.itemsize} bytes, or none. It is empty, cut short, or of another '
      'vocabulary.'
    )
  return np.memmap(path, dtype, mode='r')


def _current_meta(
  folder: pathlib.Path,
  tokenizer: tokenizers.Tokenizer,
  parts: Mapping[str, np.ndarray],
) -> dict[str, Any]:
  """Returns what is true of the files, at the price of reading them if new."""
  meta = read_meta(folder)
  if meta and meta['tokenizer'] != tokenizer.name:
    raise errors.UserError(
      f'The ids in {folder} are of the tokenizer {meta["tokenizer"]!r}, not of '
      f'{tokenizer.name!r}: set --config.data.tokenizer={meta["tokenizer"]}.'
    )
  if meta and not _changed(folder, meta, parts):
    return meta
  checksums = _scan(folder, tokenizer)
  if meta:
    _require_same(folder, meta, checksums)
  else:
    meta = _describe(folder, tokenizer, parts, checksums)
  try:
    write_meta(folder, meta)
  except OSError as error:
    logging.warning(
      'Without %s the files in %s are read in full at each start: %s',
      META,
      folder,
      error,
    )
  return meta


def _changed(folder, meta, parts) -> bool:
  """Whether a file may be another than the one that was described."""
  described = (folder / META).stat().st_mtime_ns
  return any(
    parts[part].size != meta['files'][file]['tokens']
    # Copies may keep the time of a modification, but not of the change.
    or (folder / file).stat().st_ctime_ns > described
    for part, file in FILES.items()
  )


def _require_same(folder, meta, checksums) -> None:
  for file, checksum in checksums.items():
    if checksum != meta['files'][file]['sha256']:
      raise errors.UserError(
        f'{folder / file} is not the file that {META} describes: it has sha256 '
        f'{checksum}. If the new file is right, remove {folder / META}.'
      )


def _scan(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer
) -> dict[str, str]:
  """Returns the checksums of the files, whose ids are all in the vocabulary."""
  total = sum((folder / file).stat().st_size for file in FILES.values())
  start = time.monotonic()
  dtype = dtype_of(tokenizer.vocab_size)
  checksums = {}
  with tqdm.tqdm(
    total=total,
    desc=f'Checksums of {folder}',
    unit='B',
    unit_scale=True,
    disable=not sys.stderr.isatty(),
  ) as bar:
    for name in FILES.values():
      digest, position = hashlib.sha256(), 0
      with (folder / name).open('rb') as file:
        while chunk := file.read(_CHUNK):
          digest.update(chunk)
          require_known(
            np.frombuffer(chunk, dtype), position, tokenizer, folder / name
          )
          position += len(chunk) // dtype.itemsize
          bar.update(len(chunk))
      checksums[name] = digest.hexdigest()
  seconds = time.monotonic() - start
  logging.info(
    'Read %d bytes in %s for their checksums in %.1f s; %s keeps them.',
    total,
    folder,
    seconds,
    META,
  )
  return checksums


def require_known(
  ids: np.ndarray,
  position: int,
  tokenizer: tokenizers.Tokenizer,
  path: pathlib.Path,
) -> None:
  """Refuses ids beyond the vocabulary.

  Args:
    ids: some of a file.
    position: of the first of them in the file.
    tokenizer: the vocabulary.
    path: the file.

  Raises:
    UserError: if there is such an id; it names the first.
  """
  if ids.size and ids.max() >= tokenizer.vocab_size:
    first = int(np.argmax(ids >= tokenizer.vocab_size))
    raise errors.UserError(
      f'{path} has the id {ids[first]} at position {position + first}, beyond '
      f'the {tokenizer.vocab_size} of the tokenizer {tokenizer.name!r}: it is '
      'of another tokenizer, or broken.'
    )


def _describe(folder, tokenizer, parts, checksums) -> dict[str, Any]:
  """Describes files that somebody else made."""
  # The documents are not known, only their ids.
  both = ''.join(checksums[file] for file in FILES.values())
  return {
    'tokenizer': tokenizer.name,
    'vocab_size': tokenizer.vocab_size,
    'dtype': dtype_of(tokenizer.vocab_size).name,
    'validation_bytes': _text_bytes(parts['validation'], tokenizer),
    'source': folder.resolve().name,
    'corpus_sha256': hashlib.sha256(both.encode()).hexdigest(),
    'files': {
      file: {'tokens': parts[part].size, 'sha256': checksums[file]}
      for part, file in FILES.items()
    },
  }


def _text_bytes(ids: np.ndarray, tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the bytes of a text, a separator counting as one."""
  # By documents: a cut elsewhere may be in the middle of a character.
  separators = np.flatnonzero(ids == tokenizer.separator)
  edges = [0, *separators.tolist(), ids.size]
  total = len(separators)
  for start, end in itertools.pairwise(edges):
    document = ids[start:end]
    document = document[document != tokenizer.separator]
    total += len(tokenizer.decode(document).encode())
  return total
