"""A decoder: GPT-2, GPT2++ and LLaMA, by the fields of its config.

GPT-2 is Radford et al., Language Models are Unsupervised Multitask Learners,
2019. The initialisation follows the paper and its released code, except that
positions have the standard deviation 0.02 of all other weights (as in nanoGPT
and Hugging Face; the released code has 0.01): the projections into the residual
stream start smaller by 1 / sqrt(2 * num_layers), as there are two per layer.
LLaMA is Touvron et al., 2023 (arXiv 2302.13971); grouped queries came with its
second version. `gpt2`, `gpt2pp` and `llama` have the sizes.

Shapes: B batch, L positions, D width, V vocabulary.
"""

import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from experiments import errors
from experiments.models import blocks, stacks

decay_mask = stacks.decay_mask
stack = stacks.stack
unstack = stacks.unstack

_POSITIONS = ('learned', 'rotary')


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """What makes a decoder.

  Attributes:
    vocab_size: number of token ids.
    context: longest sequence.
    num_layers: number of blocks.
    num_heads: number of attention heads; divides `width`.
    num_kv_heads: number of heads of keys and values; divides `num_heads`, which
      it is equal to unless queries share them in groups.
    width: of the residual stream.
    mlp: 'gelu' or 'swiglu', which has a gate and is larger by half.
    mlp_width: hidden width of the MLPs.
    norm: 'layer' or 'rms'.
    norm_epsilon: added to the variance.
    positions: 'learned' or 'rotary'.
    rope_theta: sets the longest wavelength of rotary positions.
    tie_embeddings: whether the head is the embedding of the tokens.
    dropout: rate after embeddings, attention and MLP.
    use_bias: whether linear layers and layer norms have biases.
    dtype: of the computation, such as 'bfloat16'. Parameters are float32.
    attention: 'xla' or 'cudnn', which is flash attention, in 16 bits on a GPU.
    scan_layers: whether parameters of all blocks are stacked and scanned over:
      less to compile.
    rematerialise: whether a block is computed anew for its gradient: less
      memory, a third more work.
  """

  vocab_size: int
  context: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  width: int
  mlp: str
  mlp_width: int
  norm: str
  norm_epsilon: float
  positions: str
  rope_theta: float
  tie_embeddings: bool
  dropout: float
  use_bias: bool
  dtype: str
  attention: str
  scan_layers: bool
  rematerialise: bool

  def __post_init__(self):
    """Raises UserError for a model that cannot be."""
    blocks.require_positive(
      self, 'vocab_size', 'context', 'num_layers', 'rope_theta'
    )
    blocks.one_of('positions', self.positions, _POSITIONS)
    self.block()

  def block(self) -> blocks.BlockConfig:
    """Returns the config of each block."""
    return blocks.BlockConfig(
      width=self.width,
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      mlp=self.mlp,
      mlp_width=self.mlp_width,
      norm=self.norm,
      norm_epsilon=self.norm_epsilon,
      use_bias=self.use_bias,
      residual_stddev=blocks.STDDEV / (2 * self.num_layers) ** 0.5,
      rope_theta=self.rope_theta if self.positions == 'rotary' else None,
      causal=True,
      dropout=self.dropout,
      dtype=self.dtype,
      attention=self.attention,
    )


def init(config: DecoderConfig, key: jax.Array) -> dict[str, Any]:
  """Returns new parameters: nested dicts of float32 arrays."""
  rngs = nnx.Rngs(key)
  return stacks.values(_Ends(config, rngs)) | {
    'blocks': stacks.init(
      config.block(), config.num_layers, rngs, config.scan_layers
    )
  }


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

  Raises:
    UserError: if the sequences are longer than the context.
  """
  length = tokens_BxL.shape[-1]
  if length > config.context:
    raise errors.UserError(
      f'{length} tokens are more than the context {config.context}.'
    )
  key, keys = stacks.keys(dropout_key, config.num_layers)
  ends = stacks.ends(lambda: _Ends(config, nnx.Rngs(0)), params)
  x_BxLxD = stacks.run(
    config.block(),
    params['blocks'],
    ends.embed(tokens_BxL, key),
    (keys, None),
    scan=config.scan_layers,
    rematerialise=config.rematerialise,
  )
  return ends.logits(x_BxLxD)


def nats(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, `[B, L]`."""
  target_BxL = jnp.take_along_axis(
    logits_BxLxV, targets_BxL[..., None], axis=-1
  )[..., 0]
  return jax.nn.logsumexp(logits_BxLxV, axis=-1) - target_BxL


class _Ends(nnx.Module):
  """What is before and after the blocks."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    embed = functools.partial(
      nnx.Embed,
      features=config.width,
      dtype=config.dtype,
      embedding_init=nnx.initializers.normal(blocks.STDDEV),
      rngs=rngs,
    )
    self.tokens = embed(config.vocab_size)
    if config.positions == 'learned':
      self.positions = embed(config.context)
    if not config.tie_embeddings:
      self.head = embed(config.vocab_size)
    self.dropout = nnx.Dropout(config.dropout)
    # Ones and zeros: it needs none of the random numbers.
    self.norm = blocks.norm(config.block(), nnx.Rngs(0))

  def embed(self, tokens_BxL, key):
    x_BxLxD = self.tokens(tokens_BxL)
    if hasattr(self, 'positions'):
      x_BxLxD += self.positions(jnp.arange(tokens_BxL.shape[-1])[None])
    return blocks.drop(self.dropout, x_BxLxD, key)

  def logits(self, x_BxLxD):
    x_BxLxD = self.norm(x_BxLxD)
    head_VxD = getattr(self, 'head', self.tokens).embedding[...]
    # Logits in float32 whatever is computed in.
    return jnp.einsum(
      'bld,vd->blv',
      x_BxLxD,
      head_VxD.astype(x_BxLxD.dtype),
      preferred_element_type=jnp.float32,
    )
