"""A byte-level GPT-2 of 35 thousand parameters that shows the methods at work.

    make train
    python -m experiments.train --config=configs/gpt2_nano.py \
      --workdir=runs/gpt2_nano

About 2 minutes on 2 CPU cores, 4 beside other work. A sign step moves a weight
by at most outer_learning_rate * learning_rate a round, so the method needs
thousands of rounds: 3000 here. With 400 it is far behind SlowMo and local
averaging.

Validation loss in nats per byte of one seed, with these presets (for a tuned
comparison of all methods see configs/sweeps/gpt2_nano.py):

    unigram 3.147    bigram 2.505    local_adamw 1.819    diloco 1.791
    distributed_sign_momentum_one_bit 1.785
    distributed_sign_momentum 1.785
    slowmo  1.783    adamw 1.767     distributed_lion_majority_vote 1.772

Arguments, after a colon: `:method=slowmo,workers=8,sync_every=24,seed=1,smoke`.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib

# Everything that is tuned, for every method.
PRESETS = presets.every_method(
  warmup_steps=200,
  final_fraction=0.05,
  adamw={
    'learning_rate': 2e-3,  # the peak, after warm-up
    'b1': 0.9,
    'b2': 0.95,
    'weight_decay': 0.1,  # on matrices and embeddings only
    'clip': 1.0,  # norm of a worker's gradient
  },
  lion={'learning_rate': 3e-4, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 1.0},
)


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    method='distributed_sign_momentum',
    workers=4,
    sync_every=12,
    seed=0,
    smoke=False,  # a run of seconds that touches everything
  )
  smoke = args.smoke
  config = fields.run(
    args,
    task='language',
    num_steps=4 * args.sync_every if smoke else 36_000,
    batch_size=4,
    eval_limit=1_024 if smoke else 65_536,
    points=(1, 2 * args.sync_every, 2 * args.sync_every)
    if smoke
    else (120, 1_200, 6_000),
  )
  config.data = fields.text(
    'bytes',
    context=32,
    source='embedded',
    corpus='pydoc_topics' if smoke else 'english',
  )
  config.model = {
    'num_layers': 2,
    'num_heads': 2,
    'num_kv_heads': 2,
    'width': 32,
    'mlp': 'gelu',
    'mlp_width': 128,
    'norm': 'layer',
    'norm_epsilon': 1e-5,
    'positions': 'learned',
    'rope_theta': 10_000.0,  # of rotary positions
    'tie_embeddings': True,
    'dropout': 0.0,
    'use_bias': True,
    'dtype': 'float32',  # of the computation; parameters are float32
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  config.optimizer = fields.optimizer(PRESETS, args.method)
  if smoke:
    config.optimizer.warmup_steps = args.sync_every
  return config
