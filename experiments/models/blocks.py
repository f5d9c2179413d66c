"""A block of a transformer, which `decoder` and `vit` are made of.

Shapes: B batch, L positions, D width, H heads, G heads of keys and values,
K width of a head, F hidden width of the MLP.
"""

from collections.abc import Iterable
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from experiments import errors

STDDEV = 0.02

_NORMS = {'layer': nnx.LayerNorm, 'rms': nnx.RMSNorm}
_MLPS = ('gelu', 'swiglu')
_DTYPES = ('bfloat16', 'float16', 'float32')
_ATTENTIONS = ('xla', 'cudnn')
_CUDNN_DTYPES = ('bfloat16', 'float16')


@dataclasses.dataclass(frozen=True)
class BlockConfig:
  """What makes a block.

  Attributes:
    width: of the residual stream.
    num_heads: of queries; divides `width`.
    num_kv_heads: of keys and values; divides `num_heads`.
    mlp: 'gelu' (in its approximation by tanh) or 'swiglu'.
    mlp_width: hidden width of the MLP.
    norm: 'layer' or 'rms'.
    norm_epsilon: added to the variance.
    use_bias: whether linear layers and layer norms have biases.
    residual_stddev: of the initial projections into the residual stream.
    rope_theta: longest wavelength of rotary positions; None: no rotation.
    causal: whether a position sees only those before it.
    dropout: rate after attention and MLP.
    dtype: of the computation. Parameters are float32.
    attention: 'xla' or 'cudnn', which is flash attention, in 16 bits on a GPU.
  """

  width: int
  num_heads: int
  num_kv_heads: int
  mlp: str
  mlp_width: int
  norm: str
  norm_epsilon: float
  use_bias: bool
  residual_stddev: float
  rope_theta: float | None
  causal: bool
  dropout: float
  dtype: str
  attention: str

  def __post_init__(self):
    """Raises UserError for a block that cannot be."""
    require_positive(
      self, 'width', 'num_heads', 'num_kv_heads', 'mlp_width', 'norm_epsilon'
    )
    for whole, part in [('width', 'num_heads'), ('num_heads', 'num_kv_heads')]:
      number, of = getattr(self, part), getattr(self, whole)
      if of % number:
        raise errors.UserError(f'{part}={number} does not divide {whole}={of}.')
    size = self.width // self.num_heads
    if self.rope_theta is not None and size % 2:
      raise errors.UserError(
        f'Rotary positions turn pairs: width / num_heads={size} must be even.'
      )
    require_rate('dropout', self.dropout)
    one_of('norm', self.norm, _NORMS)
    one_of('mlp', self.mlp, _MLPS)
    one_of('dtype', self.dtype, _DTYPES)
    one_of('attention', self.attention, _ATTENTIONS)
    if self.attention == 'cudnn':
      if self.dtype not in _CUDNN_DTYPES:
        raise errors.UserError(
          "attention='cudnn' computes in 16 bits, not in"
          f' dtype={self.dtype!r}. Allowed: {", ".join(_CUDNN_DTYPES)}.'
        )
      if size % 8:
        raise errors.UserError(
          f"attention='cudnn' needs width / num_heads={size} to be a multiple"
          ' of 8.'
        )


def one_of(field: str, value: str, allowed: Iterable[str]) -> None:
  """Raises UserError unless `value` is among those allowed for a field."""
  if value not in allowed:
    raise errors.unknown(field, value, allowed)


def require_positive(config: Any, *fields: str) -> None:
  """Raises UserError unless all these fields of a config are above 0."""
  for field in fields:
    value = getattr(config, field)
    if value <= 0:
      raise errors.UserError(f'{field}={value} must be above 0.')


def require_rate(field: str, value: float) -> None:
  """Raises UserError unless `value` can be the rate of a dropout."""
  if not 0 <= value < 1:
    raise errors.UserError(f'{field}={value} must be in [0, 1).')


