"""The table of methods that the battery runs over.

To add a method is to add a row to ``METHODS``.
"""

from collections.abc import Callable
import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import optax
import problem
import reference

import signmomentum as sm

SYNC_EVERY = 3


@dataclasses.dataclass(frozen=True)
class Method:
  """A row. ``rate`` is a number or a schedule of local steps, never both.

  Attributes:
    make: from a ``learning_rate`` to the transformation.
    reference: from a rate, a function of the step, to the NumPy transcription.
    plain: from a rate to a single machine's run without signmomentum, see
      ``single`` and ``rounds``; None: it is not the same for one worker.
    own: names of the parts of the training state that are each worker's own.
    wire: a key of ``battery_test.WIRES``, what is sent.
    local: whether it takes local steps.
    random: whether a worker draws for itself.
    parts: whether a worker's own part of a state is a part of a whole.
  """

  make: Callable
  reference: Callable
  plain: Callable | None
  own: frozenset[str]
  wire: str
  local: bool = False
  random: bool = False
  parts: bool = False

  @property
  def exact(self) -> bool:
    """Whether executors agree bit for bit, as in votes."""
    return self.wire in ('majority_vote', 'sign_mean')


def single(tx):
  """A run of one optax optimizer."""

  def run(start, gradient, steps):
    x, state, trajectory = jnp.asarray(start), tx.init(start), []
    for t in range(steps):
      updates, state = tx.update(gradient(t, x), state, x)
      x = optax.apply_updates(x, updates)
      trajectory.append(x)
    return np.stack(trajectory)

  return run


def rounds(inner, outer, rate=None):
  """A run of two: ``outer`` gets what ``inner`` does in a round."""

  def run(start, gradient, steps):
    x = anchor = jnp.asarray(start)
    inner_state, outer_state = inner.init(x), outer.init(x)
    trajectory, gammas = [], []
    for t in range(steps):
      updates, inner_state = inner.update(gradient(t, x), inner_state, x)
      x = optax.apply_updates(x, updates)
      gammas.append(1.0 if rate is None else function(rate)(t))
      if len(gammas) == SYNC_EVERY:
        gamma = sum(gammas) / SYNC_EVERY
        if gamma:
          updates, outer_state = outer.update(
            (anchor - x) / gamma, outer_state, anchor
          )
          anchor = anchor + gamma * updates
        x, gammas = anchor, []
      trajectory.append(x)
    return np.stack(trajectory)

  return run


def function(rate):
  """A rate as a function of the step."""
  return rate if callable(rate) else lambda t: rate


# Rates, for JAX and NumPy alike. The second makes the first round void.

RATES = {
  'constant': 0.02,
  'scheduled': lambda t: 0.01 * (t - 2) * (t > 2),
}

# Methods that vote at every step.


def lion(aggregation):
  arguments = {'b1': 0.85, 'b2': 0.95, 'weight_decay': 0.1}
  return Method(
    lambda learning_rate: sm.distributed_lion(
      learning_rate, aggregation=aggregation, **arguments
    ),
    lambda rate: reference.DistributedLion(
      rate, aggregate=getattr(reference, aggregation), **arguments
    ),
    lambda rate: single(optax.lion(rate, **arguments)),
    frozenset({'opt_state.mu'}),
    aggregation,
  )


def signum(aggregation):
  return Method(
    lambda learning_rate: sm.distributed_signum(
      learning_rate, beta=0.8, aggregation=aggregation
    ),
    lambda rate: reference.DistributedSignum(
      rate, 0.8, 0.0, getattr(reference, aggregation)
    ),
    lambda rate: single(optax.signum(rate, beta=0.8)),
    frozenset({'opt_state.mu'}),
    aggregation,
  )


def lion_chain(first, *then, **options):
  """Distributed Lion, MaVo, with another part before or after the momentum."""
  return Method(
    lambda learning_rate: optax.chain(
      first(sm.lion_momentum(0.85, 0.95)),
      *then,
      sm.aggregate_by_majority_vote(problem.AXIS),
      optax.add_decayed_weights(0.1),
      optax.scale_by_learning_rate(learning_rate),
    ),
    **options,
  )


