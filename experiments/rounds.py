"""What one worker does in a round, compiled once for a whole run.

The program makes the steps `start` to `stop` of a round. A run that was stopped
in the middle of one thus goes on with the very same instructions, and equals
the uninterrupted run bit for bit.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from experiments import faults as faults_lib
from experiments import plans
from experiments.models import decoder
import signmomentum as sm

_ABSENCE = 0xAB5E  # sets these draws apart from those of dropout


def program(
  tx: optax.GradientTransformationExtraArgs,
  model: decoder.DecoderConfig,
  sync_every: int,
  seed: int,
  faults: faults_lib.Faults = faults_lib.NONE,
) -> Callable:
  """Builds what one worker does in a round, for `Workers.step`.

  Args:
    tx: the method.
    model: the model.
    sync_every: local steps in a round.
    seed: of dropout and of who is absent.
    faults: what goes wrong.

  Returns:
    a function of the state, the worker's tokens `[sync_every, B, L + 1]`, and,
    the same for all workers, the round's first step and from where to where in
    the round it shall go. It returns the state, and losses and norms of the
    gradients, `[sync_every]` each, zero for steps that it was not to make.
  """

  def local_step(state, tokens_BxL, step):
    key = jax.random.fold_in(jax.random.key(seed), step)
    worker = jax.lax.axis_index(plans.AXIS)
    key = jax.random.fold_in(key, worker)

    def mean_nats(params):
      logits_BxLxV = decoder.apply(model, params, tokens_BxL[:, :-1], key)
      return jnp.mean(decoder.nats(logits_BxLxV, tokens_BxL[:, 1:]))

    loss, gradient = jax.value_and_grad(mean_nats)(
      sm.as_local(state.params, plans.AXIS)
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
    return state, (loss, optax.tree.norm(gradient))

  def run(state, tokens_SxBxL, first, start, stop):
    def body(place, carry):
      state, outputs = carry
      state, new = local_step(state, tokens_SxBxL[place], first + place)
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
