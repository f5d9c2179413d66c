"""GPT-2 against a NumPy transcription, and the properties it is known for."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import errors
from experiments.models import decoder

SMALL = decoder.DecoderConfig(
  vocab_size=17,
  context=8,
  num_layers=2,
  num_heads=2,
  width=8,
  dropout=0.0,
  use_bias=True,
  dtype='float32',
)

_init = jax.jit(decoder.init, static_argnums=0)
_apply = jax.jit(decoder.apply, static_argnums=0)


@pytest.fixture(scope='module')
def params():
  """Parameters with nothing at zero or one, so that each of them counts."""
  leaves, tree = jax.tree.flatten(_init(SMALL, jax.random.key(0)))
  keys = jax.random.split(jax.random.key(1), len(leaves))
  return tree.unflatten(
    [
      leaf + 0.3 * jax.random.normal(key, leaf.shape)
      for leaf, key in zip(leaves, keys, strict=True)
    ]
  )


@pytest.fixture(scope='module')
def tokens():
  return jax.random.randint(jax.random.key(2), (3, 8), 0, 17)


def _reference(params, tokens, heads):
  """One sequence after the other, in float64."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

  def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return (
      x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p['scale']
      + (p['bias'])
    )

  def linear(x, p):
    return x @ p['kernel'] + p['bias']

  def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

  def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

  def attention(x, p):
    q, k, v = np.split(linear(x, p['qkv']), 3, axis=-1)
    outputs = []
    for head in np.split(np.arange(x.shape[-1]), heads):
      scores = q[:, head] @ k[:, head].T / math.sqrt(len(head))
      scores[np.triu_indices(len(x), 1)] = -np.inf
      outputs.append(softmax(scores) @ v[:, head])
    return linear(np.concatenate(outputs, axis=-1), p['attention_out'])

  def sequence(ids):
    x = params['tokens']['embedding'][ids]
    x = x + params['positions']['embedding'][: len(ids)]
    for i in range(len(params['blocks'])):
      p = params['blocks'][f'block_{i}']
      x = x + attention(norm(x, p['attention_norm']), p)
      hidden = gelu(linear(norm(x, p['mlp_norm']), p['mlp_in']))
      x = x + linear(hidden, p['mlp_out'])
    return norm(x, params['norm']) @ params['tokens']['embedding'].T

  return np.stack([sequence(ids) for ids in np.asarray(tokens)])


def test_equals_numpy(params, tokens):
  logits = _apply(SMALL, params, tokens)
  assert logits.dtype == jnp.float32
  expected = _reference(params, tokens, heads=2)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_parameter_count_of_gpt2_small():
  small = decoder.DecoderConfig(50257, 1024, 12, 12, 768, 0.1, True, 'bfloat16')
  params = jax.eval_shape(lambda: _init(small, jax.random.key(0)))
  leaves = jax.tree.leaves(params)
  assert sum(math.prod(leaf.shape) for leaf in leaves) == 124_439_808
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_parameters_are_nested_dicts_of_arrays():
  def check(tree):
    if isinstance(tree, jax.Array):
      return
    assert type(tree) is dict
    for name, subtree in tree.items():
      assert type(name) is str
      check(subtree)

  check(_init(SMALL, jax.random.key(0)))


def test_initialisation():
  config = dataclasses.replace(SMALL, width=128, vocab_size=500, context=64)
  params = _init(config, jax.random.key(0))
  block = params['blocks']['block_1']
  # Two residual additions in each of two layers.
  residual = 0.02 / math.sqrt(4)
  for leaf, stddev in [
    (params['tokens']['embedding'], 0.02),
    (params['positions']['embedding'], 0.02),
    (block['qkv']['kernel'], 0.02),
    (block['mlp_in']['kernel'], 0.02),
    (block['attention_out']['kernel'], residual),
    (block['mlp_out']['kernel'], residual),
  ]:
    # The deviation of an estimate from n samples is about stddev / sqrt(2 n).
    bound = 5 * stddev / math.sqrt(2 * leaf.size)
    assert abs(float(jnp.std(leaf)) - stddev) < bound
  assert not block['qkv']['bias'].any()
  other = _init(config, jax.random.key(1))
  assert not np.array_equal(
    other['blocks']['block_1']['qkv']['kernel'], block['qkv']['kernel']
  )


