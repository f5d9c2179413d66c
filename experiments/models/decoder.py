"""A decoder: GPT-2, pre-norm decoder with learned positions and a tied head.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019. The
initialisation follows the paper and its released code, except that positions
have the standard deviation 0.02 of all other weights (as in nanoGPT and
Hugging Face; the released code has 0.01): the projections into the residual
stream start smaller by 1 / sqrt(2 * num_layers), as there are two per layer.

Shapes: B batch, L positions, D width, H heads, K width of a head, F hidden
width of the MLP, V vocabulary.
"""

import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from experiments import errors

_STDDEV = 0.02
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """What makes a GPT-2.

  Attributes:
    vocab_size: number of token ids.
    context: longest sequence.
    num_layers: number of blocks.
    num_heads: number of attention heads; divides `width`.
    width: of the residual stream.
    dropout: rate after embeddings, attention and MLP.
    use_bias: whether linear layers and layer norms have biases.
    dtype: of the computation, such as 'bfloat16'. Parameters are float32.
  """

  vocab_size: int
  context: int
  num_layers: int
  num_heads: int
  width: int
  dropout: float
  use_bias: bool
  dtype: str

  def __post_init__(self):
    """Raises UserError if the heads do not share the width evenly."""
    if self.width % self.num_heads:
      raise errors.UserError(
        f'num_heads={self.num_heads} does not divide width={self.width}.'
      )


def init(config: DecoderConfig, key: jax.Array) -> dict[str, Any]:
  """Returns new parameters: nested dicts of float32 arrays."""
  return nnx.to_pure_dict(nnx.state(_Decoder(config, nnx.Rngs(key)), nnx.Param))


def apply(
  config: DecoderConfig,
  params: dict[str, Any],
  tokens_BxL: jax.Array,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Predicts the next token at every position.

  Args:
    config: the one that `params` were made with.
    params: what `init` returned, or has become of it.
    tokens_BxL: ids; L is at most `config.context`.
    dropout_key: switches dropout on and draws the masks; None for evaluation.

  Returns:
    float32 logits `[B, L, V]`.
  """
  graph, state = _structure(config)
  nnx.replace_by_pure_dict(state, params)
  return nnx.merge(graph, state)(tokens_BxL, dropout_key)


def nats(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, `[B, L]`."""
  target_BxL = jnp.take_along_axis(
    logits_BxLxV, targets_BxL[..., None], axis=-1
  )[..., 0]
  return jax.nn.logsumexp(logits_BxLxV, axis=-1) - target_BxL


def decay_mask(params: dict[str, Any]) -> dict[str, Any]:
  """Returns True for what weight decay is meant for: matrices, embeddings."""
  return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


def _structure(config: DecoderConfig) -> tuple[nnx.GraphDef, nnx.State]:
  """Returns the model without numbers: a graph and a state to fill in."""
  model = nnx.eval_shape(lambda: _Decoder(config, nnx.Rngs(0)))
  return nnx.split(model)


class _Decoder(nnx.Module):
  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    embed = functools.partial(
      nnx.Embed,
      features=config.width,
      dtype=config.dtype,
      embedding_init=nnx.initializers.normal(_STDDEV),
      rngs=rngs,
    )
    self.config = config
    self.tokens = embed(config.vocab_size)
    self.positions = embed(config.context)
    self.dropout = nnx.Dropout(config.dropout)
    self.blocks = nnx.Dict(
      {_block_name(i): _Block(config, rngs) for i in range(config.num_layers)}
    )
    self.norm = _norm(config, rngs)

  def __call__(self, tokens_BxL, key):
    length = tokens_BxL.shape[-1]
    if length > self.config.context:
      raise errors.UserError(
        f'{length} tokens are more than the context {self.config.context}.'
      )
    keys = _keys(key, self.config.num_layers + 1)
    x_BxLxD = self.tokens(tokens_BxL) + self.positions(jnp.arange(length)[None])
    x_BxLxD = _drop(self.dropout, x_BxLxD, keys[-1])
    for i in range(self.config.num_layers):
      x_BxLxD = self.blocks[_block_name(i)](x_BxLxD, keys[i])
    x_BxLxD = self.norm(x_BxLxD)
    # The head is the embedding; logits in float32 whatever is computed in.
    return jnp.einsum(
      'bld,vd->blv',
      x_BxLxD,
      self.tokens.embedding[...].astype(x_BxLxD.dtype),
      preferred_element_type=jnp.float32,
    )


class _Block(nnx.Module):
  """Attention, then an MLP, each added to the residual stream."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    linear = functools.partial(
      nnx.Linear, use_bias=config.use_bias, dtype=config.dtype, rngs=rngs
    )
    plain = nnx.initializers.normal(_STDDEV)
    residual = nnx.initializers.normal(_STDDEV / (2 * config.num_layers) ** 0.5)
    width = config.width
    self.num_heads = config.num_heads
    self.attention_norm = _norm(config, rngs)
    # One product for queries, keys and values.
    self.qkv = linear(width, 3 * width, kernel_init=plain)
    self.attention_out = linear(width, width, kernel_init=residual)
    self.mlp_norm = _norm(config, rngs)
    self.mlp_in = linear(width, 4 * width, kernel_init=plain)
    self.mlp_out = linear(4 * width, width, kernel_init=residual)
    self.dropout = nnx.Dropout(config.dropout)

  def __call__(self, x_BxLxD, key):
    attention_key, mlp_key = _keys(key, 2)
    y_BxLxD = self._attend(self.attention_norm(x_BxLxD))
    x_BxLxD += _drop(self.dropout, y_BxLxD, attention_key)
    y_BxLxF = jax.nn.gelu(self.mlp_in(self.mlp_norm(x_BxLxD)), approximate=True)
    return x_BxLxD + _drop(self.dropout, self.mlp_out(y_BxLxF), mlp_key)

  def _attend(self, x_BxLxD):
    *batch, length, width = x_BxLxD.shape
    qkv = self.qkv(x_BxLxD).reshape(*batch, length, 3, self.num_heads, -1)
    q_BxLxHxK, k_BxLxHxK, v_BxLxHxK = jnp.moveaxis(qkv, -3, 0)
    y_BxLxHxK = jax.nn.dot_product_attention(
      q_BxLxHxK, k_BxLxHxK, v_BxLxHxK, is_causal=True
    )
    return self.attention_out(y_BxLxHxK.reshape(*batch, length, width))


def _norm(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  return nnx.LayerNorm(
    config.width,
    epsilon=_EPSILON,
    use_bias=config.use_bias,
    dtype=config.dtype,
    rngs=rngs,
  )


def _block_name(index: int) -> str:
  return f'block_{index}'


def _keys(key: jax.Array | None, count: int) -> Any:
  return [None] * count if key is None else jax.random.split(key, count)


def _drop(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None):
  return dropout(x, deterministic=key is None, rngs=key)
