"""The sizes of GPT2++ against their names and GPT-3's table."""

import math

import jax
import pytest

from experiments import errors
from experiments.models import decoder, gpt2pp


def _count(config):
  params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
  'name, learned, rotary',
  [
    ('350m', 360_843_264, 359_794_688),
    ('760m', 758_320_128, 756_747_264),
  ],
)
def test_parameter_counts(name, learned, rotary):
  config = gpt2pp.size(name, scan_layers=True)
  assert _count(config) == learned
  assert _count(gpt2pp.size(name, positions='rotary')) == rotary
  assert str(learned) in gpt2pp.__doc__.replace(',', '')
  assert str(rotary) in gpt2pp.__doc__.replace(',', '')
  assert learned == pytest.approx(float(name[:-1]) * 1e6, rel=0.05)


def test_architecture():
  """What the paper says of it, and what follows from that."""
  config = gpt2pp.size('350m', 'bfloat16')
  assert (config.mlp, config.norm, config.dtype) == (
    'swiglu',
    'rms',
    'bfloat16',
  )
  # A multiple of 128, the least that is not below 8 / 3 of the width.
  assert config.mlp_width == 2816 > 8 / 3 * config.width
  assert gpt2pp.size('760m').mlp_width == 4096 == 8 / 3 * 1536
  params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
  paths = [
    jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)
  ]
  assert not any('bias' in path for path in paths)


def test_user_errors():
  with pytest.raises(errors.UserError, match='Allowed: 350m, 760m'):
    gpt2pp.size('770m')
