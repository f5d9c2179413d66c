"""The validation loss of the parameters that all workers share.

It reads a state and changes nothing. One device computes it, whatever the
number of workers and whatever runs them, so that the figures can be compared
to the last bit.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import batches, errors
from experiments.models import decoder
import signmomentum as sm

# How many targets a batch has; it decides on speed and memory only.
_BATCH_TARGETS = 4096


def shared_params(state: sm.WorkerState) -> optax.Params:
  """The parameters that all workers agree on, on one device.

  Args:
    state: of all workers.

  Raises:
    UserError: if a method lets the parameters differ and has no anchor.
  """
  marks = jax.tree.unflatten(jax.tree.structure(state), state.varying)
  if any(jax.tree.leaves(sm.synchronised(marks.opt_state, marks.params))):
    raise errors.UserError(
      'This method has no parameters that all workers agree on: put its parts'
      ' into signmomentum.local_steps, or aggregate what workers disagree on.'
    )
  params = sm.synchronised(state.opt_state, state.params)
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), params)


class Evaluator:
  """Evaluates one model on one stream.

  Args:
    model: the model.
    tokens: the stream, a vector of ids.
    max_tokens: as in `batches.evaluation_windows`.
  """

  def __init__(
    self,
    model: decoder.DecoderConfig,
    tokens: np.ndarray,
    max_tokens: int | None,
  ):
    batch_size = max(1, _BATCH_TARGETS // model.context)
    self._model = model
    self._windows = batches.evaluation_windows(
      tokens, model.context, batch_size, max_tokens
    )

  def nats_per_token(self, params: optax.Params) -> float:
    """The mean over all targets, each counted once."""
    sums = _nats(self._model, params, self._windows)
    # Exact enough to add in any order.
    total = np.sum(np.asarray(sums), dtype=np.float64)
    return float(total / np.sum(self._windows.mask))


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """Converts a loss into a unit that no tokenizer can change."""
  return nats_per_token / bytes_per_token / math.log(2)


@functools.partial(jax.jit, static_argnums=0)
def _nats(
  model: decoder.DecoderConfig, params: Any, windows: batches.Evaluation
) -> jax.Array:
  """Returns the sum of each batch."""

  def one_batch(batch):
    tokens_BxL, mask_BxL = batch.tokens, batch.mask
    logits_BxLxV = decoder.apply(model, params, tokens_BxL[:, :-1])
    losses_BxL = decoder.nats(logits_BxLxV, tokens_BxL[:, 1:])
    return jnp.sum(jnp.where(mask_BxL, losses_BxL, 0))

  return jax.lax.map(one_batch, windows)
