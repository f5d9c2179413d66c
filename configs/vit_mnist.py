"""A small ViT on 5,000 digits of MNIST: the image experiments in miniature.

    make train-vision
    python -m experiments.train --config=configs/vit_mnist.py \
      --workdir=runs/vit_mnist

The counterpart of the CIFAR-10 experiments of the Distributed Lion paper (Liu
et al., arXiv 2404.00438, 2024, section 5.1): each of 4 to 32 workers goes
through all images in an order of its own, for equally many steps, so that more
workers see more images. 4,000 images to train on and 1,000 held out, without
augmentation.

EXPECTED

Arguments, after a colon: `:method=lion,workers=8,sync_every=24,seed=1,smoke`.
Methods that send something at every step do so whatever `sync_every` is.
"""

import ml_collections

from configs import presets
from experiments import config as config_lib
from experiments import errors

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
  for name in ('workers', 'sync_every'):
    if args[name] < 1:
      raise errors.UserError(f'{name} must be at least 1, not {args[name]}.')
  rounds = 4 if args.smoke else max(1, _STEPS // args.sync_every)

  def share(part):
    """That part of the run, in whole rounds."""
    return max(1, rounds // part) * args.sync_every

  config = ml_collections.ConfigDict()
  config.task = 'vision'
  config.seed = args.seed  # of initialisation, data order and dropout
  config.method = args.method
  config.workers = args.workers
  config.sync_every = args.sync_every  # local steps in a round
  config.num_steps = rounds * args.sync_every  # local, of every worker
  config.batch_size = 8  # images per worker and step
  config.micro_batches = 1  # parts of a batch, one after the other
  config.presence = 1.0  # probability that a worker takes part in a step
  config.adversaries = 0  # workers that negate their gradients

  config.data = ml_collections.ConfigDict(
    {
      'source': 'mnist_5k',
      'name': '',
      'path': '',
      'image_size': 28,
      'central_fraction': 1.0,
      'classes': 10,
      'mean': (0.1314,),  # of the pixels, a number for each channel
      'std': (0.3086,),
      'sharding': 'whole',  # or 'disjoint': each worker has its own images
      'augmentation': {
        'crop': 'none',
        'padding': 2,
        'min_area': 0.08,
        'flip': False,
        'randaugment_ops': 0,
        'randaugment_magnitude': 0.0,
        'mixup_alpha': 0.0,
      },
    }
  )
  config.model = ml_collections.ConfigDict(
    {
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
  )
  every_method = presets.every_method(
    warmup_steps=share(20),
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
  # The keyword arguments of the method.
  config.optimizer = ml_collections.ConfigDict(
    errors.lookup(every_method, args.method, 'method')
  )

  # All in local steps, whole rounds of them.
  config.log_every = share(40)
  config.eval_every = share(10)
  config.checkpoint_every = share(2)
  config.eval_limit = 500  # images, while training; at the end all there are
  return config
