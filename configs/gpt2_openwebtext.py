r"""GPT-2 on OpenWebText with local steps: the sign-momentum paper's experiment.

Yu et al., Distributed Sign Momentum with Local Steps for Training Transformers
<https://arxiv.org/abs/2411.17866>, 2024; settings as in the authors' code.

    python -m experiments.train --workers=devices \
      --config=configs/gpt2_openwebtext.py:size=small,path=DIR,attention=cudnn \
      --workdir=runs/gpt2_small

DIR has `train.bin` and `val.bin` of nanoGPT: its `data/openwebtext/prepare.py`
makes them, 9.0e9 tokens of training; or `experiments.make_token_files` from
text of your own. TFDS has no OpenWebText.

Hardware: 8 GPUs of 80 GB, one worker each, 480 sequences of 1024 tokens a step
in all; any number of workers that divides 480 will do. On TPUs leave
`attention` at xla.
Time: not known here. Steps: 100,000, which is 49 billion tokens.
Result: not known: the paper's tables are not at hand. What its abstract claims
is that sign momentum is consistently better than SlowMo at equal local steps.

Where the authors' code and this differ: the vocabulary is not padded to 50,304;
workers have shards of their own instead of random windows of everything; the
outer decay is on matrices only and 0.1, as in their example, where theirs is on
everything and 0.2 in their script; the local rate of a round is its mean, not
that of its last step; validation is of the parameters that all agree on.
Learning rates of methods
that are not in the paper follow the rule of thumb in `configs/presets.py`.

Arguments: size=small|medium|large, method, workers, sync_every, seed, path,
attention.
"""

import ml_collections

from configs import fields, presets
from experiments import config as config_lib
from experiments import errors
from experiments.models import gpt2

_SIZES = {'small': gpt2.small, 'medium': gpt2.medium, 'large': gpt2.large}
_SEQUENCES = 480  # of all workers, a step


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; see the module's docstring for the arguments."""
  args = config_lib.parse_arg(
    arg,
    size='small',
    method='distributed_sign_momentum',
    workers=8,
    sync_every=12,
    seed=0,
    path='data/openwebtext',
    attention='xla',
  )
  batch_size = presets.share(_SEQUENCES, args.workers, 'sequences')
  config = fields.run(
    args,
    task='language',
    num_steps=100_000,
    batch_size=batch_size,
    # of 6 sequences, as the authors have it, or of fewer
    micro_batches=presets.parts(batch_size, at_most=6),
    eval_limit=1_000_000,
    points=(120, 1_200, 6_000),
  )
  config.data = fields.text('gpt2', context=1024, path=args.path)
  config.model = fields.decoder(
    errors.lookup(_SIZES, args.size, 'size')(
      'bfloat16', use_bias=False, scan_layers=True, attention=args.attention
    )
  )
  adamw = {
    'learning_rate': 5e-4,
    'b1': 0.9,
    'b2': 0.95,
    'weight_decay': 0.1,
    'clip': 1.0,
  }
  every_method = presets.every_method(
    warmup_steps=2_000,
    final_fraction=0.05,
    adamw=adamw,
    lion=presets.lion_of(adamw),
  )
  # As in the authors' example of SlowMo.
  every_method['slowmo']['outer_momentum'] = 0.2
  config.optimizer = fields.optimizer(every_method, args.method)
  return config