def stochastic():
  bound, seed = 20.0, 3
  throw = problem.dice(seed)

  def say(i, t, v):
    return reference.randomized_sign(v, bound, throw(i, t, v.size))

  return lion_chain(
    lambda momentum: momentum,
    sm.scale_by_randomized_sign(bound, seed, axis_name=problem.AXIS),
    reference=lambda rate: reference.DistributedLion(
      rate, 0.85, 0.95, 0.1, reference.majority_vote, say
    ),
    plain=None,
    own=frozenset({'opt_state.mu', 'opt_state.out_of_range'}),
    wire='majority_vote',
    random=True,
  )


def averaged_momentum():
  return lion_chain(
    lambda momentum: sm.with_state_averaging(
      momentum, SYNC_EVERY, problem.AXIS
    ),
    reference=lambda rate: reference.DistributedLion(
      rate,
      0.85,
      0.95,
      0.1,
      reference.majority_vote,
      average_every=SYNC_EVERY,
    ),
    plain=lambda rate: single(optax.lion(rate, 0.85, 0.95, weight_decay=0.1)),
    own=frozenset({'opt_state.inner.mu'}),
    wire='majority_vote_and_mean',
  )


# SGD on compressed gradients.


def terngrad():
  return Method(
    lambda learning_rate: sm.terngrad(learning_rate, 0.8, clip_factor=1.5),
    lambda rate: reference.TernGrad(
      rate, 0.8, 1.5, problem.layers, problem.dice(0)
    ),
    None,
    frozenset(),
    'ternary',
    random=True,
  )


def graddrop():
  return Method(
    lambda learning_rate: sm.graddrop(learning_rate, 0.3, momentum=0.8),
    lambda rate: reference.GradDrop(rate, 0.3, 0.8, problem.layers),
    None,
    frozenset({'opt_state.residual'}),
    'top_k',
  )


def deep_gradient_compression():
  def density(t):
    return [0.25, 0.25, 0.0625, 0.0625, 0.0625][t] if t < 5 else 0.02

  return Method(
    lambda learning_rate: sm.deep_gradient_compression(
      learning_rate, 0.02, 0.8, max_norm=60.0, warmup_steps=5
    ),
    lambda rate: reference.DeepGradientCompression(
      rate, density, 0.8, 60.0, problem.layers
    ),
    None,
    frozenset({'opt_state.velocity', 'opt_state.residual'}),
    'top_k_in_stages',
  )


# One optimizer on the mean gradient.


def on_mean_gradient(optimizer, base):
  return Method(
    lambda learning_rate: optax.chain(
      sm.aggregate_by_mean(problem.AXIS), optimizer(learning_rate)
    ),
    lambda rate: reference.MeanGradient(base(rate)),
    lambda rate: single(optimizer(rate)),
    frozenset(),
    'mean',
  )


def on_quantized_mean(inner, bits, block_size):
  rounding = problem.Rounding(bits, block_size)
  return Method(
    lambda learning_rate: optax.chain(
      sm.aggregate_by_quantized_mean(problem.AXIS, bits, block_size),
      inner.make(learning_rate),
    ),
    lambda rate: reference.MeanGradient(
      inner.reference(rate), reference.QuantizedMean(bits, rounding)
    ),
    None,
    frozenset(),
    'quantized',
    random=True,
  )


# Local steps.


@dataclasses.dataclass(frozen=True)
class Inner:
  make: Callable
  reference: Callable
  own: frozenset[str]


ADAMW = Inner(
  lambda rate: optax.adamw(rate, weight_decay=0.05),
  lambda rate: reference.AdamW(rate, weight_decay=0.05),
  frozenset({'params', 'opt_state.inner.mu', 'opt_state.inner.nu'}),
)
SGD = Inner(optax.sgd, reference.Sgd, frozenset({'params'}))


def sign_momentum(inner, aggregation, error_feedback=False, bits=None):
  arguments = {'b1': 0.7, 'b2': 0.9, 'weight_decay': 0.1}
  outer, own = reference.SignMomentum, set()
  if aggregation == 'majority_vote':
    outer, own = reference.OneBitSignMomentum, {'opt_state.outer.mu'}
  elif aggregation == 'sharded_mean':
    own = {'opt_state.outer.mu'}
  if error_feedback:
    outer = functools.partial(outer, layers=problem.layers)
    own |= {'opt_state.outer.residual'}
  if bits:
    own = {'opt_state.outer.inner.mu'}
    rounding = problem.Rounding(bits, sharded=True)

    def outer(**arguments):
      mean = reference.QuantizedMean(bits, rounding, twice=False)
      return reference.SignMomentum(**arguments, mean=mean)

  return Method(
    lambda learning_rate: sm.distributed_sign_momentum(
      inner.make(learning_rate),
      learning_rate,
      SYNC_EVERY,
      outer_learning_rate=1.5,
      aggregation=aggregation,
      error_feedback=error_feedback,
      bits=bits,
      **arguments,
    ),
    lambda rate: reference.LocalSteps(
      lambda: inner.reference(rate),
      outer(eta=1.5, **arguments),
      SYNC_EVERY,
      rate,
    ),
    None
    if error_feedback or bits
    else lambda rate: rounds(
      inner.make(rate), optax.lion(1.5, **arguments), rate
    ),
    inner.own | own,
    'quantized_sharded_mean' if bits else aggregation,
    local=True,
    random=bool(bits),
    parts=aggregation == 'sharded_mean',
  )


