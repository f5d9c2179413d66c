"""A small ViT on 5,000 digits of MNIST: the image experiments in miniature.

    make train-vision
    python -m experiments.train --config=configs/vit_mnist.py \
      --workdir=runs/vit_mnist

The counterpart of the CIFAR-10 experiments of the Distributed Lion paper (Liu
et al., arXiv 2404.00438, 2024, section 5.1): each of 4 to 32 workers goes
through all images in an order of its own, for equally many steps, so that more
workers see more images. 4,000 images to train on and 1,000 held out, without
augmentation.

A minute or less on 2 CPU cores. Top-1 of the default, seed 0: 84.5 %; with
--config.optimizer.learning_rate=8e-3, which a sweep chose for the vote
(configs/sweeps/vit_mnist.py), 93.7 %.

Arguments, after a colon: `:method=lion,workers=8,sync_every=24,seed=1,smoke`.
Methods that send something at every step do so whatever `sync_every` is.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib

_STEPS = 1_200


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    method='distributed_lion_majority_vote',
    workers=4,
    sync_every=12,
    seed=0,
    smoke=False,  # a run of seconds that touches everything
  )
  steps = 4 * args.sync_every if args.smoke else _STEPS
  config = fields.run(
    args,
    task='vision',
    num_steps=steps,
    batch_size=8,
    eval_limit=500,
    points=(steps // 40, steps // 10, steps // 2),
  )
  config.data = fields.images(
    28,
    10,
    mean=(0.1314,),
    std=(0.3086,),
    source='mnist_5k',
    sharding='whole',
  )
  config.model = {
    'patch_size': 7,
    'num_layers': 2,
    'num_heads': 2,
    'width': 32,
    'mlp_width': 128,
    'pooling': 'mean',
    'positions': 'learned',
    'dropout': 0.0,
    'stochastic_depth': 0.0,
    'dtype': 'float32',  # of the computation; parameters are float32
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  every_method = presets.every_method(
    warmup_steps=steps // 20,
    final_fraction=0.0,
    adamw={
      'learning_rate': 3e-3,
      'b1': 0.9,
      'b2': 0.999,
      'weight_decay': 0.05,  # on matrices only
      'clip': 1.0,  # norm of a worker's gradient
    },
    lion={'learning_rate': 1e-3, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 0.5},
    sgd={'learning_rate': 0.05, 'momentum': 0.9, 'weight_decay': 1e-4},
  )
  config.optimizer = fields.optimizer(every_method, args.method)
  return config
