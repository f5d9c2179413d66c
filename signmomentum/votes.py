"""Votes: one bit up for each element, and one bit or a few down.

The votes of a whole tree travel as one bucket in two hops, one ``all_to_all``
and one ``all_gather``: each worker counts its share of the elements for all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import (
  aggregator,
  arguments,
  collectives,
  draws,
  messages,
  signs,
  trees,
)


class AggregateByVoteState(NamedTuple):
  """State of the votes: numbers the coins."""

  count: jax.Array  # shape=(), dtype=jnp.int32


def aggregate_by_majority_vote(
  axis_name: collectives.AxisName, zeros: str = 'block', seed: int = 0
) -> aggregator.Aggregator:
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
) -> aggregator.Aggregator:
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
) -> aggregator.Aggregator:
  """Two hops: everybody's votes on my share, then everybody's counts."""
  arguments.require_one_of(who, 'zeros', zeros, signs.ZEROS)
  arguments.require_seed(who, seed)

  def init_fn(params):
    del params
    return AggregateByVoteState(count=jnp.zeros([], jnp.int32))

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, who)
    aggregator.require_scalar(present, who)

    def sent():
      return rebuild(
        [aggregator.if_present(_scaled_sign(leaf), present) for leaf in leaves]
      )

    new_state = AggregateByVoteState(count=optax.safe_increment(state.count))
    bucket = trees.plan(leaves)
    if not bucket.rows:  # nothing to send; empty leaves are the same for all
      empty = rebuild([jnp.zeros(u.shape, u.dtype) for u in leaves])
      return empty, sent, new_state
    cut = messages.cut(bucket.rows, collectives.worker_count(axis_name))
    worker = collectives.worker_index(axis_name)
    zero_key, tie_key = jax.random.split(draws.key(seed, state.count, worker))

    positive, nonzero = bucket.pack(leaves)
    cast = signs.cast(positive, nonzero, zeros, zero_key, present)
    ballots = cut.read(
      collectives.exchange(cut.cut(cast), axis_name), like=cast
    )
    counted = count(ballots, tie_key)
    result = cut.join(
      collectives.gather(cut.write(counted), axis_name), like=counted
    )
    tally, divisor = read(result)
    updates = rebuild(bucket.unpack(tally, divisor, like=leaves))
    return updates, sent, new_state

  return aggregator.make(init_fn, exchange)


def _scaled_sign(leaf: jax.Array) -> jax.Array:
  """The sign with the mean magnitude: of all multiples of it the nearest."""
  magnitude = (
    jnp.mean(jnp.abs(leaf)) if leaf.size else jnp.zeros((), leaf.dtype)
  )
  return jnp.sign(leaf) * magnitude
