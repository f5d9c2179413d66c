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

from configs import presets
from experiments import config as config_lib
from experiments import errors

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
  for name in ('workers', 'sync_every'):
    if args[name] < 1:
      raise errors.UserError(f'{name} must be at least 1, not {args[name]}.')

  def whole_rounds(steps):
    return max(1, steps // args.sync_every) * args.sync_every

  config = ml_collections.ConfigDict()
  config.task = 'language'
  config.seed = args.seed  # of initialisation, data order and dropout
  config.method = args.method
  config.workers = args.workers
  config.sync_every = args.sync_every  # local steps in a round
  config.num_steps = whole_rounds(36_000)  # local steps, of every worker
  config.batch_size = 4  # sequences per worker and step
  config.micro_batches = 1  # parts of a batch, one after the other
  config.presence = 1.0  # probability that a worker takes part in a step
  config.adversaries = 0  # workers that negate their gradients

  config.data = ml_collections.ConfigDict(
    {
      'source': 'embedded',
      'corpus': 'english',
      'path': '',
      'tokenizer': 'bytes',
      'sharding': 'disjoint',  # or 'whole': all workers see all windows
      'context': 32,  # tokens
    }
  )
  config.model = ml_collections.ConfigDict(
    {
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
  )
  # The keyword arguments of the method.
  config.optimizer = ml_collections.ConfigDict(
    errors.lookup(PRESETS, args.method, 'method')
  )

  # All in local steps, whole rounds of them.
  config.log_every = whole_rounds(120)
  config.eval_every = whole_rounds(1_200)
  config.checkpoint_every = whole_rounds(6_000)
  config.eval_limit = 65_536  # tokens, while training; at the end all there are

  if args.smoke:
    config.data.corpus = 'pydoc_topics'
    config.num_steps = 4 * args.sync_every
    config.optimizer.warmup_steps = args.sync_every
    config.log_every = args.sync_every
    config.eval_every = 2 * args.sync_every
    config.checkpoint_every = 2 * args.sync_every
    config.eval_limit = 1_024
  return config
