"""Training with little communication, as optax transformations.

A method is a chain, and the chain shows what goes on the wire: only factories
named ``aggregate_by_*`` communicate, over the named axis of the workers::

  # Distributed Lion, majority vote: one bit up, one bit down
  optax.chain(
    sm.lion_momentum(b1, b2),
    sm.aggregate_by_majority_vote('workers'),
    optax.add_decayed_weights(weight_decay, mask),
    optax.scale_by_learning_rate(learning_rate),
  )

  # Distributed Sign Momentum: local steps joined by a global sign step
  sm.local_steps(
    inner=optax.adamw(gamma),
    outer=optax.chain(sm.aggregate_by_mean('workers'), sm.sign_momentum()),
    sync_every=12,
    axis_name='workers',
    learning_rate=gamma,
  )

  # both at once: the outer step is a vote, two bits per parameter and round
  sm.local_steps(
    inner=optax.adamw(gamma),
    outer=optax.chain(
      sm.lion_momentum(0.95, 0.98),
      sm.aggregate_by_majority_vote('workers'),
      optax.scale_by_learning_rate(1.0),
    ),
    sync_every=12,
    axis_name='workers',
    learning_rate=gamma,
  )

The modules, from the bottom: ``arguments`` (checks), ``draws`` (random
numbers); ``bits``, ``signs``, ``levels`` (packed arrays); ``trees``,
``messages`` (a tree as one bucket, a bucket as messages); ``collectives`` (the
only one that communicates), ``parts`` (of each leaf one for each worker);
``aggregator`` and its kinds ``aggregate``, ``quantized``, ``votes``,
``ternary``, ``sparse`` and ``sharding`` (what goes to other workers);
``momentum``, ``compress``, ``feedback``, ``averaging`` and ``outer`` (other
optax transformations); ``local_steps`` (inner times outer); ``layout``,
``workers`` (what differs between workers, executors); ``optimizers``,
``compressed_sgd`` (the published methods). Beside them ``hlo``, ``links`` and
``wire`` read what a compiled program sends, and how long it takes.
"""

from signmomentum import wire
from signmomentum.aggregate import aggregate_by_mean
from signmomentum.averaging import with_state_averaging
from signmomentum.collectives import as_local
from signmomentum.compress import scale_by_randomized_sign
from signmomentum.compressed_sgd import (
  deep_gradient_compression,
  graddrop,
  terngrad,
)
from signmomentum.feedback import (
  with_error_feedback,
  with_momentum_correction,
)
from signmomentum.layout import WorkerState, worker_varying
from signmomentum.local_steps import LocalStepsState, local_steps, synchronised
from signmomentum.momentum import ignore_non_finite, lion_momentum
from signmomentum.optimizers import (
  diloco,
  distributed_lion,
  distributed_sign_momentum,
  distributed_signum,
)
from signmomentum.outer import (
  lookahead,
  nesterov,
  sign_momentum,
  signed_slowmo,
  slowmo,
)
from signmomentum.quantized import aggregate_by_quantized_mean
from signmomentum.sharding import shard_over_workers
from signmomentum.sparse import aggregate_by_top_k
from signmomentum.ternary import aggregate_by_ternary_mean
from signmomentum.votes import (
  aggregate_by_majority_vote,
  aggregate_by_sign_mean,
)
from signmomentum.workers import Workers

__all__ = (
  'LocalStepsState',
  'WorkerState',
  'Workers',
  'aggregate_by_majority_vote',
  'aggregate_by_mean',
  'aggregate_by_quantized_mean',
  'aggregate_by_sign_mean',
  'aggregate_by_ternary_mean',
  'aggregate_by_top_k',
  'as_local',
  'deep_gradient_compression',
  'diloco',
  'distributed_lion',
  'distributed_sign_momentum',
  'distributed_signum',
  'graddrop',
  'ignore_non_finite',
  'lion_momentum',
  'local_steps',
  'lookahead',
  'nesterov',
  'scale_by_randomized_sign',
  'shard_over_workers',
  'sign_momentum',
  'signed_slowmo',
  'slowmo',
  'synchronised',
  'terngrad',
  'wire',
  'with_error_feedback',
  'with_momentum_correction',
  'with_state_averaging',
  'worker_varying',
)
