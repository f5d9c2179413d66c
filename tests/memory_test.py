"""Memory: what a program needs, what there is, and a refusal in time."""

import jax
import jax.numpy as jnp
import pytest

from experiments import errors, loop, memory, traffic
from tests import tiny


def test_peak_of_a_known_program():
  """4 MB that come, 4 MB between a product and its use, 4 MB that go."""

  def twice(x):
    return (x @ x) @ x

  x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
  peak = memory.peak_bytes(jax.jit(twice).lower(x).compile())
  assert 12e6 <= peak < 13e6


def test_memory_that_is_reused_counts_once():
  def double(x):
    return 2 * x

  x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
  assert memory.peak_bytes(jax.jit(double).lower(x).compile()) == 8e6
  reused = jax.jit(double, donate_argnums=0).lower(x).compile()
  assert memory.peak_bytes(reused) == 4e6


def test_this_machine(tmp_path, monkeypatch):
  there = memory.available_bytes()
  assert 2**28 < there < 2**50
  limit = tmp_path / 'memory.max'
  monkeypatch.setattr(memory, '_CGROUP', limit)
  limit.write_text('80000000')
  assert memory.available_bytes() == 80_000_000  # whatever JAX makes of it
  assert memory.available_bytes(devices=8) == 10_000_000
  limit.write_text('max')
  assert memory.available_bytes() > 80_000_000


def test_a_run_that_does_not_fit_is_refused_before_it_begins(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(traffic, 'bits_per_parameter', lambda *_: 4.0)
  monkeypatch.setattr(memory, 'available_bytes', lambda _: 1000)
  monkeypatch.setattr(loop.assembly.Assembly, 'state', None)
  with pytest.raises(errors.UserError, match='MiB on each.*micro_batches'):
    loop.train(tiny.load(), tmp_path)
