"""Transformations that make updates cheap to send."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from signmomentum import arguments, collectives, draws, trees

_SUPPORTS = ('two_point', 'three_point')
_OUT_OF_RANGE = ('nan', 'clip')


class RandomizedSignState(NamedTuple):
  """State of :func:`scale_by_randomized_sign`."""

  count: jax.Array  # numbers the draws; shape=(), dtype=jnp.int32
  out_of_range: jax.Array  # updates with a value out of range, so far; likewise


def scale_by_randomized_sign(
  bound: jax.typing.ArrayLike,
  seed: int,
  support: str = 'two_point',
  axis_name: collectives.AxisName | None = None,
  out_of_range: str = 'nan',
) -> optax.GradientTransformation:
  r"""A sign that is right in expectation: :math:`E[s(v)] = v / B`.

  For :math:`|v| \le B`, either

  .. math::
    s(v) = \pm 1 \text{ with probability } \frac12 \pm \frac{v}{2 B}

  with variance :math:`1 - (v / B)^2` (``'two_point'``), or

  .. math::
    s(v) = \text{sign}(v) \text{ with probability } |v| / B, \text{ else } 0

  with variance :math:`|v| / B - (v / B)^2` (``'three_point'``). What is exactly
  0 stays 0 with either: a weight that nobody moves needs no coin.

  Before a vote each worker must draw for itself: give ``axis_name``. In an
  outer rule, after the aggregation, all must draw alike: leave it out.

  A vote of randomized signs follows the mean of the workers' values, where a
  vote of exact signs follows their median. (The form of the randomized sign in
  the paper on Distributed Sign Momentum is not in our sources; both have its
  defining property.)

  Args:
    bound: :math:`B`, positive.
    seed: of the draws, which are a function of seed, step, worker and the
      leaf's path.
    support: ``'two_point'`` or ``'three_point'``.
    axis_name: the axis of the workers, if each draws for itself.
    out_of_range: if a value is beyond the bound, so that no sign can be right
      in expectation: ``'nan'`` makes the whole update NaN, ``'clip'`` takes the
      nearest bound. Outside of ``jit``, ``'nan'`` raises. A vote takes NaN for
      an abstention. ``state.out_of_range`` counts such updates either way.

  Returns:
    the transformation.

  Raises:
    ValueError: ``support`` or ``out_of_range`` is unknown, ``bound`` is not
      above 0 and finite, or ``seed`` is not from 0 to below 2**32; in
      ``update``, where values are known: a value is out of range.
    TypeError: ``bound`` is no number, or ``seed`` not an int.

  Example:
    >>> import jax.numpy as jnp
    >>> import signmomentum as sm
    >>> tx = sm.scale_by_randomized_sign(bound=2.0, seed=0)
    >>> values = jnp.full(100_000, 0.5)
    >>> signs, state = tx.update(values, tx.init(values))
    >>> float(abs(signs.mean() - 0.5 / 2.0)) < 0.02
    True

  References:
    Yu et al., `Distributed Sign Momentum with Local Steps for Training
    Transformers <https://arxiv.org/abs/2411.17866>`_, 2024

    Liu et al., `Communication Efficient Distributed Training with Distributed
    Lion <https://arxiv.org/abs/2404.00438>`_, 2024
  """
  who = 'scale_by_randomized_sign'
  arguments.require_one_of(who, 'support', support, _SUPPORTS)
  arguments.require_one_of(who, 'out_of_range', out_of_range, _OUT_OF_RANGE)
  arguments.require_seed(who, seed)
  arguments.require_positive(who, 'bound', bound)

  def init_fn(params):
    del params
    return RandomizedSignState(
      jnp.zeros([], jnp.int32), jnp.zeros([], jnp.int32)
    )

  def update_fn(updates, state, params=None):
    del params
    leaves, rebuild = trees.split(updates)
    # compared in f32 at least: in bf16 the bound itself would be rounded
    wide = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in leaves]
    beyond = jnp.array(False)
    for leaf in wide:
      beyond |= ~jnp.all(jnp.abs(leaf) <= bound)  # NaN is beyond too
    if out_of_range == 'nan':
      _refuse(beyond, bound)
    key = draws.key(seed, state.count)
    if axis_name is not None:
      key = jax.random.fold_in(key, collectives.worker_index(axis_name))

    def sign(key, leaf, dtype):
      if out_of_range == 'clip':
        leaf = jnp.clip(leaf, -bound, bound)
      signs = draws.randomized_sign(key, leaf, bound, support).astype(dtype)
      return signs if out_of_range == 'clip' else _or_nan(beyond, signs)

    new_state = RandomizedSignState(
      count=optax.safe_increment(state.count),
      out_of_range=jnp.where(
        beyond, optax.safe_increment(state.out_of_range), state.out_of_range
      ),
    )
    keys = draws.leaf_keys(key, trees.paths(updates))
    dtypes = [leaf.dtype for leaf in leaves]
    return rebuild(list(map(sign, keys, wide, dtypes))), new_state

  return optax.GradientTransformation(init_fn, update_fn)


def _or_nan(bad: jax.Array, array: jax.Array) -> jax.Array:
  return jnp.where(bad, jnp.array(jnp.nan, array.dtype), array)


def _refuse(beyond: jax.Array, bound: jax.typing.ArrayLike) -> None:
  if not isinstance(beyond, jax.core.Tracer) and beyond:
    raise ValueError(
      'scale_by_randomized_sign: a value is not within the bound'
      f' {bound}, so that no sign can be right in expectation. Raise bound,'
      ' clip what comes before (optax.clip_by_global_norm), or accept a bias'
      " with out_of_range='clip'."
    )