def norm(config: BlockConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the norm of a config."""
  bias = {'use_bias': config.use_bias} if config.norm == 'layer' else {}
  return _NORMS[config.norm](
    config.width,
    epsilon=config.norm_epsilon,
    dtype=config.dtype,
    rngs=rngs,
    **bias,
  )


def drop(
  dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None
) -> jax.Array:
  """Applies dropout if there is a key."""
  return dropout(x, deterministic=key is None, rngs=key)


class Block(nnx.Module):
  """Attention, then an MLP, each added to the residual stream."""

  def __init__(self, config: BlockConfig, rngs: nnx.Rngs):
    linear = functools.partial(
      nnx.Linear, use_bias=config.use_bias, dtype=config.dtype, rngs=rngs
    )
    plain = nnx.initializers.normal(STDDEV)
    residual = nnx.initializers.normal(config.residual_stddev)
    width, hidden = config.width, config.mlp_width
    heads = config.num_heads + 2 * config.num_kv_heads
    self.config = config
    self.attention_norm = norm(config, rngs)
    # One product for queries, keys and values.
    self.qkv = linear(
      width, width // config.num_heads * heads, kernel_init=plain
    )
    self.attention_out = linear(width, width, kernel_init=residual)
    self.mlp_norm = norm(config, rngs)
    # One product for the gate and what it lets through, in this order.
    factors = 2 if config.mlp == 'swiglu' else 1
    self.mlp_in = linear(width, factors * hidden, kernel_init=plain)
    self.mlp_out = linear(hidden, width, kernel_init=residual)
    self.dropout = nnx.Dropout(config.dropout)

  def __call__(
    self,
    x_BxLxD: jax.Array,
    key: jax.Array | None,
    depth_rate: jax.Array | None,
  ) -> jax.Array:
    """Sends the residual stream through.

    Args:
      x_BxLxD: what goes in.
      key: switches dropout and stochastic depth on; None for evaluation.
      depth_rate: of stochastic depth; None without it.

    Returns:
      What comes out, of the same shape.
    """
    keys = (None, None) if key is None else jax.random.split(key, 2)
    for part, key in zip((self._attend, self._transform), keys, strict=True):
      y_BxLxD = drop(self.dropout, part(x_BxLxD), key)
      if key is not None and depth_rate is not None:
        y_BxLxD = _drop_path(y_BxLxD, key, depth_rate)
      x_BxLxD += y_BxLxD
    return x_BxLxD

  def _attend(self, x_BxLxD):
    *batch, length, width = x_BxLxD.shape
    config = self.config
    if config.attention == 'cudnn' and jax.default_backend() != 'gpu':
      raise errors.UserError(
        "attention='cudnn' needs a GPU, and here is none; attention='xla' runs"
        ' everywhere.'
      )
    qkv = self.qkv(self.attention_norm(x_BxLxD))
    qkv = qkv.reshape(*batch, length, -1, width // config.num_heads)
    q_BxLxHxK, k_BxLxGxK, v_BxLxGxK = jnp.split(
      qkv, [config.num_heads, config.num_heads + config.num_kv_heads], axis=-2
    )
    if config.rope_theta is not None:
      q_BxLxHxK = rotate(q_BxLxHxK, config.rope_theta)
      k_BxLxGxK = rotate(k_BxLxGxK, config.rope_theta)
    y_BxLxHxK = jax.nn.dot_product_attention(
      q_BxLxHxK,
      k_BxLxGxK,
      v_BxLxGxK,
      is_causal=config.causal,
      implementation=config.attention,
    )
    return self.attention_out(y_BxLxHxK.reshape(*batch, length, width))

  def _transform(self, x_BxLxD):
    y = self.mlp_in(self.mlp_norm(x_BxLxD))
    if self.config.mlp == 'swiglu':
      gate_BxLxF, value_BxLxF = jnp.split(y, 2, axis=-1)
      y = jax.nn.silu(gate_BxLxF) * value_BxLxF
    else:
      y = jax.nn.gelu(y, approximate=True)
    return self.mlp_out(y)


def rotate(x_BxLxHxK: jax.Array, theta: float) -> jax.Array:
  """Turns features by their rotary positions.

  Args:
    x_BxLxHxK: queries or keys.
    theta: position i turns the pair (k, k + K / 2) by i * theta^(-2 k / K), the
      pairs being those of Hugging Face's models.

  Returns:
    The same, turned; computed in float32 in any case.
  """
  length, width = x_BxLxHxK.shape[-3], x_BxLxHxK.shape[-1]
  rate_K = theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
  # In float32: bfloat16 does not know the position 257 from 256.
  angle_LxK = jnp.outer(jnp.arange(length, dtype=jnp.float32), rate_K)
  angle_1xLx1xK = angle_LxK[None, :, None]
  cos, sin = jnp.cos(angle_1xLx1xK), jnp.sin(angle_1xLx1xK)
  a, b = jnp.split(x_BxLxHxK.astype(jnp.float32), 2, axis=-1)
  turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return turned.astype(x_BxLxHxK.dtype)


def _drop_path(y_BxLxD: jax.Array, key: jax.Array, rate: jax.Array):
  """Stochastic depth: an example skips the whole branch or does not."""
  # The key itself has been used, for dropout.
  key = jax.random.fold_in(key, 1)
  kept = jax.random.bernoulli(key, 1 - rate, (*y_BxLxD.shape[:-2], 1, 1))
  return jnp.where(kept, y_BxLxD / jnp.asarray(1 - rate, y_BxLxD.dtype), 0)
