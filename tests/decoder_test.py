"""The decoder against a NumPy transcription, and its known properties."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import errors
from experiments.models import blocks, decoder
import signmomentum as sm

GPT2 = decoder.DecoderConfig(
  vocab_size=17,
  context=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=2,
  width=8,
  mlp='gelu',
  mlp_width=32,
  norm='layer',
  norm_epsilon=1e-5,
  positions='learned',
  rope_theta=10_000.0,
  tie_embeddings=True,
  dropout=0.0,
  use_bias=True,
  dtype='float32',
  attention='xla',
  scan_layers=False,
  rematerialise=False,
)
LLAMA = dataclasses.replace(
  GPT2,
  num_heads=4,
  num_kv_heads=2,
  width=16,
  mlp='swiglu',
  mlp_width=20,
  norm='rms',
  norm_epsilon=1e-2,  # so large that it shows
  positions='rotary',
  rope_theta=100.0,
  tie_embeddings=False,
  use_bias=False,
)
# Many programs, each of which runs once or twice.
pytestmark = pytest.mark.usefixtures('quick_compilation')

CONFIGS = {'gpt2': GPT2, 'llama': LLAMA}

_apply = jax.jit(decoder.apply, static_argnums=0)


@functools.cache
def _params(config):
  """Parameters with nothing at zero or one, so that each of them counts."""
  noise = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: jnp.array(leaf + 0.3 * noise.normal(size=leaf.shape), 'f'),
    decoder.init(config, jax.random.key(0)),
  )


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def config(request):
  return request.param


@pytest.fixture
def params(config):
  return _params(config)


@pytest.fixture(scope='module')
def tokens():
  return jax.random.randint(jax.random.key(2), (3, 8), 0, 17)


def _reference(config, params, tokens):
  """One sequence after the other, in float64."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

  def norm(x, p):
    if config.norm == 'layer':
      x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon)
    return x * p['scale'] + p.get('bias', 0)

  def linear(x, p):
    return x @ p['kernel'] + p.get('bias', 0)

  def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

  def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

  def rotate(x):
    """Features i and i + K / 2 are the plane that a position turns."""
    half = x.shape[-1] // 2
    for i in range(half):
      turns = np.exp(1j * np.arange(len(x)) * config.rope_theta ** (-i / half))
      plane = turns * (x[:, i] + 1j * x[:, i + half])
      x[:, i], x[:, i + half] = plane.real, plane.imag
    return x

  def attention(x, p):
    size = config.width // config.num_heads
    shared = config.num_kv_heads * size
    q, k, v = np.split(
      linear(x, p['qkv']), [config.width, config.width + shared], axis=-1
    )
    outputs = []
    for head in range(config.num_heads):
      group = head // (config.num_heads // config.num_kv_heads)
      one, other = (np.arange(size) + size * i for i in (head, group))
      q_head, k_head = q[:, one], k[:, other]
      if config.positions == 'rotary':
        q_head, k_head = rotate(q_head), rotate(k_head)
      scores = q_head @ k_head.T / math.sqrt(size)
      scores[np.triu_indices(len(x), 1)] = -np.inf
      outputs.append(softmax(scores) @ v[:, other])
    return linear(np.concatenate(outputs, axis=-1), p['attention_out'])

  def mlp(x, p):
    hidden = linear(x, p['mlp_in'])
    if config.mlp == 'gelu':
      return linear(gelu(hidden), p['mlp_out'])
    gate, value = np.split(hidden, 2, axis=-1)
    return linear(gate / (1 + np.exp(-gate)) * value, p['mlp_out'])

  def sequence(ids):
    x = params['tokens']['embedding'][ids]
    if config.positions == 'learned':
      x = x + params['positions']['embedding'][: len(ids)]
    for i in range(config.num_layers):
      p = params['blocks'][f'block_{i}']
      x = x + attention(norm(x, p['attention_norm']), p)
      x = x + mlp(norm(x, p['mlp_norm']), p)
    head = params['tokens' if config.tie_embeddings else 'head']['embedding']
    return norm(x, params['norm']) @ head.T

  return np.stack([sequence(ids) for ids in np.asarray(tokens)])


