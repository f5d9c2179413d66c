r"""Distributed Lion and its baselines on images, at 4 to 32 workers.

    python -m experiments.compare --sweep=configs/sweeps/vit_mnist.py \
      --workdir=runs/vision --jobs=2

The counterpart in miniature of figures 2 to 4 of the Distributed Lion paper
(Liu et al., arXiv 2404.00438, 2024): accuracy against workers, and against the
bits that are sent. As there, all numbers of workers make equally many steps
with equal batches, and a method has one learning rate for all of them: the one
that is best with 8 workers and the first seed. The last study tunes four of the
methods for 4 workers, too.

About two hours on 2 cores: some 140 runs of half a minute to two minutes, two
at a time. The results are in experiments/results/vit_mnist.
"""

from experiments import settings

_CONFIG = 'configs/vit_mnist.py'
_METHODS = (
  'adamw',
  'lion',
  'distributed_lion_majority_vote',
  'distributed_lion_sign_mean',
  'distributed_signum',
  'distributed_signum_sign_mean',
  'terngrad',
  'graddrop',
  'deep_gradient_compression',
)
_SEEDS = (42, 52, 62)  # those of the paper


def get_sweep() -> list[settings.Study]:
  """Returns the studies, in the order in which they are run."""
  return [
    settings.Study(
      name='workers_8',
      config=f'{_CONFIG}:workers=8',
      methods=_METHODS,
      seeds=_SEEDS,
      tuned=True,
    ),
    *(
      settings.Study(
        name=f'workers_{workers}',
        config=f'{_CONFIG}:workers={workers}',
        methods=_METHODS,
        seeds=_SEEDS,
        rates_of='workers_8',
      )
      for workers in (4, 16, 32)
    ),
    # The rates of 8 workers are too high for the small batches of 4.
    settings.Study(
      name='tuned_4',
      config=f'{_CONFIG}:workers=4',
      methods=_METHODS[:4],
      seeds=_SEEDS,
      tuned=True,
    ),
  ]
