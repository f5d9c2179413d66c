r"""A nonconvex problem whose constants are known, and runs of methods on it.

.. math::
  f(x) = \sum_{j=1}^d 1 - \cos(x_j - c_j), \quad
  c_j = \pi \frac{2 j - 1}{2 d}, \quad x_0 = 0

so that the starts lie all the way from beside a minimum (:math:`c_j` near 0) to
beside a maximum (near :math:`\pi`). A worker's gradient has independent noise
of standard deviation ``noise`` in each coordinate. In closed form: curvature
from -1 to 1, so :math:`L = 1`; :math:`f^* = 0` and :math:`f(x_0) - f^* = d`,
since the cosines of the :math:`c_j` cancel; :math:`\sigma = \sqrt d` ``noise``.

A sum over coordinates is what the bounds in the papers are made of: they add up
the worst case of each. The minimum is not at 0, so that weight decay and the
gradient pull different ways.

Every method here treats elements alike and apart. Independent repetitions are
therefore rows of one array of parameters, ``[R, d]``, and fill one vote.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import signmomentum as sm

# rounds and hyper-parameters -> averages over all and over the last half
Run = Callable[..., tuple[np.ndarray, np.ndarray]]

NOISES = {
  'normal': jax.random.normal,
  # of variance 1, and bounded
  'uniform': functools.partial(
    jax.random.uniform, minval=-(3**0.5), maxval=3**0.5
  ),
}


@dataclasses.dataclass(frozen=True)
class Problem:
  r"""Wells in a row, and what is known of them.

  Attributes:
    dimension: :math:`d`.
    noise: standard deviation of each coordinate of a worker's gradient.
    noise_kind: a key of ``NOISES``.
    weight_decay: :math:`\lambda` of the surrogate.
  """

  dimension: int
  noise: float
  noise_kind: str = 'normal'
  weight_decay: float = 0.0

  smoothness = 1.0  # L
  steepest = 1.0  # the largest slope along a coordinate

  @property
  def minimum(self) -> np.ndarray:
    """A minimum: the one between 0 and pi, in each coordinate."""
    d = self.dimension
    return (np.pi * (2 * np.arange(d) + 1) / (2 * d)).astype(np.float32)

  @property
  def gap(self) -> float:
    """Start minus infimum of the function."""
    return float(self.dimension)

  @property
  def sigma(self) -> float:
    """Square root of the expected squared l2 norm of the noise."""
    return math.sqrt(self.dimension) * self.noise

  @property
  def steepest_l2(self) -> float:
    """The largest l2 norm of a gradient, anywhere."""
    return math.sqrt(self.dimension) * self.steepest

  @property
  def start_l1(self) -> float:
    """The l1 norm of the gradient at the start."""
    return 1 / math.sin(math.pi / (2 * self.dimension))

  @property
  def start_l2(self) -> float:
    """The l2 norm of the gradient at the start."""
    return math.sqrt(self.dimension / 2)

  def constants(self) -> dict[str, Any]:
    """All of them, by their names in the papers."""
    return dataclasses.asdict(self) | {
      'L': self.smoothness,
      'sigma': self.sigma,
      'f(x0) - f*': self.gap,
      'G': self.steepest_l2,
    }

  def value(self, x_RxD: jax.Array) -> jax.Array:
    """The function, for each row."""
    return jnp.sum(1 - jnp.cos(x_RxD - self.minimum[None]), axis=-1)

  def gradient(self, x_RxD: jax.Array) -> jax.Array:
    """The exact gradient, for each row."""
    return jax.grad(lambda x: jnp.sum(self.value(x)))(x_RxD)

  def draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Noise of gradients."""
    return self.noise * NOISES[self.noise_kind](key, shape)


def l1(problem: Problem, x_RxD: jax.Array) -> jax.Array:
  """The l1 norm of the gradient."""
  return jnp.sum(jnp.abs(problem.gradient(x_RxD)), axis=-1)


def squared_l2(problem: Problem, x_RxD: jax.Array) -> jax.Array:
  """The squared l2 norm of the gradient."""
  return jnp.sum(jnp.square(problem.gradient(x_RxD)), axis=-1)


def surrogate(problem: Problem, x_RxD: jax.Array) -> jax.Array:
  r"""Paper B's :math:`S(x) = <\nabla f, \text{sign}(\nabla f) + \lambda x>`."""
  slope = problem.gradient(x_RxD)
  return jnp.sum(
    slope * (jnp.sign(slope) + problem.weight_decay * x_RxD), axis=-1
  )


def runner(
  problem: Problem,
  make: Callable[..., optax.GradientTransformation],
  measure: Callable[[Problem, jax.Array], jax.Array],
  workers: int,
  local_steps: int = 1,
  repetitions: int = 16,
  seed: int = 0,
) -> Run:
  """Compiles the runs of a method, for any number of rounds and step size.

  Args:
    problem: to minimise.
    make: returns a method with the axis ``'workers'`` from hyper-parameters,
      which are traced.
    measure: of the shared point at the beginning of each round; ``l1`` for one.
    workers: how many.
    local_steps: gradients of a worker in a round.
    repetitions: independent runs.
    seed: of all noise.

  Returns:
    a function of the number of rounds and the hyper-parameters; it returns
    averages of the measure over all rounds, and over the last half of them, for
    each repetition.
  """
  shape = (repetitions, problem.dimension)

  @jax.jit
  def run(rounds, *hyper):
    tx = optax.with_extra_args_support(make(*hyper))
    start = jnp.zeros(shape)
    marks = sm.worker_varying(tx, start)
    own = (marks.params, marks.opt_state)
    axes = jax.tree.map(lambda varies: 0 if varies else None, own)
    state = jax.tree.map(
      lambda x, v: jnp.broadcast_to(x, (workers, *x.shape)) if v else x,
      (start, tx.init(start)),
      own,
    )

    def step(state, noise, sync):
      params, opt_state = state
      updates, opt_state = tx.update(
        problem.gradient(params) + noise, opt_state, params, sync=sync
      )
      return optax.apply_updates(params, updates), opt_state

    def one_round(t, carry):
      state, total, last = carry
      params, opt_state = state
      measured = measure(problem, sm.synchronised(opt_state, params))
      key = jax.random.fold_in(jax.random.key(seed), t)
      noise = problem.draw(key, (local_steps, workers, *shape))
      for k in range(local_steps):
        state = jax.vmap(
          functools.partial(step, sync=k == local_steps - 1),
          in_axes=(axes, 0),
          out_axes=axes,
          axis_name='workers',
        )(state, noise[k])
      late = jnp.where(t >= rounds // 2, measured, 0)
      return state, total + measured, last + late

    nothing = jnp.zeros(repetitions)
    carry = (state, nothing, nothing)
    _, total, last = jax.lax.fori_loop(0, rounds, one_round, carry)
    return total / rounds, last / (rounds - rounds // 2)

  return lambda *args: tuple(map(np.asarray, run(*args)))