def test_loss_at_the_start_is_uniform(tokens):
  logits = _apply(SMALL, _init(SMALL, jax.random.key(0)), tokens)
  # Not the tokens themselves: a tied head favours its own input.
  nats = decoder.nats(logits, (tokens + 1) % 17)
  assert nats.shape == tokens.shape
  # A logit has the deviation 0.02 * sqrt(width) = 0.06.
  np.testing.assert_allclose(nats.mean(), math.log(17), atol=0.06)


def test_causality(params, tokens):
  changed = tokens.at[:, 5].set((tokens[:, 5] + 1) % 17)
  before = _apply(SMALL, params, tokens)
  after = _apply(SMALL, params, changed)
  np.testing.assert_array_equal(before[:, :5], after[:, :5])
  assert (before[:, 5:] != after[:, 5:]).any(axis=(1, 2)).all()


def test_shorter_sequences_are_prefixes(params, tokens):
  whole = _apply(SMALL, params, tokens)
  part = _apply(SMALL, params, tokens[:, :3])
  np.testing.assert_allclose(part, whole[:, :3], rtol=1e-5, atol=1e-5)


def test_dropout_needs_a_key(params, tokens):
  config = dataclasses.replace(SMALL, dropout=0.5)
  plain = _apply(SMALL, params, tokens)
  np.testing.assert_array_equal(_apply(config, params, tokens), plain)
  keys = jax.random.split(jax.random.key(3), 2)
  first = _apply(config, params, tokens, keys[0])
  again = _apply(config, params, tokens, keys[0])
  other = _apply(config, params, tokens, keys[1])
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)
  assert not np.allclose(first, plain)


def test_bfloat16_computes_in_it_and_keeps_float32(params, tokens):
  config = dataclasses.replace(SMALL, dtype='bfloat16')
  logits = _apply(config, params, tokens)
  assert logits.dtype == jnp.float32
  # Logits are accumulated in float32, not rounded to 8 bits at the end.
  assert (logits != logits.astype(jnp.bfloat16)).any()
  exact = _apply(SMALL, params, tokens)
  error = jnp.abs(logits - exact).max() / jnp.abs(exact).max()
  assert 1e-4 < error < 3e-2
  assert _init(config, jax.random.key(0))['norm']['scale'].dtype == jnp.float32


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_gradients(params, tokens, dtype):
  config = dataclasses.replace(SMALL, dtype=dtype)

  @jax.jit
  def loss(params):
    return decoder.nats(_apply(config, params, tokens), tokens).mean()

  value, gradients = jax.value_and_grad(loss)(params)
  expected = decoder.nats(
    jnp.array(_reference(params, tokens, 2)), tokens
  ).mean()
  tolerance = {'float32': 1e-5, 'bfloat16': 3e-2}[dtype]
  np.testing.assert_allclose(value, expected, rtol=tolerance)
  for gradient in jax.tree.leaves(gradients):
    assert gradient.dtype == jnp.float32
    assert jnp.isfinite(gradient).all()
    assert gradient.any()


def test_vmap_over_parameters(params, tokens):
  other = jax.tree.map(lambda leaf: 0.9 * leaf, params)
  both = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other)
  together = jax.vmap(_apply, in_axes=(None, 0, None))(SMALL, both, tokens)
  for found, each in zip(together, (params, other), strict=True):
    expected = _apply(SMALL, each, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_without_biases(tokens):
  config = dataclasses.replace(SMALL, use_bias=False)
  params = _init(config, jax.random.key(0))
  paths = jax.tree.leaves_with_path(params)
  assert not any('bias' in jax.tree_util.keystr(path) for path, _ in paths)
  assert jnp.isfinite(_apply(config, params, tokens)).all()


def test_decay_mask(params):
  mask = decoder.decay_mask(params)
  assert jax.tree.structure(mask) == jax.tree.structure(params)
  decayed = {
    path[-1].key for path, leaf in jax.tree.leaves_with_path(mask) if leaf
  }
  assert decayed == {'kernel', 'embedding'}
  spared = {
    path[-1].key for path, leaf in jax.tree.leaves_with_path(mask) if not leaf
  }
  assert spared == {'bias', 'scale'}


def test_user_errors(params):
  with pytest.raises(errors.UserError, match='num_heads=3 does not divide'):
    dataclasses.replace(SMALL, num_heads=3)
  with pytest.raises(errors.UserError, match='9 tokens are more than'):
    _apply(SMALL, params, jnp.zeros((1, 9), int))
