"""Which text a worker sees at which step.

A stream of tokens is cut into windows of `context + 1` tokens that overlap by
one, so every token but the first is a target exactly once; less than `context`
tokens at the end fill no window and are left out. Window i belongs to worker
i % workers, for good: shards are disjoint, cover all windows and look alike. A
worker goes through its shard in an order drawn anew for every epoch from
(seed, epoch, worker), and straight on into the next epoch.

Everything is a function of (seed, step, worker): nothing to save in a
checkpoint, and the executor cannot change it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments import errors


class Batches:
  """Training batches of all workers, or of some.

  Args:
    tokens: the stream, a vector of ids.
    context: number of targets in a window.
    batch_size: windows per worker and step.
    workers: number of shards.
    seed: of the orders.
    only: make the rows of these workers alone, in this order.

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
  ):
    self.windows = max(0, tokens.size - 1) // context
    if self.windows < workers * batch_size:
      raise errors.UserError(
        f'{tokens.size} tokens make {self.windows} windows of {context}, too '
        f'few for a batch of {batch_size} on each of {workers} workers: use a '
        'larger corpus, or a smaller context, batch_size or number of workers.'
      )
    self._tokens = tokens
    self._context = context
    self._batch_size = batch_size
    self._workers = workers
    self._seed = seed
    self._rows = range(workers) if only is None else only
    # The current epoch's order of each worker's shard: worker -> epoch, order.
    self._orders = {}

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
    starts = self._context * np.stack(
      [self._shard_windows(worker, first_step, steps) for worker in self._rows]
    )
    offsets = np.arange(self._context + 1)
    windows = self._tokens[starts[..., None] + offsets].astype(np.int32)
    return windows.reshape(
      len(self._rows), steps, self._batch_size, self._context + 1
    )

  def epoch(self, step: int) -> float:
    """Returns how often the corpus has been seen before `step`."""
    return step * self._batch_size * self._workers / self.windows

  def _shard_windows(self, worker: int, step: int, steps: int) -> np.ndarray:
    """Returns the indices of the windows of `steps` steps of one worker."""
    size = len(range(worker, self.windows, self._workers))
    position = step * self._batch_size
    end = (step + steps) * self._batch_size
    parts = []
    while position < end:
      epoch, start = divmod(position, size)
      parts.append(self._order(worker, epoch, size)[start:][: end - position])
      position += parts[-1].size
    return worker + self._workers * np.concatenate(parts)

  def _order(self, worker: int, epoch: int, size: int) -> np.ndarray:
    known_epoch, order = self._orders.get(worker, (None, None))
    if known_epoch != epoch:
      random = np.random.default_rng([self._seed, epoch, worker])
      order = random.permutation(size)
      self._orders[worker] = epoch, order
    return order


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
