"""The summary, its table and its picture."""

import dataclasses

import pytest

from experiments import errors, metrics, report, tasks

SUMMARY = report.Summary(
  method='slowmo',
  workers=4,
  sync_every=12,
  seed=3,
  steps=1200,
  parameters=34_688,
  unit='tokens',
  seen=614_400,
  epochs=0.5,
  measures={
    'validation_loss': tasks.Estimate(1.8111, 0.0123),
    'validation_bits_per_byte': tasks.Estimate(2.6128, 0.0177),
    'validation_perplexity': tasks.Estimate(6.1172, 0.0752),
  },
  baselines={'unigram': 3.1474, 'bigram': 2.5048},
  bits=4.0,
  all_reduce_bits=48.0,
  peak_bytes=3 * 2**29,
  seconds=61.5,
  source='english',
  sha256='0' * 64,
)


@pytest.mark.parametrize(
  'shown',
  [
    'slowmo: 34,688 parameters, 4 workers, 1,200 local steps, 12 a round',
    '1.8111 ± 0.0123 nats per token',
    '2.6128 ± 0.0177',
    '6.1172 ± 0.0752',
    '  bigram baseline             2.5048',
    'unigram baseline            3.1474',
    '614,400',
    '61.5 s',
    '1.50 GiB',
    '9,990 tokens/s',
    '4.000',
    '48.000',
    '12.0 times as much',
    '4,800 per parameter; 20.8 MB by each worker',  # 4 * 1200 * 34,688 / 8
    '2.707 Mbit/s by each worker',  # in 61.5 s
  ],
)
def test_table_shows(shown):
  assert shown in report.table(SUMMARY)


def test_table_of_a_worker_on_its_own():
  alone = dataclasses.replace(SUMMARY, workers=1, bits=0.0, all_reduce_bits=0.0)
  assert 'sends nothing' in report.table(alone)


def test_save_and_load(tmp_path):
  assert report.load(tmp_path) is None
  report.save(SUMMARY, tmp_path)
  assert report.load(tmp_path) == SUMMARY


@pytest.mark.parametrize('content', ['', '[]', '{"method": "slowmo"}'])
def test_a_broken_summary_is_named(content, tmp_path):
  (tmp_path / 'summary.json').write_text(content)
  with pytest.raises(errors.UserError, match='summary.json is not.*Delete'):
    report.load(tmp_path)


@pytest.mark.parametrize('evaluated', [True, False])
def test_draws_what_there_is(evaluated, tmp_path):
  with metrics.Metrics(tmp_path, 0) as log:
    for step in (10, 20, 30):
      log.write(step, {'tokens': 100 * step, 'train_loss': 3.0 - step / 10})
      if evaluated:
        log.write(step, {'validation_loss': 3.0})
  assert report.draw(SUMMARY, tmp_path).read_bytes().startswith(b'\x89PNG')
