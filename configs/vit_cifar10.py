r"""A ViT on CIFAR-10 at 4 to 32 workers: an experiment of Distributed Lion.

Liu et al., Distributed Lion for Communication Efficient Distributed Training
<https://arxiv.org/abs/2404.00438>, 2024, section 5.1.

    python -m experiments.prepare_tfds --name=cifar10
    python -m experiments.train --workdir=runs/vit_cifar10 \
      --config=configs/vit_cifar10.py:workers=4,seed=42

Hardware: one GPU simulates the workers; with --workers=devices each is a GPU.
Time: not known here. Steps: 312,492: 200 epochs of 50,000 images for every
worker, each of which sees all images, with 32 in a batch.
Result: accuracies are in figures of the paper only, and so not known. It finds
that the majority vote is as good as global Lion, that the sign mean is a little
below and as good as AdamW, and that all are far above TernGrad, gradient
dropping and DGC; with more workers everything gets worse.

The paper states model, batch, epochs, a cosine schedule, the seeds 42, 52, 62
and grids of rates (5e-5, 1e-3, 5e-3, 1e-2) and decays (5e-4, 1e-3, 5e-3). What
was chosen of them, below, is from memory and quite uncertain. It does not state
patches, augmentation or warm-up: these are ours.

Arguments: method, workers, sync_every, seed, path (of TFDS), augment.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib
from experiments.models import vit

_EPOCHS, _IMAGES, _BATCH = 200, 50_000, 32
_AUGMENTATION = {'crop': 'padded', 'padding': 4, 'flip': True}


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    method='distributed_lion_majority_vote',
    workers=4,
    sync_every=12,
    seed=42,
    path='',
    augment=True,
  )
  config = fields.run(
    args,
    task='vision',
    num_steps=_EPOCHS * _IMAGES // _BATCH,
    batch_size=_BATCH,
    eval_limit=10_000,
    points=(240, 1_560, 15_600),
  )
  config.data = fields.images(
    32,
    10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    name='cifar10',
    path=args.path,
    sharding='whole',
    augmentation=_AUGMENTATION if args.augment else {},
  )
  config.model = fields.vit(vit.cifar10())
  every_method = presets.every_method(
    warmup_steps=1_000,
    final_fraction=0.0,
    adamw={
      'learning_rate': 1e-4,
      'b1': 0.9,
      'b2': 0.999,
      'weight_decay': 5e-4,
      'clip': 1.0,
    },
    lion={'learning_rate': 5e-5, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 5e-3},
    sgd={'learning_rate': 1e-3, 'momentum': 0.9, 'weight_decay': 5e-4},
  )
  every_method['deep_gradient_compression']['learning_rate'] = 1e-2
  config.optimizer = fields.optimizer(every_method, args.method)
  return config
