"""The transformations that communicate: many workers' updates to a shared one.

Each takes this worker's updates and returns what all workers agree on:

===============================  =====================  ======================
factory                          result                 bits up / down
===============================  =====================  ======================
``aggregate_by_mean``            mean                   32 / 32, or 16 / 16
``aggregate_by_quantized_mean``  mean, rounded          8, 4 or 2 / the same
``aggregate_by_majority_vote``   sign of sum of signs   1 / 1
``aggregate_by_sign_mean``       mean of signs          1 / ceil(log2(n + 1))
``aggregate_by_ternary_mean``    mean of -s, 0, s       2 / ceil(log2(2 n + 1))
``aggregate_by_top_k``           mean of the largest    64 k to all others
===============================  =====================  ======================

Every ``update`` takes the extra argument ``present``, a boolean scalar of each
worker: the result is over those present, and zero if nobody is. (What follows
in a chain, such as decay, then still acts; the methods in ``optimizers`` hold
everything. An absent worker's own momentum goes on either way.)

The mean is here; ``quantized``, ``votes``, ``ternary`` and ``sparse`` have the
others.
"""

import jax
import jax.numpy as jnp
import optax

from signmomentum import aggregator, arguments, collectives, parts, trees


def aggregate_by_mean(
  axis_name: collectives.AxisName,
  wire_dtype: jax.typing.DTypeLike | None = None,
) -> aggregator.Aggregator:
  r"""Mean over workers: :math:`\Delta = \frac{1}{n} \sum_i u_i`.

  Numbers of 16 bits, of such a ``wire_dtype`` or of leaves that are bf16 or f16
  themselves, take two hops: to an owner of a part of each leaf and, once it has
  added up in f32, from there to all. They are rounded when sent, and their mean
  is: twice, whatever the number of workers. That is one ``all_to_all`` and one
  ``all_gather`` of ``16 (n - 1) / n`` bits for each parameter, on every
  backend; wider ones take an all-reduce of ``64 (n - 1) / n`` bits or more.

  Args:
    axis_name: the axis of the workers.
    wire_dtype: floating dtype of 16 bits or more in which updates travel; None:
      their own. ``jnp.bfloat16`` has the range of f32. In ``jnp.float16`` a
      number above 65504 becomes infinite, and the mean infinite or NaN, and one
      below 3e-8 becomes 0.

  Returns:
    the transformation. Its ``update`` takes ``present``.

  Raises:
    ValueError: ``wire_dtype`` is not floating, or below 16 bits; in
      ``update``: the updates are the same on every worker already (see
      :func:`as_local`).

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
  arguments.require_floating('aggregate_by_mean', 'wire_dtype', wire_dtype)

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, 'aggregate_by_mean')
    aggregator.require_scalar(present, 'aggregate_by_mean')
    number = aggregator.number_present(present, axis_name)
    sent = [
      aggregator.if_present(leaf, present).astype(wire_dtype or leaf.dtype)
      for leaf in leaves
    ]
    means = iter(_means_of_narrow(sent, number, axis_name))
    results = [
      next(means)
      if collectives.is_narrow(message.dtype)
      else _mean(message, number, axis_name)
      for message in sent
    ]

    def in_own_dtype(arrays):
      return rebuild(
        [
          array.astype(leaf.dtype)
          for array, leaf in zip(arrays, leaves, strict=True)
        ]
      )

    return in_own_dtype(results), lambda: in_own_dtype(sent), state

  return aggregator.make(optax.init_empty_state, exchange)


def _mean(
  message: jax.Array,
  number: int | jax.Array,
  axis_name: collectives.AxisName,
) -> jax.Array:
  total = collectives.total(message, axis_name)
  return total / jnp.asarray(number, total.dtype)


def _means_of_narrow(
  messages: list[jax.Array],
  number: int | jax.Array,
  axis_name: collectives.AxisName,
) -> list[jax.Array]:
  """Means of those messages that are narrow."""
  narrow = [leaf for leaf in messages if collectives.is_narrow(leaf.dtype)]
  n = collectives.worker_count(axis_name)
  divided = [parts.of(leaf, n) for leaf in narrow]
  joined = parts.join(parts.mean(divided, number, axis_name), axis_name)
  return list(map(parts.whole, joined, narrow))
