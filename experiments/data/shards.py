"""Which examples a worker sees at which step.

Example i belongs to worker i % workers, for good: shards are disjoint, cover
everything and look alike. Or, with `whole`, everything belongs to everybody, as
in the image experiments of the Distributed Lion paper. A worker goes through
its shard in an order drawn anew for every epoch from (seed, epoch, worker).
Where a shard is exhausted, be it in the middle of a batch or of a round, it
goes straight on with the next epoch: all rounds have equally many steps and all
batches are full, whatever the sizes of the shards.

Everything is a function of (seed, step, worker): nothing to save in a
checkpoint, and the executor cannot change it.
"""

from collections.abc import Sequence

import numpy as np

from experiments import errors

SHARDING = ('disjoint', 'whole')


class Shards:
  """The examples of all workers, or of some.

  Args:
    size: number of examples.
    batch_size: examples per worker and step.
    workers: number of workers.
    seed: of the orders.
    only: make the rows of these workers alone, in this order.
    sharding: one of `SHARDING`.

  Raises:
    UserError: if a shard is smaller than a batch, or for an unknown sharding.
  """

  def __init__(
    self,
    size: int,
    batch_size: int,
    workers: int,
    seed: int,
    only: Sequence[int] | None = None,
    sharding: str = 'disjoint',
  ):
    if sharding not in SHARDING:
      raise errors.unknown('sharding', sharding, SHARDING)
    self._shards = workers if sharding == 'disjoint' else 1
    if size < self._shards * batch_size:
      raise errors.UserError(
        f'{size} examples are too few for a batch of {batch_size} on each of'
        f' {workers} workers: use more data, or a smaller batch_size or number'
        ' of workers.'
      )
    self.size = size
    self.batch_size = batch_size
    self.rows = range(workers) if only is None else tuple(only)
    self._workers = workers
    self._seed = seed
    # The current epoch's order of each worker's shard: worker -> epoch, order.
    self._orders = {}

  def indices(self, first_step: int, steps: int) -> np.ndarray:
    """Returns the examples of consecutive steps.

    Args:
      first_step: the first of them, counted from 0.
      steps: how many.

    Returns:
      int64 `[rows, steps, batch_size]`.
    """
    rows = [self._row(worker, first_step, steps) for worker in self.rows]
    return np.stack(rows).reshape(len(self.rows), steps, self.batch_size)

  def epoch(self, step: int) -> float:
    """Returns how often the mean example has been seen before `step`."""
    return step * self.batch_size * self._workers / self.size

  def _row(self, worker: int, step: int, steps: int) -> np.ndarray:
    first = worker % self._shards
    size = len(range(first, self.size, self._shards))
    position = step * self.batch_size
    end = (step + steps) * self.batch_size
    parts = []
    while position < end:
      epoch, start = divmod(position, size)
      parts.append(self._order(worker, epoch, size)[start:][: end - position])
      position += parts[-1].size
    return first + self._shards * np.concatenate(parts)

  def _order(self, worker: int, epoch: int, size: int) -> np.ndarray:
    known_epoch, order = self._orders.get(worker, (None, None))
    if known_epoch != epoch:
      random = np.random.default_rng([self._seed, epoch, worker])
      order = random.permutation(size)
      self._orders[worker] = epoch, order
    return order
