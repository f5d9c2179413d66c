"""Runs without training: studies of tiny runs, and the files runs leave."""

import json

from experiments import config as config_lib
from experiments import metrics, outcomes, provenance, report, settings, tasks
from tests import tiny

DIVERGED = float('inf')


def study(name='main', arguments='', overrides=(), **fields):
  """A study of tiny runs, with a round of 3 steps unless told otherwise."""
  flags = tiny.flags({'num_steps': 6, 'eval_every': 3} | dict(overrides))
  items = [flag.removeprefix('--config.').split('=', 1) for flag in flags]
  return settings.Study(
    name=name,
    config=f'{tiny.SPEC},{arguments or "sync_every=3"}',
    overrides=dict(items),
    **{'methods': ('adamw', 'lion')} | fields,
  )


def finish(config, folder, loss, bits=4.0):
  """Writes what is left of a finished run, or of one that diverged."""
  folder.mkdir(parents=True, exist_ok=True)
  config_lib.save(config, folder / provenance.CONFIG)
  versions = [{'jax': '0', 'seed': config.seed}]
  (folder / provenance.VERSIONS).write_text(json.dumps(versions))
  if loss == DIVERGED:
    outcomes.record_divergence(folder, FloatingPointError('It is nan.'))
    return
  steps = config.num_steps
  sequences = config.workers * config.batch_size
  tokens_per_step = sequences * config.data.context
  with metrics.Metrics(folder, 0) as log:
    for step in (steps // 3, 2 * steps // 3, steps):
      log.write(
        step,
        {
          'validation_loss': loss + 1 - step / steps,
          'tokens': step * tokens_per_step,
          'bits': step * bits,
        },
      )
  report.save(
    report.Summary(
      method=config.method,
      workers=config.workers,
      sync_every=config.sync_every,
      seed=config.seed,
      steps=steps,
      parameters=1000,
      unit='tokens',
      seen=steps * tokens_per_step,
      epochs=0.5,
      measures={
        'validation_loss': tasks.Estimate(loss, 0.01),
        'validation_bits_per_byte': tasks.Estimate(1.4 * loss, 0.014),
      },
      baselines={'unigram': 3.15, 'bigram': 2.5},
      bits=bits,
      all_reduce_bits=48.0,
      peak_bytes=10**6,
      seconds=60.0,
      source='english',
      sha256='0' * 64,
    ),
    folder,
  )


def finish_all(results, loss, bits=4.0):
  """Finishes all runs of all studies.

  Args:
    results: of a directory.
    loss: returns the loss of a run.
    bits: that all of them send.
  """
  chosen = settings.choose(list(results.sweep.values()), ['all'], ['all'])
  while runs := results.next(chosen):
    for run in runs:
      finish(results.config(run), results.folder(run), loss(run), bits)
