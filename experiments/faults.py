"""Workers that stay away, and workers that work against the others.

Faults belong to the run, not to a method: every method sees the same ones.

* An *absent* worker takes its local step and is not in the aggregation: methods
  get the extra argument `present`, drawn for every worker and step. Methods
  with local steps look at it at the end of a round only.
* An *adversary* negates its gradients. What it sends of them at every step, a
  gradient or the sign of a momentum, is then exactly the negative of what it
  would have sent; with local steps it climbs where the others descend.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections


class Faults(NamedTuple):
  """What goes wrong in a run; nothing by default.

  Attributes:
    presence: probability that a worker is there at a step.
    adversaries: how many workers, the first ones, work against the others.
  """

  presence: float = 1.0
  adversaries: int = 0

  def extra_args(self, key: jax.Array) -> dict[str, Any]:
    """Returns the extra arguments of `update` for one worker and step.

    Args:
      key: a random key of this worker and step.
    """
    if self.presence == 1.0:
      return {}
    return {'present': jax.random.bernoulli(key, self.presence)}

  def corrupt(self, gradient: Any, worker: jax.Array) -> Any:
    """Returns the gradient that a worker goes by."""
    if not self.adversaries:
      return gradient
    sign = jnp.where(worker < self.adversaries, -1, 1)
    return jax.tree.map(lambda g: g * sign.astype(g.dtype), gradient)


NONE = Faults()


def get(config: ml_collections.ConfigDict) -> Faults:
  """Returns the faults of a config, whose numbers `ranges` has checked."""
  return Faults(config.presence, config.adversaries)