def test_equals_numpy(config, params, tokens):
  logits = _apply(config, params, tokens)
  assert logits.dtype == jnp.float32
  expected = _reference(config, params, tokens)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_rotary_positions_depend_on_distances_alone():
  q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
  q, k = (
    blocks.rotate(jnp.tile(x, (1, 2048, 1, 1)), 10_000.0)[0, :, 0]
    for x in (q, k)
  )
  scores = q @ k.T
  for distance in (0, 1, 700):
    diagonal = jnp.diagonal(scores, -distance)
    np.testing.assert_allclose(diagonal, diagonal[0], atol=5e-3)
  assert abs(scores[1, 0] - scores[0, 0]) > 0.1


def test_rotary_positions_are_exact_far_out_in_bfloat16():
  turned = blocks.rotate(jnp.ones((1, 2048, 1, 2), jnp.bfloat16), 10_000.0)
  assert turned.dtype == jnp.bfloat16
  last = 2047
  expected = [
    math.cos(last) - math.sin(last),
    math.cos(last) + math.sin(last),
  ]
  found = turned[0, -1, 0].astype(jnp.float32)
  np.testing.assert_allclose(found, expected, atol=1e-2)


def test_parameters_are_nested_dicts_of_arrays(config):
  def check(tree):
    if isinstance(tree, jax.Array):
      return
    assert type(tree) is dict
    for name, subtree in tree.items():
      assert type(name) is str
      check(subtree)

  check(decoder.init(config, jax.random.key(0)))


def test_initialisation():
  config = dataclasses.replace(GPT2, width=128, vocab_size=500, context=64)
  params = decoder.init(config, jax.random.key(0))
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
  other = decoder.init(config, jax.random.key(1))
  assert not np.array_equal(
    other['blocks']['block_1']['qkv']['kernel'], block['qkv']['kernel']
  )


def test_gpt2_starts_from_the_parameters_of_committed_results():
  params = decoder.init(GPT2, jax.random.key(0))
  last = params['blocks']['block_1']
  for leaf, value in [
    (params['tokens']['embedding'], 0.013804646),
    (params['positions']['embedding'], 0.018671155),
    (last['qkv']['kernel'], -0.012671151),
    (last['attention_out']['kernel'], 0.0058140554),
    (last['mlp_in']['kernel'], -0.030770931),
    (last['mlp_out']['kernel'], 0.014535999),
  ]:
    np.testing.assert_allclose(leaf[-1, -1], value, rtol=1e-5)


def test_loss_at_the_start_is_uniform(config, tokens):
  logits = _apply(config, decoder.init(config, jax.random.key(0)), tokens)
  # Not the tokens themselves: a tied head favours its own input.
  nats = decoder.nats(logits, (tokens + 1) % 17)
  assert nats.shape == tokens.shape
  # A logit has the deviation 0.02 * sqrt(width) = 0.06, or 0.08.
  np.testing.assert_allclose(nats.mean(), math.log(17), atol=0.06)


def test_causality(config, params, tokens):
  changed = tokens.at[:, 5].set((tokens[:, 5] + 1) % 17)
  before = _apply(config, params, tokens)
  after = _apply(config, params, changed)
  np.testing.assert_array_equal(before[:, :5], after[:, :5])
  assert (before[:, 5:] != after[:, 5:]).any(axis=(1, 2)).all()


def test_shorter_sequences_are_prefixes(config, params, tokens):
  whole = _apply(config, params, tokens)
  part = _apply(config, params, tokens[:, :3])
  np.testing.assert_allclose(part, whole[:, :3], rtol=1e-4, atol=1e-5)


def test_dropout_needs_a_key(tokens):
  noisy = dataclasses.replace(GPT2, dropout=0.5)
  params = _params(GPT2)
  plain = _apply(GPT2, params, tokens)
  np.testing.assert_array_equal(_apply(noisy, params, tokens), plain)
  keys = jax.random.split(jax.random.key(3), 2)
  first = _apply(noisy, params, tokens, keys[0])
  again = _apply(noisy, params, tokens, keys[0])
  other = _apply(noisy, params, tokens, keys[1])
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)
  assert not np.allclose(first, plain)


