"""The table of methods that the battery runs over.

To add a method is to add a row to ``METHODS``.
"""

from collections.abc import Callable
import dataclasses

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
      ``single`` and ``rounds``.
    own: names of the parts of the training state that are each worker's own.
    wire: ``'majority_vote'``, ``'sign_mean'`` or ``'mean'``.
    local: whether it takes local steps.
  """

  make: Callable
  reference: Callable
  plain: Callable
  own: frozenset[str]
  wire: str
  local: bool = False

  @property
  def votes(self) -> bool:
    return self.wire != 'mean'


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


def sign_momentum(inner, aggregation):
  arguments = {'b1': 0.7, 'b2': 0.9, 'weight_decay': 0.1}
  one_bit = aggregation == 'majority_vote'
  outer = reference.OneBitSignMomentum if one_bit else reference.SignMomentum
  return Method(
    lambda learning_rate: sm.distributed_sign_momentum(
      inner.make(learning_rate),
      learning_rate,
      SYNC_EVERY,
      outer_learning_rate=1.5,
      aggregation=aggregation,
      **arguments,
    ),
    lambda rate: reference.LocalSteps(
      lambda: inner.reference(rate),
      outer(eta=1.5, **arguments),
      SYNC_EVERY,
      rate,
    ),
    lambda rate: rounds(inner.make(rate), optax.lion(1.5, **arguments), rate),
    inner.own | ({'opt_state.outer.mu'} if one_bit else set()),
    aggregation,
    local=True,
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
  'distributed_sign_momentum': sign_momentum(ADAMW, 'mean'),
  'distributed_sign_momentum_sgd': sign_momentum(SGD, 'mean'),
  'distributed_sign_momentum_one_bit': sign_momentum(ADAMW, 'majority_vote'),
  'distributed_sign_momentum_one_bit_sgd': sign_momentum(SGD, 'majority_vote'),
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
  'adamw': on_mean_gradient(ADAMW.make, ADAMW.reference),
  'lion': on_mean_gradient(optax.lion, reference.Lion),
}


def is_first_of_its_kind(name):
  """Whether no row above sends in the same way at the same times."""
  kinds = [(method.wire, method.local) for method in METHODS.values()]
  place = list(METHODS).index(name)
  return kinds[place] not in kinds[:place]
