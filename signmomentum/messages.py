"""How packed grids are cut into one flat message for each worker, and back.

A grid of ``rows x 128`` words is cut by rows where there are many, and by
columns too in small trees, so that little is sent in vain. Workers whose chunks
lie side by side need the same masks by block, which are then sent to each.
"""

import dataclasses

import jax
import jax.numpy as jnp

from signmomentum import kernels, signs


@dataclasses.dataclass(frozen=True)
class Cut:
  """A cut of a grid into ``down x across`` chunks of ``height x width`` words.

  Attributes:
    rows: rows of the grid.
    down: chunks one below the other.
    across: chunks side by side.
  """

  rows: int
  down: int
  across: int

  @property
  def height(self) -> int:
    """Rows of a chunk."""
    return -(-self.rows // self.down)

  @property
  def width(self) -> int:
    """Words in a row of a chunk."""
    return -(-signs.BLOCK // self.across)

  @property
  def workers(self) -> int:
    """Number of chunks."""
    return self.down * self.across

  def cut(self, grids: signs.Grids) -> jax.Array:
    """Messages ``[workers, words]``, one chunk of every grid in each."""
    elements = [self._cut(grid, self.width) for grid in grids.elements]
    blocks = [self._cut(mask, 1) for mask in grids.blocks]
    whole = [jnp.broadcast_to(flag, (self.workers, 1)) for flag in grids.whole]
    return jnp.concatenate([*elements, *blocks, *whole], axis=1)

  def read(self, messages: jax.Array, like: signs.Grids) -> signs.Grids:
    """Chunks ``[workers, height, width]`` of the grids in some messages.

    Args:
      messages: ``[workers, words]``.
      like: grids of the same kind, which say how many there are.
    """
    read, start = [], 0
    for planes, shape in (
      (like.elements, (self.height, self.width)),
      (like.blocks, (self.height, 1)),
      (like.whole, (1, 1)),
    ):
      size = shape[0] * shape[1]
      parts = []
      for _ in planes:
        part = messages[:, start : start + size]
        parts.append(part.reshape(-1, *shape))
        start += size
      read.append(tuple(parts))
    return signs.Grids(*read)

  def write(self, chunk: signs.Grids) -> jax.Array:
    """One flat message ``[words]`` of one chunk of every grid."""
    return jnp.concatenate(
      [plane.reshape(-1) for plane in jax.tree.leaves(chunk)]
    )

  def join(self, messages: jax.Array, like: signs.Grids) -> signs.Grids:
    """The whole grids, from one message of every worker."""
    # Otherwise XLA for CPU computes for every element that is unpacked in whose
    # message its bit is: a division each, and twice the time.
    chunks = jax.tree.map(
      lambda chunk: kernels.written_down(chunk, 'cpu'),
      self.read(messages, like),
    )
    return signs.Grids(
      tuple(self._join(chunk, signs.BLOCK) for chunk in chunks.elements),
      tuple(self._join(chunk, 1) for chunk in chunks.blocks),
      tuple(flag[0] for flag in chunks.whole),
    )

  def _cut(self, grid: jax.Array, width: int) -> jax.Array:
    across = self.across if grid.shape[1] > 1 else 1
    fill = (self.down * self.height - self.rows, across * width - grid.shape[1])
    grid = jnp.pad(grid, [(0, n) for n in fill])
    chunks = grid.reshape(self.down, self.height, across, width).swapaxes(1, 2)
    shape = (self.down, self.across, self.height, width)
    return jnp.broadcast_to(chunks, shape).reshape(self.workers, -1)

  def _join(self, chunks: jax.Array, lanes: int) -> jax.Array:
    cells = chunks.reshape(self.down, self.across, self.height, -1)
    if lanes == 1:
      cells = cells[:, :1]  # workers side by side hold the same masks
    rows = cells.swapaxes(1, 2).reshape(self.down * self.height, -1)
    return rows[: self.rows, :lanes]


def cut(rows: int, workers: int) -> Cut:
  """The cut of a grid that sends the fewest words.

  Args:
    rows: rows of the grid.
    workers: number of workers, each of which gets one chunk.

  Returns:
    the cut.

  Example:
    >>> from signmomentum import messages
    >>> messages.cut(rows=1000, workers=8)
    Cut(rows=1000, down=8, across=1)
    >>> messages.cut(rows=9, workers=8)
    Cut(rows=9, down=1, across=8)
  """
  cuts = [
    Cut(rows, workers // across, across)
    for across in range(1, workers + 1)
    if workers % across == 0
  ]
  return min(cuts, key=lambda c: c.height * (c.width + 1))
