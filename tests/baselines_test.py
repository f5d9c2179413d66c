"""Unigram and bigram against a count by hand, and on the real corpus."""

import collections
import itertools
import math

import numpy as np
import pytest

from experiments import baselines
from experiments.data import text, tokenizers


def _tokens(train, validation, bytes_per_token=1.0):
  return text.Tokens(
    train=np.asarray(train, np.uint8),
    validation=np.asarray(validation, np.uint8),
    tokenizer=tokenizers.get('bytes'),
    bytes_per_token=bytes_per_token,
    corpus='by hand',
    corpus_sha256='',
  )


def _by_hand(train, validation, weight):
  """The definition, one token at a time."""
  pairs = collections.Counter(itertools.pairwise(train))
  firsts = collections.Counter(train[:-1])
  targets = collections.Counter(train[1:])
  unigram = bigram = 0.0
  for a, b in itertools.pairwise(validation):
    p = (targets[b] + 1) / (len(train) - 1 + 256)
    q = pairs[a, b] / firsts[a] if firsts[a] else p
    unigram -= math.log(p)
    bigram -= math.log(weight * q + (1 - weight) * p)
  return unigram / (len(validation) - 1), bigram / (len(validation) - 1)


@pytest.mark.parametrize('length', [50, 20_000])
def test_equals_counting_by_hand(length):
  random = np.random.default_rng(0)
  # Sorted in pairs, so neighbours tell about each other; 30 is never seen.
  train = np.sort(random.integers(0, 30, (length // 2, 2)), axis=1).ravel()
  validation = np.append(train[:100], [30, 3, 255, 255])
  found = baselines.compute(_tokens(train, validation))
  unigram, bigram = _by_hand(
    train.tolist(), validation.tolist(), found.bigram_weight
  )
  assert found.unigram == pytest.approx(unigram, rel=1e-12)
  assert found.bigram == pytest.approx(bigram, rel=1e-12)


def test_weight_follows_the_text():
  random = np.random.default_rng(0)
  noise = random.integers(0, 200, 30_000)
  order = np.arange(30_000) % 200
  assert baselines.compute(_tokens(noise, noise[:99])).bigram_weight < 0.2
  ordered = baselines.compute(_tokens(order, order[:99]))
  assert ordered.bigram_weight > 0.99
  assert ordered.bigram < 0.01
  assert ordered.unigram == pytest.approx(math.log(200), abs=0.02)


def test_validation_text_does_not_choose_the_weight():
  random = np.random.default_rng(0)
  train = np.sort(random.integers(0, 30, (10_000, 2)), axis=1).ravel()
  weights = {
    baselines.compute(_tokens(train, validation)).bigram_weight
    for validation in (train[:1000], train[:1000][::-1], [1, 2, 255])
  }
  assert len(weights) == 1


def test_per_byte():
  train = np.arange(1000) % 7
  found = baselines.compute(_tokens(train, train, bytes_per_token=4.0))
  assert found.unigram_per_byte == found.unigram / 4
  assert found.bigram_per_byte == found.bigram / 4


def test_english():
  found = baselines.compute(text.load('english', 'bytes'))
  assert found.unigram == pytest.approx(3.147, abs=2e-3)
  assert found.bigram == pytest.approx(2.505, abs=2e-3)


def test_large_vocabulary():
  # 50257 ** 2 pairs fill 32 bits nearly.
  tokens = np.array([50256, 50256, 0, 50256], np.uint16)
  pairs = baselines._pairs(tokens, 50257)
  assert pairs.tolist() == [50257**2 - 1, 50256 * 50257, 50256]
