"""The benchmark for GPUs: on a CPU, in small, from flags to figures."""

import json
import os
import subprocess
import sys

import jax
import pytest

from experiments import bench_gpu, errors, vote_parts

GIGABYTE = 10**9
ENVIRONMENT = {'JAX_PLATFORMS': 'cpu', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}


class _Device:
  def __init__(self, stats):
    self._stats = stats

  def memory_stats(self):
    return self._stats


def _call(*flags):
  return subprocess.run(
    [sys.executable, '-m', 'experiments.bench_gpu', *flags],
    env=os.environ | ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_on_a_cpu_in_small(tmp_path):
  rows = 2
  done = _call(
    '--platform=cpu',
    f'--parameters={rows * vote_parts.ROW + 5}',
    '--voters=3',
    '--repeats=2',
    '--context=8',
    '--seed=1',
    f'--json={tmp_path / "figures.json"}',
  )
  assert done.returncode == 0, done.stderr
  figures = json.loads((tmp_path / 'figures.json').read_text())
  assert done.stdout == bench_gpu.table(figures) + '\n'
  assert figures['seed'] == 1
  assert figures['versions']['device'] == 'cpu'
  # values, words, and masks by block
  words = 4 * rows * 1024
  mask = words // 128
  parts = figures['parts']
  assert {name: row['bytes'] for name, row in parts.items()} == {
    'pack': 34 * words,
    'pack_by_slices': 34 * words,
    'vote': 4 * (words + mask) + 8,
    'vote_decided': 4 * (words + mask) + 8,
    'unpack': 33 * words + mask,
  }
  for row in parts.values():
    assert row['share'] == pytest.approx(row['copy_seconds'] / row['seconds'])
    assert row['seconds'] > 0
  for name in ('update', 'step'):
    seconds = figures[name]['seconds']
    assert figures[name]['ratio'] == pytest.approx(
      seconds['distributed_lion'] / seconds['lion']
    )
  losses = figures['step']['losses']
  # On one worker they are the same method; bfloat16 has 8 bits.
  assert losses['distributed_lion'] == pytest.approx(losses['lion'], rel=1e-2)
  assert losses['lion'] < 6.2  # log 512 is 6.24: it has learned


def test_without_a_gpu_it_says_so():
  done = _call()
  assert done.returncode == 1
  assert 'JAX sees no gpu here, only cpu' in done.stderr
  assert '--platform=cpu' in done.stderr
  assert 'Traceback' not in done.stderr
  assert not done.stdout


def test_too_little_memory_is_told_before_anything_is_measured():
  device = _Device({'bytes_limit': 12 * GIGABYTE})
  with pytest.raises(errors.UserError, match='--parameters=750000000'):
    bench_gpu._require_memory(10**9, device)
  bench_gpu._require_memory(750_000_000, device)
  bench_gpu._require_memory(10**9, _Device(None))  # as on a CPU


def test_exhausted_memory_is_explained_and_nothing_else():
  with (
    pytest.raises(errors.UserError, match='A step does not fit.*--batch=4'),
    bench_gpu._enough_memory('A step', '--batch=4'),
  ):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')
  with (
    pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'),
    bench_gpu._enough_memory('A step', '--batch=4'),
  ):
    raise jax.errors.JaxRuntimeError('INTERNAL: other')
