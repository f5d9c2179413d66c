"""What counting alone achieves: unigrams and bigrams.

A language model that does not beat the bigram has learnt no context. The
bigram is interpolated, p(b | a) = w * n(a, b) / n(a) + (1 - w) * p(b), where
the unigram p has one added to every count. The weight w is chosen on every
twentieth block of the training stream, with counts from the others; then the
counts are taken from all of it. The validation stream chooses nothing.
"""

import dataclasses

import numpy as np

from experiments.data import text

# Dense near 1, where the weight of a bigram over few symbols lies.
_WEIGHTS = 1 - np.geomspace(1e-5, 0.99, 200)
_BLOCK = 4096
_HELD_OUT_EVERY = 20


@dataclasses.dataclass(frozen=True)
class Baselines:
  """Cross-entropies on the validation stream.

  Attributes:
    unigram: nats per token.
    bigram: nats per token.
    unigram_per_byte: nats per byte.
    bigram_per_byte: nats per byte.
    bigram_weight: w above.
  """

  unigram: float
  bigram: float
  unigram_per_byte: float
  bigram_per_byte: float
  bigram_weight: float


def compute(tokens: text.Tokens) -> Baselines:
  """Counts on `tokens.train` and scores `tokens.validation`.

  The targets are all tokens but the first, as for a model.
  """
  size = tokens.vocab_size
  pairs = _pairs(tokens.train, size)
  held_out = np.arange(pairs.size) // _BLOCK % _HELD_OUT_EVERY == 0
  # A stream of one block is too short to choose on other text.
  fitted = pairs[~held_out] if pairs.size > _BLOCK else pairs
  probabilities = _probabilities(fitted, pairs[held_out], size)
  losses = [_bigram_loss(*probabilities, weight) for weight in _WEIGHTS]
  weight = float(_WEIGHTS[np.argmin(losses)])

  probabilities = _probabilities(pairs, _pairs(tokens.validation, size), size)
  unigram = _bigram_loss(*probabilities, 0.0)
  bigram = _bigram_loss(*probabilities, weight)
  return Baselines(
    unigram=unigram,
    bigram=bigram,
    unigram_per_byte=unigram / tokens.bytes_per_token,
    bigram_per_byte=bigram / tokens.bytes_per_token,
    bigram_weight=weight,
  )


def _pairs(tokens: np.ndarray, size: int) -> np.ndarray:
  """Numbers the pairs of neighbours, a * size + b, in few bits (to sort)."""
  dtype = np.min_scalar_type(size * size - 1)
  return tokens[:-1].astype(dtype) * dtype.type(size) + tokens[1:]


def _probabilities(
  counted: np.ndarray, scored: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns p(b | a), p(b) and the share of each distinct scored pair."""
  known, counts = np.unique(counted, return_counts=True)
  first = np.bincount(known // size, counts, minlength=size)
  second = np.bincount(known % size, counts, minlength=size)
  pairs, times = np.unique(scored, return_counts=True)
  place = np.minimum(np.searchsorted(known, pairs), known.size - 1)
  seen = np.where(known[place] == pairs, counts[place], 0)
  unigram = (second[pairs % size] + 1) / (counted.size + size)
  # A token that was never followed by another tells nothing.
  follows = first[pairs // size]
  conditional = np.where(follows, seen / np.maximum(follows, 1), unigram)
  return conditional, unigram, times / scored.size


def _bigram_loss(
  conditional: np.ndarray, unigram: np.ndarray, share: np.ndarray, weight: float
) -> float:
  mixture = weight * conditional + (1 - weight) * unigram
  return float(-share @ np.log(mixture))
