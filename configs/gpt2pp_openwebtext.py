r"""GPT2++ on OpenWebText with votes: an experiment of Distributed Lion.

Liu et al., Distributed Lion for Communication Efficient Distributed Training
<https://arxiv.org/abs/2404.00438>, 2024, section 5.2.

    python -m experiments.train --workers=devices --distributed \
      --config=configs/gpt2pp_openwebtext.py:size=350m,path=DIR \
      --workdir=runs/gpt2pp_350m

DIR as in `configs/gpt2_openwebtext.py`.

Hardware: 32 GPUs of 40 GB or more, one worker each (4 nodes in the paper, see
`experiments/clusters`); 480 sequences of 1024 tokens a step in all.
Time: not known here. Steps: 14,000 for 350m, 30,000 for 760m, which is 6.9 and
14.7 billion tokens.
Result, perplexity of held-out text after the paper's table 2. The table is
from memory; only its best number, 14.66, has been seen elsewhere:

    method                            350m    760m
    adamw                            18.43   14.70
    lion                             18.35   14.66
    distributed_lion_majority_vote   18.37   14.66
    distributed_lion_sign_mean       18.39   14.69

The paper states the learning rates, betas and decay below, the batch and the
steps. It does not state warm-up, the schedule's end, clipping, tokenizer or
whether positions are rotary: these are ours (rotary=true is an argument).

Arguments: size=350m|760m, method, workers, sync_every, seed, path, attention,
rotary.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib
from experiments import errors
from experiments.models import gpt2pp

_STEPS = {'350m': 14_000, '760m': 30_000}
_SEQUENCES = 480  # of all workers, a step


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    size='350m',
    method='distributed_lion_majority_vote',
    workers=32,
    sync_every=12,
    seed=0,
    path='data/openwebtext',
    attention='xla',
    rotary=False,
  )
  steps = errors.lookup(_STEPS, args.size, 'size')
  batch_size = presets.share(_SEQUENCES, args.workers, 'sequences')
  config = fields.run(
    args,
    task='language',
    num_steps=steps,
    batch_size=batch_size,
    micro_batches=presets.parts(batch_size, at_most=5),
    eval_limit=1_000_000,
    points=(120, 1_200, 3_000),
  )
  config.data = fields.text('gpt2', context=1024, path=args.path)
  config.model = fields.decoder(
    gpt2pp.size(
      args.size,
      'bfloat16',
      scan_layers=True,
      attention=args.attention,
      positions='rotary' if args.rotary else 'learned',
    )
  )
  every_method = presets.every_method(
    warmup_steps=steps // 50,
    final_fraction=0.0,
    adamw={
      'learning_rate': 3e-4,
      'b1': 0.95,  # as printed
      'b2': 0.99,
      'weight_decay': 0.1,
      'clip': 1.0,
    },
    lion={'learning_rate': 9e-5, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 1.0},
  )
  config.optimizer = fields.optimizer(every_method, args.method)
  return config
