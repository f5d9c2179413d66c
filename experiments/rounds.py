"""What one worker does in a round, compiled once for a whole run.

The program makes the steps `start` to `stop` of a round. A run that was stopped
in the middle of one thus goes on with the very same instructions, and equals
the uninterrupted run bit for bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments import faults as faults_lib
from experiments import plans
import signmomentum as sm

_ABSENCE = 0xAB5E  # sets these draws apart from those of dropout


def program(
  tx: optax.GradientTransformationExtraArgs,
  loss: Callable[[optax.Params, Any, jax.Array], jax.Array],
  sync_every: int,
  seed: int,
  faults: faults_lib.Faults = faults_lib.NONE,
  micro_batches: int = 1,
  targets: Callable[[Any], jax.Array] | None = None,
) -> Callable:
  """Builds what one worker does in a round, for `Workers.step`.

  Args:
    tx: the method.
    loss: of parameters, a batch and the key of dropout: a mean.
    sync_every: local steps in a round.
    seed: of dropout and of who is absent.
    faults: what goes wrong.
    micro_batches: into how many parts a batch is cut. They are computed one
      after the other, in the memory of one.
    targets: of how many losses the mean of a part is one, by which it counts.
      None: all alike.

  Returns:
    a function of the state, the worker's batches `[sync_every, ...]`, and, the
    same for all workers, the round's first step and from where to where in the
    round it shall go. It returns the state, and losses and norms of the
    gradients, `[sync_every]` each, zero for steps that it was not to make.
  """

  value_and_grad = _in_parts(
    jax.value_and_grad(loss), micro_batches, targets or (lambda _: 1.0)
  )

  def local_step(state, batch, step):
    key = jax.random.fold_in(jax.random.key(seed), step)
    worker = jax.lax.axis_index(plans.AXIS)
    key = jax.random.fold_in(key, worker)

    nats, gradient = value_and_grad(
      sm.as_local(state.params, plans.AXIS), batch, key
    )
    extra_args = faults.extra_args(jax.random.fold_in(key, _ABSENCE))
    updates, opt_state = tx.update(
      faults.corrupt(gradient, worker),
      state.opt_state,
      state.params,
      **extra_args,
    )
    params = optax.apply_updates(state.params, updates)
    state = state.replace(params=params, opt_state=opt_state)
    return state, (nats, optax.tree.norm(gradient))

  def run(state, batches, first, start, stop):
    def body(place, carry):
      state, outputs = carry
      batch = jax.tree.map(lambda x: x[place], batches)
      state, new = local_step(state, batch, first + place)
      return state, jax.tree.map(lambda x, y: x.at[place].set(y), outputs, new)

    nothing = sm.as_local(jnp.zeros(sync_every), plans.AXIS)
    state, outputs = jax.lax.fori_loop(
      start, stop, body, (state, (nothing, nothing))
    )
    # Added updates may miss the point that all agree on by a rounding error.
    params = jax.tree.map(
      lambda agreed, own: jnp.where(stop == sync_every, agreed, own),
      sm.synchronised(state.opt_state, state.params),
      state.params,
    )
    return state.replace(params=params), outputs

  return run


def _in_parts(
  value_and_grad: Callable, parts: int, targets: Callable
) -> Callable:
  """The mean of a function over the targets of all parts of a batch."""
  if parts == 1:
    return value_and_grad

  def mean(params, batch, key):
    def add(total, item):
      index, part = item
      share = targets(part) / all_targets
      new = value_and_grad(params, part, jax.random.fold_in(key, index))
      return jax.tree.map(lambda x, y: x + share * y, total, new), None

    batch = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
    all_targets = jnp.sum(
      jax.vmap(lambda part: jnp.float32(targets(part)))(batch)
    )
    zero = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
    total, _ = jax.lax.scan(
      add, sm.as_local(zero, plans.AXIS), (jnp.arange(parts), batch)
    )
    return total

  return mean
