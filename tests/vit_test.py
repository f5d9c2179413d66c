"""The Vision Transformer against a NumPy transcription, and its properties."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import errors
from experiments.models import stacks, vit

SMALL = vit.ViTConfig(
  image_size=6,
  channels=2,
  classes=5,
  patch_size=2,
  num_layers=2,
  num_heads=2,
  width=8,
  mlp_width=12,
  pooling='class_token',
  positions='learned',
  dropout=0.0,
  stochastic_depth=0.0,
  dtype='float32',
  attention='xla',
  scan_layers=False,
  rematerialise=False,
)

# Many programs, each of which runs once or twice.
pytestmark = pytest.mark.usefixtures('quick_compilation')

_apply = jax.jit(vit.apply, static_argnums=0)


@pytest.fixture(scope='module')
def images():
  return jax.random.normal(jax.random.key(2), (3, 6, 6, 2))


@functools.cache
def _params(config=SMALL):
  """Parameters with nothing at zero or one, so that each of them counts."""
  noise = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: np.asarray(leaf + 0.3 * noise.normal(size=leaf.shape), 'f'),
    vit.init(config, jax.random.key(0)),  # not compiled: faster for so few
  )


def _norm(x, p):
  x = x - x.mean(-1, keepdims=True)
  x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * p['scale'] + p['bias']


def _linear(x, p):
  return x @ p['kernel'] + p['bias']


def _gelu(x):
  return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attention(x, p, heads):
  q, k, v = np.split(_linear(x, p['qkv']), 3, axis=-1)
  outputs = []
  for head in np.split(np.arange(x.shape[-1]), heads):
    e = np.exp(q[:, head] @ k[:, head].T / math.sqrt(len(head)))
    outputs.append(e / e.sum(-1, keepdims=True) @ v[:, head])
  return _linear(np.concatenate(outputs, axis=-1), p['attention_out'])


def _sin_cos(side, width):
  def one_way(position):
    angles = [
      position / 10_000 ** (i / (width // 4)) for i in range(width // 4)
    ]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]

  return np.array(
    [one_way(y) + one_way(x) for y in range(side) for x in range(side)]
  )


def _reference(config, params, images):
  """One image after the other, in float64."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  side = config.image_size // config.patch_size
  token = config.pooling == 'class_token'

  def image(pixels):
    size = config.patch_size
    x = [
      _linear(pixels[y : y + size, x : x + size].reshape(-1), params['patches'])
      for y in range(0, config.image_size, size)
      for x in range(0, config.image_size, size)
    ]
    if config.positions == 'sin_cos':
      x += _sin_cos(side, config.width)
    x = np.array([params['class_token'], *x] if token else x)
    if config.positions == 'learned':
      x += params['positions']
    for i in range(config.num_layers):
      p = params['blocks'][f'block_{i}']
      x = x + _attention(_norm(x, p['attention_norm']), p, config.num_heads)
      hidden = _gelu(_linear(_norm(x, p['mlp_norm']), p['mlp_in']))
      x = x + _linear(hidden, p['mlp_out'])
    x = _norm(x, params['norm'])
    return _linear(x[0] if token else x.mean(0), params['head'])

  return np.stack([image(pixels) for pixels in np.asarray(images, np.float64)])


@pytest.mark.parametrize('positions', ['learned', 'sin_cos'])
@pytest.mark.parametrize('pooling', ['class_token', 'mean'])
def test_equals_numpy(images, pooling, positions):
  config = dataclasses.replace(SMALL, pooling=pooling, positions=positions)
  params = _params(config)
  logits = _apply(config, params, images)
  assert logits.dtype == jnp.float32
  expected = _reference(config, params, images)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'config, published',
  [
    (vit.small_16(), 22_050_664),
    (vit.base_16(scan_layers=True), 86_567_656),
    (vit.cifar10(), 18_979_338),  # not published; what its docstring says
  ],
)
def test_parameter_counts(config, published):
  params = jax.eval_shape(lambda: vit.init(config, jax.random.key(0)))
  leaves = jax.tree.leaves(params)
  assert sum(math.prod(leaf.shape) for leaf in leaves) == published
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_cifar10_is_the_one_of_the_paper():
  config = vit.cifar10('bfloat16', channels=1)
  assert (config.num_layers, config.num_heads, config.width) == (6, 8, 512)
  assert (config.dtype, config.channels, config.classes) == ('bfloat16', 1, 10)