def test_bfloat16_computes_in_it_and_keeps_float32(config, params, tokens):
  half = dataclasses.replace(config, dtype='bfloat16')
  logits = _apply(half, params, tokens)
  assert logits.dtype == jnp.float32
  # Logits are accumulated in float32, not rounded to 8 bits at the end.
  assert (logits != logits.astype(jnp.bfloat16)).any()
  exact = _apply(config, params, tokens)
  error = jnp.abs(logits - exact).max() / jnp.abs(exact).max()
  assert 1e-4 < error < 3e-2
  leaves = jax.tree.leaves(decoder.init(half, jax.random.key(0)))
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


@functools.partial(jax.jit, static_argnums=0)
def _gradients(config, params, tokens, key=None):
  """The loss and its gradients, in the layout of the parameters given."""

  def loss(params):
    if config.scan_layers:
      params = decoder.stack(params)
    logits = decoder.apply(config, params, tokens, key)
    return decoder.nats(logits, tokens).mean()

  return jax.value_and_grad(loss)(params)


def _assert_close(found, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5),
    found,
    expected,
  )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_gradients(config, params, tokens, dtype):
  value, gradients = _gradients(
    dataclasses.replace(config, dtype=dtype), params, tokens
  )
  expected = decoder.nats(
    jnp.array(_reference(config, params, tokens)), tokens
  ).mean()
  tolerance = {'float32': 1e-5, 'bfloat16': 3e-2}[dtype]
  np.testing.assert_allclose(value, expected, rtol=tolerance)
  for gradient in jax.tree.leaves(gradients):
    assert gradient.dtype == jnp.float32
    assert jnp.isfinite(gradient).all()
    assert gradient.any()


@pytest.mark.parametrize(
  'scan_layers, rematerialise', [(True, False), (False, True), (True, True)]
)
def test_scanned_and_rematerialised_layers_give_the_same(
  tokens, scan_layers, rematerialise
):
  config = dataclasses.replace(GPT2, dropout=0.2)
  params = _params(GPT2)
  other = dataclasses.replace(
    config, scan_layers=scan_layers, rematerialise=rematerialise
  )
  key = jax.random.key(5)
  _assert_close(
    _gradients(other, params, tokens, key),
    _gradients(config, params, tokens, key),
  )


def test_rematerialised_layers_are_computed_twice(tokens):
  def products(config):
    text = _gradients.lower(config, _params(GPT2), tokens).as_text()
    return text.count('stablehlo.dot_general')

  rematerialised = dataclasses.replace(GPT2, rematerialise=True)
  assert products(rematerialised) >= products(GPT2) + 2 * 4


def test_layouts():
  # More than ten, whose names do not sort by their numbers.
  deep = dataclasses.replace(LLAMA, num_layers=11)
  plain = decoder.init(deep, jax.random.key(0))
  stacked = decoder.init(
    dataclasses.replace(deep, scan_layers=True), jax.random.key(0)
  )
  assert set(stacked['blocks']) == set(plain['blocks']['block_0'])
  kernel = stacked['blocks']['qkv']['kernel']
  assert kernel.shape[0] == 11
  np.testing.assert_array_equal(
    kernel[10], plain['blocks']['block_10']['qkv']['kernel']
  )
  for found, expected in [
    (decoder.stack(plain), stacked),
    (decoder.unstack(stacked), plain),
  ]:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_vmap_over_parameters(config, params, tokens):
  other = jax.tree.map(lambda leaf: 0.9 * leaf, params)
  both = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other)
  scanned = dataclasses.replace(config, scan_layers=True)
  _, gradients = jax.vmap(_gradients, in_axes=(None, 0, None))(
    scanned, both, tokens
  )
  for i, each in enumerate((params, other)):
    _assert_close(
      jax.tree.map(lambda leaf, i=i: leaf[i], gradients),
      _gradients(config, each, tokens)[1],
    )


