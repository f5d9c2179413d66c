"""The sizes of LLaMA against the published one."""

import math

import jax
import jax.numpy as jnp
import pytest

from experiments import errors
from experiments.models import decoder, llama


@pytest.mark.parametrize('scan_layers', [False, True])
def test_parameter_count(scan_layers):
  config = llama.size('7b', 'bfloat16', scan_layers=scan_layers)
  params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
  leaves = jax.tree.leaves(params)
  assert sum(math.prod(leaf.shape) for leaf in leaves) == 6_738_415_616
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_llama_2_has_the_same_weights():
  changed = llama.size('7b', context=4096, norm_epsilon=1e-5)
  one, other = (
    jax.eval_shape(lambda c=config: decoder.init(c, jax.random.key(0)))
    for config in (llama.size('7b'), changed)
  )
  assert one == other


def test_tiny_has_what_the_architecture_is_known_for():
  config = llama.size('tiny')
  assert config.num_kv_heads < config.num_heads
  params = decoder.init(config, jax.random.key(0))
  assert set(params) == {'tokens', 'blocks', 'norm', 'head'}
  leaves = {path[-1].key for path, _ in jax.tree.leaves_with_path(params)}
  assert leaves == {'kernel', 'embedding', 'scale'}
  logits = decoder.apply(config, params, jnp.arange(6)[None])
  assert logits.shape == (1, 6, 256)
  assert jnp.isfinite(logits).all()


def test_user_errors():
  with pytest.raises(errors.UserError, match='Allowed: 7b, tiny'):
    llama.size('8b')