def test_initialisation():
  params = vit.init(vit.cifar10(num_layers=2, width=64), jax.random.key(0))
  block = params['blocks']['block_1']
  for leaf in [
    params['patches']['kernel'],
    params['positions'],
    params['head']['kernel'],
    block['qkv']['kernel'],
    block['attention_out']['kernel'],
    block['mlp_out']['kernel'],
  ]:
    # The deviation of an estimate from n samples is about stddev / sqrt(2 n).
    bound = 5 * 0.02 / math.sqrt(2 * leaf.size)
    assert abs(float(jnp.std(leaf)) - 0.02) < bound
  assert not params['class_token'].any()
  assert not params['head']['bias'].any()


def test_every_weight_has_a_gradient_in_the_first_step(images):
  params = vit.init(SMALL, jax.random.key(0))

  def loss(params):
    return -jax.nn.log_softmax(_apply(SMALL, params, images))[:, 0].mean()

  value, gradients = jax.value_and_grad(loss)(params)
  np.testing.assert_allclose(value, math.log(5), atol=0.1)
  keys = slice(8, 16)  # a bias of all keys shifts scores and changes nothing
  for path, gradient in jax.tree.leaves_with_path(gradients):
    if 'qkv' in jax.tree_util.keystr(path) and gradient.ndim == 1:
      gradient = jnp.delete(gradient, keys)
    assert gradient.any(), path


