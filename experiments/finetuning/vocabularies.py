"""Vocabularies of given weights, and our own: texts to ids.

bytes, gpt2         those of `experiments.data.tokenizers`; what they put before
                    a document is the end of a text, too
a folder or a file  tokenizer.json, beside the config.json that has the id
                    of the end of a text
"""

from collections.abc import Callable
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from experiments import errors
from experiments.data import tokenizers
from experiments.finetuning import architectures

_FILE = 'tokenizer.json'


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """How texts become ids.

  Attributes:
    size: all ids are below it.
    begin: what is before every text; may be nothing.
    end: the id of the end of a text.
    encode: text to ids, without the two.
    decode: ids to text.
  """

  size: int
  begin: tuple[int, ...]
  end: int
  encode: Callable[[str], np.ndarray]
  decode: Callable[[list[int]], str]

  def pair(self, prompt: str, answer: str) -> tuple[np.ndarray, int]:
    """Encodes a prompt and an answer in one piece, as a text would be.

    Args:
      prompt: what comes first.
      answer: what follows, directly.

    Returns:
      the ids with `begin` and without `end`, and the place of the first that
      belongs to the answer; a token that has something of both is the answer's.
    """
    ids = self.encode(prompt + answer)
    before = self.encode(prompt)[: ids.size]
    same = before == ids[: before.size]
    start = before.size if same.all() else int(np.argmin(same))
    begin = np.array(self.begin, np.int32)
    whole = np.concatenate([begin, ids.astype(np.int32)])
    return whole, len(begin) + start


def get(name: str) -> Vocabulary:
  """Returns a vocabulary.

  Args:
    name: see the module's docstring.

  Raises:
    UserError: if there is none, or it lacks the id of the end of a text.
  """
  if name in tokenizers.TOKENIZERS:
    own = tokenizers.get(name)
    separator = own.separator
    return Vocabulary(
      own.vocab_size, (separator,), separator, own.encode, own.decode
    )
  path = pathlib.Path(name)
  path = path if path.suffix == '.json' else path / _FILE
  if not name or not path.is_file():
    raise errors.UserError(
      f'No tokenizer {name!r}. There are: {", ".join(tokenizers.TOKENIZERS)},'
      f' and folders with {_FILE}. (A tokenizer.model is to be converted.)'
    )
  tokenizer = _read(path)
  # What is put before a text is part of the file.
  one = tokenizer.encode('a', add_special_tokens=True)
  count = one.special_tokens_mask.index(0)

  def encode(text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return np.array(ids, np.int32)

  end = _end(path.with_name(architectures.CONFIG))
  # There may be ids beyond those that are counted: gaps between them.
  size = 1 + max([end, *tokenizer.get_vocab(with_added_tokens=True).values()])
  return Vocabulary(size, tuple(one.ids[:count]), end, encode, tokenizer.decode)


def _read(path: pathlib.Path) -> Any:
  try:
    # Here, not above: runs with vocabularies of our own do without it.
    import tokenizers as hugging_face
  except ImportError as error:
    raise errors.UserError(
      f'{_FILE} needs a package that is missing ({error}): pip install -e'
      " '.[finetune]'."
    ) from error
  try:
    tokenizer = hugging_face.Tokenizer.from_file(str(path))
  except Exception as error:  # it has no kinds of its own
    raise errors.UserError(f'{path} is not a tokenizer: {error}.') from error
  # Files may carry the settings of a training: to cut and to fill up texts.
  tokenizer.no_truncation()
  tokenizer.no_padding()
  # A text that spells out the end of a text is text.
  tokenizer.encode_special_tokens = True
  return tokenizer


def _end(path: pathlib.Path) -> int:
  found = None
  if path.is_file():
    try:
      found = json.loads(path.read_text(encoding='utf-8'))['eos_token_id']
    except (ValueError, KeyError, TypeError):
      found = None
  # Chat models have several; the first ends a text.
  found = found[0] if isinstance(found, list) and found else found
  if type(found) is not int or found < 0:
    raise errors.UserError(
      f'{path} must have "eos_token_id", the id of the end of a text.'
    )
  return found