@pytest.mark.parametrize('scan_layers', [False, True])
def test_workers_of_a_mesh(tokens, scan_layers):
  """A checked shard_map: each worker has gradients of its own."""
  config = dataclasses.replace(
    LLAMA, scan_layers=scan_layers, rematerialise=True, dropout=0.2
  )
  keys = jax.random.split(jax.random.key(5), 2)
  sequences = jnp.stack([tokens, tokens[::-1]])
  axis = jax.sharding.PartitionSpec('workers')

  @jax.jit
  @jax.shard_map(
    mesh=jax.make_mesh(
      (2,), ('workers',), axis_types=(jax.sharding.AxisType.Auto,)
    ),
    in_specs=(jax.sharding.PartitionSpec(), axis, axis),
    out_specs=axis,
  )
  def workers(params, tokens, key):
    gradients = _gradients(config, sm.as_local(params), tokens[0], key[0])
    return jax.tree.map(lambda leaf: leaf[None], gradients)

  found = workers(_params(LLAMA), sequences, keys)
  for i in range(2):
    _assert_close(
      jax.tree.map(lambda leaf, i=i: leaf[i], found),
      _gradients(config, _params(LLAMA), sequences[i], keys[i]),
    )


def test_without_biases(tokens):
  config = dataclasses.replace(GPT2, use_bias=False)
  params = decoder.init(config, jax.random.key(0))
  paths = jax.tree.leaves_with_path(params)
  assert not any('bias' in jax.tree_util.keystr(path) for path, _ in paths)
  assert jnp.isfinite(_apply(config, params, tokens)).all()


@pytest.mark.parametrize('scan_layers', [False, True])
def test_decay_mask(config, scan_layers):
  stacked = dataclasses.replace(config, scan_layers=scan_layers)
  params = jax.eval_shape(lambda: decoder.init(stacked, jax.random.key(0)))
  mask = decoder.decay_mask(params)
  assert jax.tree.structure(mask) == jax.tree.structure(params)
  names = {True: set(), False: set()}
  for path, leaf in jax.tree.leaves_with_path(mask):
    names[leaf].add(path[-1].key)
  assert names[True] == {'kernel', 'embedding'}
  assert names[False] == {'bias', 'scale'} if config.use_bias else {'scale'}


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_heads': 3}, 'num_heads=3 does not divide width=8'),
    ({'num_kv_heads': 4}, 'num_kv_heads=4 does not divide num_heads=2'),
    ({'num_kv_heads': 0}, 'num_kv_heads=0 must be above 0'),
    ({'num_layers': 0}, 'num_layers=0 must be above 0'),
    ({'dtype': 'float8'}, 'Allowed: bfloat16, float16, float32'),
    ({'norm': 'batch'}, 'Allowed: layer, rms'),
    ({'mlp': 'relu'}, 'Allowed: gelu, swiglu'),
    ({'positions': 'sin_cos'}, 'Allowed: learned, rotary'),
    ({'attention': 'flash'}, 'Allowed: cudnn, xla'),
    ({'attention': 'cudnn'}, "dtype='float32'. Allowed: bfloat16, float16"),
    (
      {'attention': 'cudnn', 'dtype': 'bfloat16'},
      'num_heads=4 to be a multiple of 8',
    ),
    ({'dropout': 1.0}, r'dropout=1.0 must be in \[0, 1\)'),
    (
      {'positions': 'rotary', 'num_heads': 8, 'num_kv_heads': 8},
      'num_heads=1 must be even',
    ),
  ],
)
def test_user_errors(changes, message):
  with pytest.raises(errors.UserError, match=message):
    dataclasses.replace(GPT2, **changes)


def test_errors_of_inputs():
  with pytest.raises(errors.UserError, match='9 tokens are more than'):
    decoder.apply(GPT2, _params(GPT2), jnp.zeros((1, 9), int))
  one = jnp.zeros((1, 1), int)
  flash = dataclasses.replace(
    GPT2, attention='cudnn', dtype='bfloat16', num_heads=1, num_kv_heads=1
  )
  with pytest.raises(errors.UserError, match="'cudnn' needs a GPU"):
    decoder.apply(flash, _params(GPT2), one)
  for scan_layers in (False, True):
    config = dataclasses.replace(GPT2, scan_layers=scan_layers)
    params = _params(GPT2) if scan_layers else decoder.stack(_params(GPT2))
    with pytest.raises(errors.UserError, match=f'={scan_layers} does not fit'):
      decoder.apply(config, params, one)
