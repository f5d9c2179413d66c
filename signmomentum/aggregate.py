"""The transformations that communicate: many workers' updates to a shared one.

Each takes this worker's updates and returns what all workers agree on:

==============================  =====================  ======================
factory                         result                 bits up / down
==============================  =====================  ======================
``aggregate_by_mean``           mean                   32 / 32
``aggregate_by_majority_vote``  sign of sum of signs   1 / 1
``aggregate_by_sign_mean``      mean of signs          1 / ceil(log2(n + 1))
==============================  =====================  ======================

Every ``update`` takes the extra argument ``present``, a boolean scalar of each
worker: the result is over those present, and zero if nobody is. (What follows
in a chain, such as decay, then still acts; the methods in ``optimizers`` hold
everything. An absent worker's own momentum goes on either way.) The votes of a
whole tree travel as one bucket in two hops, one ``all_to_all`` and one
``all_gather``: each worker counts its share of the elements for all.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import arguments, collectives, messages, signs, trees


def aggregate_by_mean(
  axis_name: collectives.AxisName,
  wire_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Mean over workers: :math:`\Delta = \frac{1}{n} \sum_i u_i`.

  Args:
    axis_name: the axis of the workers.
    wire_dtype: floating dtype in which updates travel and are summed, such as
      ``jnp.bfloat16``; None: their own.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``wire_dtype`` is not floating; in ``update``: the updates are
      the same on every worker already (see :func:`as_local`).

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_mean('workers')
    >>> def mean(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> jax.vmap(mean, axis_name='workers', out_axes=None)(
    ...   jnp.array([1.0, 1.0, 4.0])
    ... )
    Array(2., dtype=float32)
  """
  if wire_dtype is not None and not jnp.issubdtype(wire_dtype, jnp.floating):
    raise ValueError(
      'aggregate_by_mean: wire_dtype must be a floating dtype, not'
      f' {wire_dtype}.'
    )

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, 'aggregate_by_mean')
    _require_scalar(present, 'aggregate_by_mean')
    if present is None:
      number = collectives.worker_count(axis_name)
    else:
      here = jnp.asarray(present).astype(jnp.int32)
      number = jnp.maximum(collectives.total(here, axis_name), 1)

    def mean(leaf):
      # where, not a product: an absent worker may hold anything, also NaN
      sent = leaf if present is None else jnp.where(present, leaf, 0)
      # bf16 does not hold every number of workers: divide in f32 at least
      wide = jnp.promote_types(leaf.dtype, jnp.float32)
      divisor = jnp.asarray(number, wide)
      wire = wire_dtype or leaf.dtype
      if jnp.finfo(wire).maxexp < jnp.finfo(jnp.float32).maxexp:
        # f16: the sum of many workers may be too large where the mean is not
        sent, divisor = sent.astype(wide) / divisor, jnp.ones_like(divisor)
      summed = collectives.total(sent.astype(wire), axis_name)
      return (summed.astype(wide) / divisor).astype(leaf.dtype)

    return rebuild([mean(leaf) for leaf in leaves]), state

  return optax.GradientTransformationExtraArgs(
    optax.init_empty_state, update_fn
  )


class AggregateByVoteState(NamedTuple):
  """State of the votes: numbers the coins."""

  count: jax.Array  # shape=(), dtype=jnp.int32


def aggregate_by_majority_vote(
  axis_name: collectives.AxisName, zeros: str = 'block', seed: int = 0
) -> optax.GradientTransformationExtraArgs:
  r"""Sign of the sum of signs: one bit up and one bit down for each element.

  .. math::
    \Delta = \text{sign}\Big(\sum_{i=1}^n \text{sign}(u_i)\Big)

  ``zeros`` says what is sent for an element that is zero (one bit has no zero):

  * ``'block'``: one more bit for each block of 128 elements of a leaf says that
    all of it is zero here; such a worker is not counted there, and a block that
    is zero on every worker stays exactly zero. Another zero element gets this
    worker's coin, and a tie a coin that all share.
  * ``'exact'``: two bits for each element; zeros are not counted, a tie is 0.
  * ``'coin'``: one bit; zeros and ties get coins.

  Coins are fair and a function of seed, step, worker and element only. A NaN
  counts as zero; ``ignore_non_finite`` keeps it out of the momentum too.

  Args:
    axis_name: the axis of the workers.
    zeros: ``'block'``, ``'exact'`` or ``'coin'``.
    seed: of the coins; two votes in one optimizer want two.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: bad ``zeros`` or ``seed``; in ``update``: the updates are the
      same on every worker already (see :func:`as_local`).
    TypeError: ``seed`` is not an int; in ``update``: a leaf is complex.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_majority_vote('workers')
    >>> def vote(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> jax.vmap(vote, axis_name='workers', out_axes=None)(
    ...   jnp.array([1.0, 1.0, -10.0])
    ... )
    Array(1., dtype=float32)

  References:
    Liu et al., `Communication Efficient Distributed Training with Distributed
    Lion <https://arxiv.org/abs/2404.00438>`_, 2024

    Bernstein et al., `signSGD with Majority Vote is Communication Efficient And
    Fault Tolerant <https://arxiv.org/abs/1810.05291>`_, 2018
  """

  def count(ballots, key):
    return signs.majority(ballots, key)

  def read(result):
    return signs.majority_tally(result), 1

  return _aggregate_by_vote(
    'aggregate_by_majority_vote', axis_name, zeros, seed, count, read
  )


