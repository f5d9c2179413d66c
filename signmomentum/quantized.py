"""Means in a few bits, both ways, that are right in expectation."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import (
  aggregator,
  arguments,
  collectives,
  draws,
  kernels,
  levels,
  trees,
)

BITS = (2, 4, 8)
_ALONE = 32  # groups of a leaf that is not joined to others


class AggregateByQuantizedMeanState(NamedTuple):
  """State of :func:`aggregate_by_quantized_mean`."""

  count: jax.Array  # steps; shape=(), dtype=jnp.int32


def aggregate_by_quantized_mean(
  axis_name: collectives.AxisName,
  bits: int = 8,
  block_size: int = 128,
  seed: int = 0,
) -> aggregator.Aggregator:
  r"""Mean over workers in 8, 4 or 2 bits, up and down.

  A block :math:`u` of ``block_size`` elements of a leaf travels as a scale and
  levels, with :math:`L = 2^{\text{bits} - 1} - 1` and :math:`U` uniform on
  :math:`[0, 1)`:

  .. math::
    s(u) = \lceil \max_j |u_j| / L \rceil_\text{bfloat16} \\
    Q(u)_j = s \, \text{sign}(u_j) \, \lfloor |u_j| / s + U_j \rfloor \\
    \Delta = Q\Big(\frac{1}{n} \sum_{i=1}^n Q(u_i)\Big)

  Workers send each owner its share of the blocks; the owner adds up in f32 and
  rounds the mean again, by draws of its own. Both are right in expectation, and
  so is :math:`\Delta`. An element that is a multiple of the scale is not
  changed: a zero on all workers is exactly zero. In a block, :math:`Q` adds at
  most :math:`s^2 / 4` to the variance of each element.

  A whole tree takes two collectives and ``2 (bits + 16 / block_size)
  (n - 1) / n`` bits for each parameter, where leaves fill their blocks: no two
  leaves share one. (Beside that, less than ``32 / bits`` blocks fill up each
  leaf of ``1024 / bits`` blocks or more, all the others together, and what a
  worker owns.)

  A block with a number that is NaN or infinite comes back as NaN, all of it,
  and nothing else does; :func:`ignore_non_finite` before it drops such a
  gradient instead. (So may a block of numbers above 1e36, whose sum or scale
  leaves the range of f32.) A result that rounding up would carry beyond its
  dtype is the largest number of it.

  Args:
    axis_name: the axis of the workers.
    bits: 8, 4 or 2, of each element. With 2, levels are -1, 0 and 1, as
      TernGrad's.
    block_size: elements that share a scale; a multiple of 128 is the fastest.
    seed: of the draws, a function of seed, step, worker and the place in the
      tree; two in one optimizer want two. Four elements share 32 random bits,
      each of them by all 32 in an order of its own: of any two, chances differ
      from those of independent draws by less than 1/256.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``bits`` is none of these, ``block_size`` below 1 or ``seed``
      not from 0 to below 2**32; in ``update``: the updates are the same on
      every worker already (see :func:`as_local`).
    TypeError: ``bits`` or ``block_size`` is an array, or one of the arguments
      no int; in ``update``: a leaf is complex.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_quantized_mean('workers', bits=4)
    >>> def mean(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> jax.vmap(mean, axis_name='workers', out_axes=None)(
    ...   jnp.array([[7.0, 2.0, 0.0], [7.0, 4.0, 0.0]])
    ... )
    Array([7., 3., 0.], dtype=float32)

  References:
    Alistarh et al., `QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding <https://arxiv.org/abs/1610.02132>`_, 2017

    Dettmers et al., `8-bit Optimizers via Block-wise Quantization
    <https://arxiv.org/abs/2110.02861>`_, 2021
  """
  who = 'aggregate_by_quantized_mean'
  form = make_format(who, bits, block_size)
  arguments.require_seed(who, seed)

  def init_fn(params):
    del params
    return AggregateByQuantizedMeanState(count=jnp.zeros([], jnp.int32))

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)
    new_state = AggregateByQuantizedMeanState(
      count=optax.safe_increment(state.count)
    )
    bucket = _plan(leaves, form)
    if not bucket.groups:
      empty = rebuild([jnp.zeros(u.shape, u.dtype) for u in leaves])
      return empty, lambda: empty, new_state
    up, down = keys(seed, state.count, axis_name)
    said = bucket.encode(leaves, up)
    if present is not None:  # where, not a product: it may hold anything
      said = said._replace(scales=jnp.where(present, said.scales, 0))

    n = collectives.worker_count(axis_name)
    fill = -bucket.groups % n
    shares = jax.tree.map(
      lambda x: jnp.pad(x, [(0, fill), (0, 0)]).reshape(n, -1, x.shape[1]), said
    )
    mean = mean_of_share(form, shares, bucket.dtype, present, axis_name)
    answer = jax.tree.map(lambda x: x[None], form.encode(mean, down))
    answers = collectives.gather(form.write(answer)[0], axis_name)
    result = jax.tree.map(
      lambda x: x.reshape(-1, x.shape[-1])[: bucket.groups], form.read(answers)
    )
    return (
      rebuild(bucket.decode(result, leaves)),
      lambda: rebuild(bucket.decode(said, leaves)),
      new_state,
    )

  return aggregator.make(init_fn, exchange)


def make_format(who: str, bits: int, block_size: int) -> levels.Format:
  """The format of checked arguments."""
  arguments.require_static(who, 'bits', bits)
  arguments.require_int(who, 'bits', bits, least=1)
  require_block_size(who, block_size)
  if bits not in BITS:
    raise ValueError(f'{who}: bits must be one of {list(BITS)}, not {bits}.')
  return levels.Format(bits, block_size)


def require_block_size(who: str, block_size: int) -> None:
  """Refuses what is no number of elements."""
  arguments.require_static(who, 'block_size', block_size)
  arguments.require_int(who, 'block_size', block_size, least=1)


def keys(
  seed: int, count: jax.Array, axis_name: collectives.AxisName
) -> tuple[jax.Array, jax.Array]:
  """Of this worker: for what it sends, and for the mean that it owns."""
  worker = collectives.worker_index(axis_name)
  up, down = jax.random.split(draws.key(seed, count, worker))
  return up, down


def mean_of_share(
  form: levels.Format,
  shares: levels.Levels,
  dtype: jnp.dtype,
  present: jax.typing.ArrayLike | None,
  axis_name: collectives.AxisName,
) -> jax.Array:
  """Sends everybody's share to its owner, who takes the mean.

  Args:
    form: of the levels.
    shares: of this worker's updates, ``[N, G, ...]``, one for each owner; with
      scales of 0 if it is absent.
    dtype: in which to add up.
    present: whether this worker is there; None: all are.
    axis_name: the axis of the workers.

  Returns:
    the mean of what this worker owns, ``[G, K, B]``.
  """
  messages = form.write(shares)
  number = collectives.worker_count(axis_name)
  if present is not None:  # said in the same message
    here = jnp.broadcast_to(jnp.asarray(present), (number, 1))
    messages = jnp.concatenate([messages, here.astype(jnp.uint32)], axis=1)
  arrived = collectives.exchange(messages, axis_name)
  if present is not None:
    arrived, here = arrived[:, :-1], arrived[:, -1]
    number = jnp.maximum(jnp.sum(here), 1)
  # Products are exact, and the order is given: the sum is the same however it
  # is compiled. Eight at a time are one pass, in which no number is stored.
  said = form.read(arrived)
  total, _ = jax.lax.scan(
    lambda total, one: (total + form.decode(one, dtype), None),
    form.decode(jax.tree.map(lambda x: x[0], said), dtype),
    jax.tree.map(lambda x: x[1:], said),
    unroll=8,
  )
  return kernels.written_down(total / jnp.asarray(number, dtype), 'cpu')


class _Place(NamedTuple):
  """Where a leaf is in the bucket: alone in groups, or in joint blocks."""

  groups: int  # of its own; 0: it is joined to others
  blocks: int
  start: int  # group or, of the joint ones, block


@dataclasses.dataclass(frozen=True)
class _Bucket:
  """The static plan of a tree as one grid of groups.

  Large leaves are written where they lie; only their words are moved. Small
  ones are joined as numbers, so that many take no longer than one.
  """

  form: levels.Format
  dtype: jnp.dtype
  places: tuple[_Place, ...]
  alone: int  # groups before the joint ones
  groups: int

  def encode(self, leaves: list[jax.Array], key: jax.Array) -> levels.Levels:
    """Levels ``[groups, ...]`` of all leaves."""
    written, joint = [], []
    for place, leaf in zip(self.places, leaves, strict=True):
      size = place.blocks * self.form.block_size
      flat = trees.gathered(leaf).reshape(-1).astype(self.dtype)
      flat = jnp.pad(flat, (0, size - leaf.size))
      if place.groups:
        blocks = self._grouped(flat)
        written.append(self.form.encode(blocks, key, first=place.start))
      else:
        joint.append(flat)
    if self.groups > self.alone:
      flat = jnp.concatenate(joint)
      size = (self.groups - self.alone) * self.form.group * self.form.block_size
      blocks = self._grouped(jnp.pad(flat, (0, size - flat.size)))
      written.append(self.form.encode(blocks, key, first=self.alone))
    return jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *written)

  def decode(
    self, written: levels.Levels, like: list[jax.Array]
  ) -> list[jax.Array]:
    """The leaves."""
    rest = jax.tree.map(lambda x: x[self.alone :], written)
    joint = functools.cache(
      lambda dtype: self.form.decode(rest, dtype).reshape(-1)
    )
    results = []
    for place, leaf in zip(self.places, like, strict=True):
      start, end = place.start, place.start + place.groups
      if place.groups:
        own = jax.tree.map(lambda x, s=start, e=end: x[s:e], written)
        flat = self.form.decode(own, leaf.dtype).reshape(-1)
      else:
        flat = joint(leaf.dtype)[start * self.form.block_size :]
      whole = flat[: leaf.size].reshape(leaf.shape)
      results.append(trees.sharded_like(whole, leaf))
    return results

  def _grouped(self, flat: jax.Array) -> jax.Array:
    return flat.reshape(-1, self.form.group, self.form.block_size)


def _plan(leaves: list[jax.Array], form: levels.Format) -> _Bucket:
  """Plans a bucket; from shapes and dtypes, the same on every worker."""
  places, group, block = [], 0, 0
  for leaf in leaves:
    blocks = -(-leaf.size // form.block_size)
    if blocks >= _ALONE * form.group:
      groups = -(-blocks // form.group)
      places.append(_Place(groups, groups * form.group, group))
      group += groups
    else:
      places.append(_Place(0, blocks, block))
      block += blocks
  dtype = jnp.result_type(jnp.float32, *leaves)
  joint = -(-block // form.group)
  return _Bucket(form, dtype, tuple(places), group, group + joint)
