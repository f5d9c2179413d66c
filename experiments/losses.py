"""What is kept of the losses between two log points."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Losses:
  """Sums over steps and workers since the last log point.

  Attributes:
    nats: sum over all targets.
    norms: sum of the norms of the workers' gradients.
    batches: number of batches, one per worker and step.
    last: the mean loss of the newest step.
  """

  nats: float = 0.0
  norms: float = 0.0
  batches: int = 0
  last: float = 0.0

  def add(
    self, step: int, losses_WxS: np.ndarray, norms_WxS: np.ndarray
  ) -> None:
    """Adds consecutive steps. All batches have as many targets.

    Args:
      step: the first of them.
      losses_WxS: mean loss of each batch, `[workers, steps]`.
      norms_WxS: norm of each gradient.

    Raises:
      FloatingPointError: one is not finite; names the first.
    """
    _require_finite('loss', step, losses_WxS)
    _require_finite('norm of the gradient', step, norms_WxS)
    self.nats += float(np.sum(losses_WxS, dtype=np.float64))
    self.norms += float(np.sum(norms_WxS, dtype=np.float64))
    self.batches += losses_WxS.size
    self.last = float(np.mean(losses_WxS[:, -1], dtype=np.float64))

  def pop(self) -> dict[str, float]:
    """Returns the means, and starts again."""
    means = {
      'train_loss': self.nats / self.batches,
      'gradient_norm': self.norms / self.batches,
    }
    self.nats, self.norms, self.batches = 0.0, 0.0, 0
    return means


def _require_finite(what: str, step: int, values_WxS: np.ndarray) -> None:
  steps, workers = np.nonzero(~np.isfinite(values_WxS.T))
  if steps.size:
    raise FloatingPointError(
      f'The {what} of worker {workers[0]} at step {step + steps[0]} is'
      f' {values_WxS[workers[0], steps[0]]}. The run stops here and keeps the'
      ' checkpoints it has. Try a lower learning_rate, a longer warmup_steps or'
      ' a smaller clip; the same command goes on from the last checkpoint.'
    )