def averaged(inner, outer, outer_reference, scaled=False):
  """Local steps whose outer rule is an optax optimizer on the mean."""
  return Method(
    lambda learning_rate: sm.local_steps(
      inner.make(learning_rate),
      optax.chain(sm.aggregate_by_mean(problem.AXIS), outer),
      SYNC_EVERY,
      problem.AXIS,
      learning_rate if scaled else None,
    ),
    lambda rate: reference.LocalSteps(
      lambda: inner.reference(rate),
      outer_reference(),
      SYNC_EVERY,
      rate if scaled else None,
    ),
    lambda rate: rounds(inner.make(rate), outer, rate if scaled else None),
    inner.own,
    'mean',
    local=True,
  )


def diloco():
  built = averaged(
    ADAMW,
    optax.sgd(0.6, momentum=0.8, nesterov=True),
    lambda: reference.Nesterov(0.6, 0.8),
  )
  return dataclasses.replace(
    built,
    make=lambda learning_rate: sm.diloco(
      ADAMW.make(learning_rate),
      SYNC_EVERY,
      outer_learning_rate=0.6,
      momentum=0.8,
    ),
  )


METHODS = {
  'distributed_lion_majority_vote': lion('majority_vote'),
  'distributed_lion_sign_mean': lion('sign_mean'),
  'distributed_signum_majority_vote': signum('majority_vote'),
  'distributed_signum_sign_mean': signum('sign_mean'),
  'distributed_lion_stochastic': stochastic(),
  'distributed_lion_averaged': averaged_momentum(),
  'terngrad': terngrad(),
  'graddrop': graddrop(),
  'deep_gradient_compression': deep_gradient_compression(),
  'distributed_sign_momentum': sign_momentum(ADAMW, 'mean'),
  'distributed_sign_momentum_sgd': sign_momentum(SGD, 'mean'),
  'distributed_sign_momentum_one_bit': sign_momentum(ADAMW, 'majority_vote'),
  'distributed_sign_momentum_one_bit_sgd': sign_momentum(SGD, 'majority_vote'),
  'distributed_sign_momentum_one_bit_feedback': sign_momentum(
    ADAMW, 'majority_vote', error_feedback=True
  ),
  'distributed_sign_momentum_sharded': sign_momentum(ADAMW, 'sharded_mean'),
  'distributed_sign_momentum_quantized': sign_momentum(
    ADAMW, 'sharded_mean', bits=4
  ),
  'diloco': diloco(),
  'slowmo': averaged(
    SGD, sm.slowmo(0.9, 0.4), lambda: reference.SlowMo(0.9, 0.4), True
  ),
  'signed_slowmo': averaged(
    SGD,
    sm.signed_slowmo(1.5, 0.8, weight_decay=0.1),
    lambda: reference.SignedSlowMo(1.5, 0.8, 0.1),
    True,
  ),
  'lookahead': averaged(
    SGD, sm.lookahead(0.4), lambda: reference.Lookahead(0.4)
  ),
  'local_averaging': averaged(
    ADAMW, optax.sgd(1.0), lambda: reference.Lookahead(1.0)
  ),
  # of blocks so small that the matrix takes whole groups, the others not
  'adamw_quantized': on_quantized_mean(ADAMW, bits=4, block_size=8),
  'adamw': on_mean_gradient(ADAMW.make, ADAMW.reference),
  'lion': on_mean_gradient(optax.lion, reference.Lion),
}


def is_first_of_its_kind(name):
  """Whether no row above sends in the same way at the same times."""
  kinds = [(method.wire, method.local) for method in METHODS.values()]
  place = list(METHODS).index(name)
  return kinds[place] not in kinds[:place]
