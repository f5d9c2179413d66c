r"""All methods at the nano config: rates, workers, rounds, budgets and faults.

    python -m experiments.compare --sweep=configs/sweeps/gpt2_nano.py \
      --workdir=runs/sweep --jobs=2

One row anew, after its folder has been deleted:

    python -m experiments.compare --sweep=configs/sweeps/gpt2_nano.py \
      --workdir=runs/sweep --studies=workers_8 --methods=slowmo

About two hours on 2 quiet cores: some 190 runs of about a minute each, two at a
time; those with top-k or 36,000 steps take longer. The results are in
experiments/results/gpt2_nano.

    methods            every method, its rate tuned, three seeds: 4.9 million
                       tokens, 4 workers, 800 rounds of 12 local steps
    workers_8, alone   the same tokens for 8 workers, and for one with the batch
                       of four: part of what an outer momentum gains is not
                       about distribution
    sync_6, sync_24    other rounds at the same tokens, for local steps
    budget_*           200 and 3000 rounds: a sign step needs many
    dropouts           8 workers, each there with probability 3/4
    adversaries_*      1 and 3 of 8 workers negate their gradients

All but the first take the rates that are best there, and one seed: a rate is
tuned at 800 rounds, not at 200 or 3000.
"""

from experiments import methods, settings

_NANO = 'configs/gpt2_nano.py'
_LEFT_OUT = (
  'distributed_sign_momentum_sharded',  # as a test proves, the same numbers
  'adamw_quantized',  # right in expectation: links, not losses, are its case
  'distributed_sign_momentum_quantized',
)
_LOCAL_STEPS = (
  'local_adamw',
  'slowmo',
  'signed_slowmo',
  'lookahead',
  'diloco',
  'distributed_sign_momentum',
  'distributed_sign_momentum_one_bit',
)
_EVERY_STEP = (
  'adamw',
  'lion',
  'distributed_lion_majority_vote',
  'distributed_lion_sign_mean',
)
_BUDGETS = (
  'distributed_lion_majority_vote',
  'slowmo',
  'diloco',
  'distributed_sign_momentum',
  'distributed_sign_momentum_one_bit',
)
# The mean against the vote, every step and every round.
_FAULTS = (
  'lion',
  'distributed_lion_majority_vote',
  'distributed_lion_sign_mean',
  'distributed_sign_momentum',
  'distributed_sign_momentum_one_bit',
)


def get_sweep() -> list[settings.Study]:
  """Returns the studies, in the order in which they are run."""
  return [
    settings.Study(
      name='methods',
      config=f'{_NANO}:workers=4,sync_every=12',
      overrides={'num_steps': 9600},
      methods=[m for m in methods.METHODS if m not in _LEFT_OUT],
      seeds=(0, 1, 2),
      tuned=True,
    ),
    _at_best_rates(
      'workers_8',
      (
        *_EVERY_STEP,
        'local_adamw',
        'slowmo',
        'diloco',
        'distributed_sign_momentum',
        'distributed_sign_momentum_one_bit',
      ),
      'workers=8',
      num_steps=4800,
    ),
    _at_best_rates(
      'alone',
      (
        'adamw',
        'lion',
        'distributed_lion_majority_vote',
        'local_adamw',
        'slowmo',
        'lookahead',
        'diloco',
        'distributed_sign_momentum',
      ),
      'workers=1',
      batch_size=16,
    ),
    _at_best_rates('sync_6', _LOCAL_STEPS, 'sync_every=6'),
    _at_best_rates('sync_24', _LOCAL_STEPS, 'sync_every=24'),
    _at_best_rates('budget_2400', _BUDGETS, num_steps=2400),
    _at_best_rates('budget_36000', _BUDGETS, num_steps=36_000),
    _at_best_rates(
      'dropouts', _FAULTS, 'workers=8', num_steps=4800, presence=0.75
    ),
    _at_best_rates(
      'adversaries_1', _FAULTS, 'workers=8', num_steps=4800, adversaries=1
    ),
    _at_best_rates(
      'adversaries_3', _FAULTS, 'workers=8', num_steps=4800, adversaries=3
    ),
  ]


def _at_best_rates(
  name: str,
  names: tuple[str, ...],
  arguments: str = '',
  seeds: tuple[int, ...] = (0,),
  num_steps: int = 9600,
  **overrides: float,
) -> settings.Study:
  """A study of some methods, at the rates that are best in the first one."""
  return settings.Study(
    name=name,
    config=f'{_NANO}:{arguments}',
    overrides={'num_steps': num_steps} | overrides,
    methods=names,
    seeds=seeds,
    rates_of='methods',
  )
