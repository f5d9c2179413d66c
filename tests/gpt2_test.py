"""The sizes of GPT-2 against the published ones."""

import math

import jax
import jax.numpy as jnp
import pytest

from experiments.models import decoder, gpt2


@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize(
  'size, published',
  [
    (gpt2.small, 124_439_808),
    (gpt2.medium, 354_823_168),
    (gpt2.large, 774_030_080),
  ],
)
def test_parameter_counts(size, published, scan_layers):
  config = size('bfloat16', scan_layers=scan_layers)
  assert config.dtype == 'bfloat16'
  params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
  leaves = jax.tree.leaves(params)
  assert sum(math.prod(leaf.shape) for leaf in leaves) == published
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
  # Heads of 64, as in all of them.
  assert config.width == 64 * config.num_heads