def test_mean_pooling_without_positions_ignores_the_order_of_patches(images):
  config = dataclasses.replace(SMALL, pooling='mean')
  params = _params(config)
  # The same patches, another order: rows of patches upside down.
  turned = images.reshape(3, 3, 2, 6, 2)[:, ::-1].reshape(images.shape)
  ordered = _apply(config, params, images)
  assert not np.allclose(_apply(config, params, turned), ordered, atol=1e-3)
  params = params | {'positions': jnp.zeros((9, 8))}
  np.testing.assert_allclose(
    _apply(config, params, turned),
    _apply(config, params, images),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('field', ['dropout', 'stochastic_depth'])
def test_noise_needs_a_key(images, field, scan_layers):
  quiet = dataclasses.replace(SMALL, scan_layers=scan_layers)
  noisy = dataclasses.replace(quiet, **{field: 0.5})
  params = vit.stack(_params()) if scan_layers else _params()
  plain = _apply(quiet, params, images)
  np.testing.assert_array_equal(_apply(noisy, params, images), plain)
  keys = jax.random.split(jax.random.key(3), 2)
  first, again, other = (
    _apply(noisy, params, images, keys[i]) for i in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)
  assert not np.allclose(first, plain)


@pytest.mark.parametrize('scan', [False, True])
@pytest.mark.parametrize('field', ['dropout', 'stochastic_depth'])
def test_noise_is_unbiased(field, scan):
  """Two blocks that add 1 (attention) and 10 (MLP) to the residual stream."""
  rate, many = 0.25, 2000
  config = dataclasses.replace(SMALL, **{field: rate})
  params = jax.tree.map(jnp.zeros_like, _params()['blocks'])
  for block in params.values():
    block['attention_out']['bias'] = jnp.ones(8)
    block['mlp_out']['bias'] = jnp.full(8, 10.0)
  if scan:
    params = vit.stack({'blocks': params})['blocks']
  keys = stacks.keys(jax.random.key(4), 2)[1]
  added = stacks.run(
    config.block(),
    params,
    jnp.zeros((many, 3, 8)),
    (keys, config.depth_rates()),
    scan=scan,
    rematerialise=False,
  )
  scale = 1 / (1 - rate)
  if field == 'stochastic_depth':
    assert config.depth_rates().tolist() == [0, rate]
    # An example as a whole, and only in the second block.
    assert (added == added[:, :1, :1]).all()
    last = added[:, 0, 0] - 11
    found = jnp.unique(last)
    expected = [0, scale, 10 * scale, 11 * scale]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    noisy_blocks, samples = 1, many
  else:
    assert len(jnp.unique(added)) == 9  # 0, 1 or 2 times each of the amounts
    noisy_blocks, samples = 2, added.size
  variance = noisy_blocks * (1**2 + 10**2) * rate * scale
  assert abs(added.mean() - 22) < 5 * math.sqrt(variance / samples)


def test_bfloat16_computes_in_it_and_keeps_float32(images):
  config = dataclasses.replace(SMALL, dtype='bfloat16')
  params = _params()
  logits = _apply(config, params, images)
  assert logits.dtype == jnp.float32
  exact = _apply(SMALL, params, images)
  error = jnp.abs(logits - exact).max() / jnp.abs(exact).max()
  assert 1e-4 < error < 3e-2
  leaves = jax.tree.leaves(vit.init(config, jax.random.key(0)))
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize('scan_layers', [False, True])
def test_scanned_and_rematerialised_layers_give_the_same(images, scan_layers):
  @functools.partial(jax.jit, static_argnums=0)
  def gradients(config, params):
    def loss(params):
      params = vit.stack(params) if config.scan_layers else params
      logits = vit.apply(config, params, images)
      return -jax.nn.log_softmax(logits)[:, 0].mean()

    return jax.value_and_grad(loss)(params)

  config = dataclasses.replace(
    SMALL, scan_layers=scan_layers, rematerialise=True
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    gradients(config, _params()),
    gradients(SMALL, _params()),
  )


def test_vmap_over_workers(images):
  params = [_params(), jax.tree.map(lambda leaf: 0.9 * leaf, _params())]
  both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
  together = jax.vmap(_apply, in_axes=(None, 0, None))(SMALL, both, images)
  for found, each in zip(together, params, strict=True):
    expected = _apply(SMALL, each, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_decay_mask(scan_layers):
  config = dataclasses.replace(SMALL, scan_layers=scan_layers)
  params = jax.eval_shape(lambda: vit.init(config, jax.random.key(0)))
  mask = vit.decay_mask(params)
  assert jax.tree.structure(mask) == jax.tree.structure(params)
  names = {True: set(), False: set()}
  for path, leaf in jax.tree.leaves_with_path(mask):
    names[leaf].add(path[-1].key)
  assert names[True] == {'kernel'}
  assert names[False] == {'bias', 'scale', 'class_token', 'positions'}


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'patch_size': 0}, 'patch_size=0 must be above 0'),
    ({'patch_size': 4}, 'patch_size=4 does not divide image_size=6'),
    ({'num_heads': 3}, 'num_heads=3 does not divide width=8'),
    ({'dropout': 1.0}, r'dropout=1.0 must be in \[0, 1\)'),
    ({'stochastic_depth': -0.1}, r'stochastic_depth=-0.1 must be in \[0, 1\)'),
    ({'pooling': 'max'}, 'Allowed: class_token, mean'),
    ({'positions': 'rotary'}, 'Allowed: learned, sin_cos'),
    ({'attention': 'flash'}, 'Allowed: cudnn, xla'),
    ({'attention': 'cudnn'}, 'in 16 bits, not in'),
    ({'positions': 'sin_cos', 'width': 6}, 'width=6 must be a multiple of 4'),
  ],
)
def test_user_errors(changes, message):
  with pytest.raises(errors.UserError, match=message):
    dataclasses.replace(SMALL, **changes)


def test_errors_of_inputs(images):
  with pytest.raises(errors.UserError, match=r'\(6, 6, 1\).*\(6, 6, 2\)'):
    _apply(SMALL, _params(), images[..., :1])
  scanned = dataclasses.replace(SMALL, scan_layers=True)
  with pytest.raises(errors.UserError, match='scan_layers=True does not fit'):
    _apply(scanned, _params(), images)
