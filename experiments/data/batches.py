"""Windows of text, to train on and to evaluate on.

A stream of tokens is cut into windows of `context + 1` tokens that overlap by
one, so every token but the first is a target exactly once; less than `context`
tokens at the end fill no window and are left out of training. A worker's shard
is one of windows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments import errors
from experiments.data import shards


class Batches:
  """Training batches of all workers, or of some.

  Args:
    tokens: the stream, a vector of ids.
    context: number of targets in a window.
    batch_size: windows per worker and step.
    workers: number of shards.
    seed: of the orders.
    only: make the rows of these workers alone, in this order.
    sharding: one of `shards.SHARDING`.

  Raises:
    UserError: if a shard has fewer windows than a batch.
  """

  def __init__(
    self,
    tokens: np.ndarray,
    context: int,
    batch_size: int,
    workers: int,
    seed: int,
    only: Sequence[int] | None = None,
    sharding: str = 'disjoint',
  ):
    self.windows = max(0, tokens.size - 1) // context
    if self.windows < batch_size:
      raise errors.UserError(
        f'{tokens.size} tokens make {self.windows} windows of {context}, too'
        f' few for a batch of {batch_size}: use a larger corpus, or a smaller'
        ' context or batch_size.'
      )
    self._shards = shards.Shards(
      self.windows, batch_size, workers, seed, only, sharding
    )
    self._tokens = tokens
    self._context = context

  def at(self, step: int) -> np.ndarray:
    """Returns the batches of one step.

    Args:
      step: counted from 0.

    Returns:
      int32 `[rows, batch_size, context + 1]`.
    """
    return self.round(step, 1)[:, 0]

  def round(self, first_step: int, steps: int) -> np.ndarray:
    """Returns the batches of consecutive steps.

    Args:
      first_step: the first of them.
      steps: how many.

    Returns:
      int32 `[rows, steps, batch_size, context + 1]`.
    """
    starts = self._context * self._shards.indices(first_step, steps)
    offsets = np.arange(self._context + 1)
    return self._tokens[starts[..., None] + offsets].astype(np.int32)

  def epoch(self, step: int) -> float:
    """Returns how often the corpus has been seen before `step`."""
    return self._shards.epoch(step)


class Evaluation(NamedTuple):
  """Windows to evaluate: `[batches, batch_size, ...]`.

  `tokens` is int32 with `context + 1` ids per window, `mask` bool with one
  entry per target: false where the last batch is filled up.
  """

  tokens: np.ndarray
  mask: np.ndarray


def evaluation_windows(
  tokens: np.ndarray,
  context: int,
  batch_size: int,
  max_tokens: int | None = None,
) -> Evaluation:
  """Cuts a stream into batches in which every target is there exactly once.

  Args:
    tokens: the stream, a vector of ids.
    context: number of targets in a window.
    batch_size: windows per batch.
    max_tokens: take about that many targets, from windows spread evenly over
      the stream: its beginning alone would be one letter of a dictionary. All
      if None.

  Raises:
    UserError: if there is nothing to predict.
  """
  targets = tokens.size - 1
  if targets < 1:
    raise errors.UserError('There is no validation text: nothing to predict.')
  windows = -(-targets // context)
  wanted = windows if max_tokens is None else -(-max_tokens // context)
  count = max(1, min(windows, wanted))
  starts = context * (np.arange(count) * windows // count)
  batches = -(-count // batch_size)
  # Filling windows start beyond the end, where nothing counts.
  filling = np.full(batches * batch_size - count, targets)
  index = np.concatenate([starts, filling])[:, None] + np.arange(context + 1)
  ids = tokens[np.minimum(index, targets)].astype(np.int32)
  mask = index[:, 1:] <= targets
  shape = batches, batch_size, -1
  return Evaluation(ids.reshape(shape), mask.reshape(shape))
