r"""ViT-S/16 and ViT-B/16 on ImageNet-1k: an experiment of Distributed Lion.

Liu et al., Distributed Lion for Communication Efficient Distributed Training
<https://arxiv.org/abs/2404.00438>, 2024, section 5.2.

    python -m experiments.prepare_tfds --name=imagenet2012 --data_dir=DIR
    python -m experiments.train --workers=devices --distributed \
      --config=configs/vit_imagenet.py:variant=S16,path=DIR \
      --workdir=runs/vit_s16

ImageNet's archives have to be in DIR/downloads/manual before they are prepared.

Hardware: 32 GPUs or TPU chips, one worker each (4 nodes in the paper, see
`experiments/clusters`); 4096 images a step in all.
Time: not known here. Steps: 93,828, which is 300 epochs in whole rounds.
Result, top-1 after the paper's table 2, from memory (that the sign mean is
better here than the vote is in its text):

    method                             S16     B16
    adamw                            79.74   80.94
    lion                             79.82   80.99
    distributed_lion_majority_vote   79.69   80.79
    distributed_lion_sign_mean       80.11   81.13

The paper states rates, betas, decay, batch, epochs, MixUp 0.5 and AutoAugment.
Here RandAugment takes AutoAugment's place (2 operations of magnitude 5 of 10).
Warm-up and clipping are not stated: 10,000 steps and 1.0 are those of the ViT
paper.

Arguments: variant=S16|B16, method, workers, sync_every, seed, path.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib
from experiments import errors
from experiments.models import vit

_IMAGES, _EPOCHS = 4096, 300  # a step, of all workers
# Model, and learning rate and decay of AdamW.
_VARIANTS = {
  'S16': (vit.small_16, 3e-3, 0.1),
  'B16': (vit.base_16, 1e-3, 1.0),
}


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    variant='S16',
    method='distributed_lion_sign_mean',
    workers=32,
    sync_every=12,
    seed=0,
    path='',
  )
  make, rate, decay = errors.lookup(_VARIANTS, args.variant, 'variant')
  batch_size = presets.share(_IMAGES, args.workers, 'images')
  config = fields.run(
    args,
    task='vision',
    num_steps=_EPOCHS * 1_281_167 // _IMAGES,
    batch_size=batch_size,
    micro_batches=presets.parts(batch_size, at_most=128),
    eval_limit=10_000,
    points=(120, 1_248, 6_240),
  )
  config.data = fields.images(
    224,
    1000,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    name='imagenet2012',
    path=args.path,
    central_fraction=0.875,
    augmentation={
      'crop': 'resized',
      'flip': True,
      'randaugment_ops': 2,
      'randaugment_magnitude': 5.0,
      'mixup_alpha': 0.5,
    },
  )
  config.model = fields.vit(make('bfloat16', scan_layers=True))
  adamw = {
    'learning_rate': rate,
    'b1': 0.9,
    'b2': 0.999,
    'weight_decay': decay,
    'clip': 1.0,
  }
  every_method = presets.every_method(
    warmup_steps=10_000,
    final_fraction=0.0,
    adamw=adamw,
    lion=presets.lion_of(adamw),
  )
  config.optimizer = fields.optimizer(every_method, args.method)
  return config
