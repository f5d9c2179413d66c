"""Hyper-parameters of every method, as variations of a few tables.

A config gives what is its own: rates, decay, moments. The rest follows by the
rule of thumb of the Distributed Lion paper (Liu et al., arXiv 2404.00438, 2024,
section 5.2): Lion and its relatives take a tenth of AdamW's learning rate and
ten times its decay.
"""

from collections.abc import Mapping
from typing import Any

from experiments import errors

# The rate of SGD has nothing to do with AdamW's.
SGD = {'learning_rate': 0.3, 'momentum': 0.9, 'weight_decay': 1e-4}
SIGN_MOMENTUM = {
  'outer_learning_rate': 1.0,
  'outer_b1': 0.95,
  'outer_b2': 0.98,
  'outer_weight_decay': 0.1,
}


def every_method(
  warmup_steps: int,
  final_fraction: float,
  adamw: Mapping[str, Any],
  lion: Mapping[str, Any],
  sgd: Mapping[str, Any] = SGD,
  sign_momentum: Mapping[str, Any] = SIGN_MOMENTUM,
  bound: float = 0.002,
) -> dict[str, dict[str, Any]]:
  """Returns the fields of `config.optimizer` for each method.

  Args:
    warmup_steps: of every schedule, linear from 0.
    final_fraction: of the peak, where the cosine ends.
    adamw: learning_rate, b1, b2, weight_decay, clip.
    lion: learning_rate, b1, b2, weight_decay.
    sgd: learning_rate, momentum, weight_decay: of compressed gradients.
    sign_momentum: outer_learning_rate, outer_b1, outer_b2,
      outer_weight_decay.
    bound: of randomized signs.
  """
  schedule = {'warmup_steps': warmup_steps, 'final_fraction': final_fraction}
  adamw, lion, sgd = (dict(table) | schedule for table in (adamw, lion, sgd))
  # Beta 0.99, as in figure 4 of the paper.
  signum = {k: v for k, v in lion.items() if k != 'b2'} | {'b1': 0.99}
  outer = adamw | sign_momentum
  # What is sent of gradients; the shares are those of the paper.
  density = {'density': 0.04}
  return {
    # The mean of full-precision gradients, every step.
    'adamw': adamw,
    'lion': lion,
    # The same in 8, 4 or 2 bits.
    'adamw_quantized': adamw | {'bits': 8},
    # Votes, every step.
    'distributed_lion_majority_vote': lion,
    'distributed_lion_sign_mean': lion,
    'distributed_lion_stochastic': lion | {'bound': bound},
    'distributed_lion_averaged': lion,
    'distributed_signum': signum,
    'distributed_signum_sign_mean': signum,
    # Compressed gradients, every step.
    'terngrad': sgd | {'clip_factor': 2.5},
    'graddrop': sgd | density,
    'deep_gradient_compression': sgd
    | density
    | {'density_warmup_steps': warmup_steps, 'clip': 1.0},
    # The mean of parameters, every `sync_every` steps.
    'local_adamw': adamw,
    'slowmo': adamw | {'outer_learning_rate': 1.0, 'outer_momentum': 0.5},
    'signed_slowmo': adamw
    | {'outer_learning_rate': 1.0, 'outer_momentum': 0.95},
    'lookahead': adamw | {'outer_learning_rate': 0.5},
    'diloco': adamw | {'outer_learning_rate': 0.7, 'outer_momentum': 0.9},
    'distributed_sign_momentum': outer,
    'distributed_sign_momentum_sharded': outer,
    'distributed_sign_momentum_quantized': outer | {'bits': 4},
    # A vote, every `sync_every` steps.
    'distributed_sign_momentum_one_bit': outer,
    'distributed_sign_momentum_one_bit_feedback': outer,
  }


def lion_of(adamw: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the rule of thumb: a tenth of the rate, ten times the decay."""
  return {
    'learning_rate': adamw['learning_rate'] / 10,
    'b1': 0.9,
    'b2': 0.99,
    'weight_decay': 10 * adamw['weight_decay'],
  }


def share(total: int, workers: int, what: str) -> int:
  """Returns what each worker has of a batch of all.

  Raises:
    UserError: if they cannot share it evenly.
  """
  if workers < 1 or total % workers:
    raise errors.UserError(
      f'workers={workers} cannot share {total} {what} evenly.'
    )
  return total // workers


def parts(batch_size: int, at_most: int) -> int:
  """Returns in how many equal parts a batch is cut, of at most so many each."""
  return next(
    count
    for count in range(1, batch_size + 1)
    if batch_size % count == 0 and batch_size // count <= at_most
  )