def aggregate_by_sign_mean(
  axis_name: collectives.AxisName, zeros: str = 'block', seed: int = 0
) -> optax.GradientTransformationExtraArgs:
  r"""Mean of signs: one bit up, ``ceil(log2(n + 1))`` bits down.

  .. math::
    \Delta = \frac{1}{n} \sum_{i=1}^n \text{sign}(u_i)

  Args:
    axis_name: the axis of the workers.
    zeros: what a zero element sends, as in :func:`aggregate_by_majority_vote`.
      A worker that abstains adds 0 to the sum and still counts in ``n``. With
      ``'exact'`` the counts need ``ceil(log2(2 n + 1))`` bits down.
    seed: of the coins.

  Returns:
    the transformation. Its ``update`` takes ``present``, and ``n`` is then the
    number of those present.

  Raises:
    ValueError: bad ``zeros`` or ``seed``; in ``update``: the updates are the
      same on every worker already (see :func:`as_local`).
    TypeError: ``seed`` is not an int; in ``update``: a leaf is complex.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.aggregate_by_sign_mean('workers')
    >>> def vote(update):
    ...   return tx.update(update, tx.init(update))[0]
    >>> votes = jnp.array([1.0, 1.0, 1.0, -10.0])
    >>> jax.vmap(vote, axis_name='workers', out_axes=None)(votes)
    Array(0.5, dtype=float32)

  References:
    Liu et al., `Communication Efficient Distributed Training with Distributed
    Lion <https://arxiv.org/abs/2404.00438>`_, 2024
  """

  def count(ballots, key):
    del key
    return signs.total(ballots)

  def read(counts):
    n = collectives.worker_count(axis_name)
    return signs.mean_tally(counts, n, zeros)

  return _aggregate_by_vote(
    'aggregate_by_sign_mean', axis_name, zeros, seed, count, read
  )


def _aggregate_by_vote(
  who: str,
  axis_name: collectives.AxisName,
  zeros: str,
  seed: int,
  count: Callable[[signs.Grids, jax.Array], signs.Grids],
  read: Callable[[signs.Grids], tuple[signs.Tally, int | jax.Array]],
) -> optax.GradientTransformationExtraArgs:
  """Two hops: everybody's votes on my share, then everybody's counts."""
  if zeros not in signs.ZEROS:
    raise ValueError(
      f'{who}: zeros must be one of {signs.ZEROS}, not {zeros!r}.'
    )
  arguments.require_int(who, 'seed', seed, least=0)

  def init_fn(params):
    del params
    return AggregateByVoteState(count=jnp.zeros([], jnp.int32))

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    _require_scalar(present, who)
    new_state = AggregateByVoteState(count=optax.safe_increment(state.count))
    bucket = trees.plan(leaves)
    if not bucket.rows:  # nothing to send; empty leaves are the same for all
      return rebuild([jnp.zeros(u.shape, u.dtype) for u in leaves]), new_state
    cut = messages.cut(bucket.rows, collectives.worker_count(axis_name))
    # always this generator: others draw differently under vmap and on devices
    key = jax.random.key(seed, impl='threefry2x32')
    key = jax.random.fold_in(key, state.count)
    key = jax.random.fold_in(key, collectives.worker_index(axis_name))
    zero_key, tie_key = jax.random.split(key)

    positive, nonzero = bucket.pack(leaves)
    votes = signs.cast(positive, nonzero, zeros, zero_key, present)
    ballots = cut.read(
      collectives.exchange(cut.cut(votes), axis_name), like=votes
    )
    counted = count(ballots, tie_key)
    result = cut.join(
      collectives.gather(cut.write(counted), axis_name), like=counted
    )
    tally, divisor = read(result)
    return rebuild(bucket.unpack(tally, divisor, like=leaves)), new_state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _require_scalar(present, who: str) -> None:
  if present is not None and jnp.ndim(present):
    raise ValueError(
      f'{who}: present must be a scalar, whether this one worker is there, not'
      f' of shape {jnp.shape(present)}.'
    )


def hold_if_nobody_present(
  tx: optax.GradientTransformation, axis_name: collectives.AxisName
) -> optax.GradientTransformationExtraArgs:
  """Makes a step without any worker a step that changes nothing at all.

  Aggregation returns zero when nobody is present, but decay, momentum and
  schedules of a chain would still move. Only where ``present`` is given does
  this cost anything: the sum of one scalar over workers.

  Args:
    tx: a transformation with an ``aggregate_by_*`` inside.
    axis_name: the axis of the workers.

  Returns:
    the transformation.
  """
  tx = optax.with_extra_args_support(tx)

  def update_fn(updates, state, params=None, *, present=None, **extra_args):
    new = tx.update(updates, state, params, present=present, **extra_args)
    if present is None:
      return new
    held = optax.tree.zeros_like(new[0]), state
    anyone = somebody(present, axis_name)
    return jax.tree.map(functools.partial(jnp.where, anyone), new, held)

  return optax.GradientTransformationExtraArgs(tx.init, update_fn)


def somebody(
  present: jax.typing.ArrayLike, axis_name: collectives.AxisName
) -> jax.Array:
  """Whether any worker is present; the same on all of them."""
  flag = jnp.asarray(present).astype(jnp.int32)
  return collectives.total(flag, axis_name) > 0
