"""The transformations that communicate: many workers' updates to a shared one.

Each takes this worker's updates and returns what all workers agree on:

==============================  =====================  ======================
factory                         result                 bits up / down
==============================  =====================  ======================
``aggregate_by_mean``           mean                   32 / 32
``aggregate_by_majority_vote``  sign of sum of signs   1 / 1
``aggregate_by_sign_mean``      mean of signs          1 / ceil(log2(n + 1))
``aggregate_by_ternary_mean``   mean of -s, 0, s       2 / ceil(log2(2 n + 1))
``aggregate_by_top_k``          mean of the largest    64 k to all others
==============================  =====================  ======================

Every ``update`` takes the extra argument ``present``, a boolean scalar of each
worker: the result is over those present, and zero if nobody is. (What follows
in a chain, such as decay, then still acts; the methods in ``optimizers`` hold
everything. An absent worker's own momentum goes on either way.)

The mean is here; ``votes``, ``ternary`` and ``sparse`` have the others.
"""

import jax
import jax.numpy as jnp
import optax

from signmomentum import aggregator, collectives, trees


def aggregate_by_mean(
  axis_name: collectives.AxisName,
  wire_dtype: jax.typing.DTypeLike | None = None,
) -> aggregator.Aggregator:
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

  def exchange(updates, state, params=None, *, present=None, **extra_args):
    del params, extra_args
    leaves, rebuild = trees.split(updates)
    collectives.require_own(updates, axis_name, 'aggregate_by_mean')
    aggregator.require_scalar(present, 'aggregate_by_mean')
    number = aggregator.number_present(present, axis_name)
    here = [aggregator.if_present(leaf, present) for leaf in leaves]

    def mean(leaf):
      # bf16 does not hold every number of workers: divide in f32 at least
      wide = jnp.promote_types(leaf.dtype, jnp.float32)
      divisor = jnp.asarray(number, wide)
      wire, sent = wire_dtype or leaf.dtype, leaf
      if jnp.finfo(wire).maxexp < jnp.finfo(jnp.float32).maxexp:
        # f16: the sum of many workers may be too large where the mean is not
        sent, divisor = leaf.astype(wide) / divisor, jnp.ones_like(divisor)
      summed = collectives.total(sent.astype(wire), axis_name)
      return (summed.astype(wide) / divisor).astype(leaf.dtype)

    def sent():
      return rebuild(
        [
          leaf.astype(wire_dtype or leaf.dtype).astype(leaf.dtype)
          for leaf in here
        ]
      )

    return rebuild([mean(leaf) for leaf in here]), sent, state

  return aggregator.make(optax.init_empty_state, exchange)
