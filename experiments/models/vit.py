"""The Vision Transformer.

Dosovitskiy et al., An Image is Worth 16x16 Words, 2021 (arXiv 2010.11929).
Weights start with the standard deviation 0.02 (as in DeiT and timm). So does
the head, which the paper starts at zero: behind a head of zeros no other weight
has a gradient in the first step, and a method that sends signs would send the
signs of nothing.

Shapes: B batch, Y rows, X columns, C channels, L positions, D width.
"""

import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from experiments import errors
from experiments.models import blocks, stacks

decay_mask = stacks.decay_mask
stack = stacks.stack
unstack = stacks.unstack

_EPSILON = 1e-6  # of the layer norms, as in the authors' code
_LONGEST = 10_000  # wavelength of fixed positions, in patches
_POOLINGS = ('class_token', 'mean')
_POSITIONS = ('learned', 'sin_cos')


@dataclasses.dataclass(frozen=True)
class ViTConfig:
  """What makes a ViT.

  Attributes:
    image_size: rows and columns of an image.
    channels: of an image.
    classes: number of classes.
    patch_size: rows and columns of a patch; divides `image_size`.
    num_layers: number of blocks.
    num_heads: number of attention heads; divides `width`.
    width: of the residual stream.
    mlp_width: hidden width of the MLPs.
    pooling: what the head sees: 'class_token', a position that is learned, or
      'mean', the mean of all positions.
    positions: 'learned', or 'sin_cos': fixed, half of the width for rows and
      half for columns (zero for a class token).
    dropout: rate after embedding, attention and MLP.
    stochastic_depth: rate at which an example skips attention or MLP in the
      last block; it rises linearly from 0 in the first.
    dtype: of the computation, such as 'bfloat16'. Parameters are float32.
    attention: 'xla' or 'cudnn', which is flash attention, in 16 bits on a GPU.
    scan_layers: whether parameters of all blocks are stacked and scanned over.
    rematerialise: whether a block is computed anew for its gradient.
  """

  image_size: int
  channels: int
  classes: int
  patch_size: int
  num_layers: int
  num_heads: int
  width: int
  mlp_width: int
  pooling: str
  positions: str
  dropout: float
  stochastic_depth: float
  dtype: str
  attention: str
  scan_layers: bool
  rematerialise: bool

  def __post_init__(self):
    """Raises UserError for a model that cannot be."""
    blocks.require_positive(
      self, 'image_size', 'channels', 'classes', 'patch_size', 'num_layers'
    )
    if self.image_size % self.patch_size:
      raise errors.UserError(
        f'patch_size={self.patch_size} does not divide'
        f' image_size={self.image_size}.'
      )
    blocks.one_of('pooling', self.pooling, _POOLINGS)
    blocks.one_of('positions', self.positions, _POSITIONS)
    blocks.require_rate('stochastic_depth', self.stochastic_depth)
    if self.positions == 'sin_cos' and self.width % 4:
      raise errors.UserError(
        f"width={self.width} must be a multiple of 4 with positions='sin_cos':"
        ' sines and cosines, of rows and columns.'
      )
    self.block()

  def block(self) -> blocks.BlockConfig:
    """Returns the config of each block."""
    return blocks.BlockConfig(
      width=self.width,
      num_heads=self.num_heads,
      num_kv_heads=self.num_heads,
      mlp='gelu',
      mlp_width=self.mlp_width,
      norm='layer',
      norm_epsilon=_EPSILON,
      use_bias=True,
      residual_stddev=blocks.STDDEV,
      rope_theta=None,
      causal=False,
      dropout=self.dropout,
      dtype=self.dtype,
      attention=self.attention,
    )

  def depth_rates(self) -> np.ndarray | None:
    """Returns the rate of stochastic depth of each block; None without."""
    if not self.stochastic_depth:
      return None
    if self.num_layers == 1:
      return np.full(1, self.stochastic_depth, np.float32)
    return np.linspace(0, self.stochastic_depth, self.num_layers, dtype='f')


def cifar10(dtype: str = 'float32', **changes: Any) -> ViTConfig:
  """The Distributed Lion paper's: 6 layers, 8 heads, width 512.

  It does not state the rest. Patches of 4 give the 64 positions usual for
  CIFAR-10, the MLP has 4 times the width as in all models of the ViT paper.

  Args:
    dtype: of the computation.
    **changes: other values of fields.

  Returns:
    A config of 18,979,338 parameters.
  """
  return _config(32, 10, 4, 6, 8, 512, dtype, changes)


def small_16(dtype: str = 'float32', **changes: Any) -> ViTConfig:
  """Returns ViT-S/16 for ImageNet-1k: 22,050,664 parameters."""
  return _config(224, 1000, 16, 12, 6, 384, dtype, changes)


def base_16(dtype: str = 'float32', **changes: Any) -> ViTConfig:
  """Returns ViT-B/16 for ImageNet-1k: 86,567,656 parameters."""
  return _config(224, 1000, 16, 12, 12, 768, dtype, changes)


def init(config: ViTConfig, key: jax.Array) -> dict[str, Any]:
  """Returns new parameters: nested dicts of float32 arrays."""
  rngs = nnx.Rngs(key)
  return stacks.values(_Ends(config, rngs)) | {
    'blocks': stacks.init(
      config.block(), config.num_layers, rngs, config.scan_layers
    )
  }


def apply(
  config: ViTConfig,
  params: dict[str, Any],
  images_BxYxXxC: jax.Array,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Classifies images.

  Args:
    config: the one that `params` were made with.
    params: what `init` returned, or has become of it.
    images_BxYxXxC: floats, already normalised.
    dropout_key: switches dropout and stochastic depth on and draws the masks;
      None for evaluation.

  Returns:
    float32 logits `[B, classes]`.

  Raises:
    UserError: if the images are of another shape than the config says.
  """
  wanted = (config.image_size, config.image_size, config.channels)
  if images_BxYxXxC.shape[1:] != wanted:
    raise errors.UserError(
      f'Images have the shape {images_BxYxXxC.shape[1:]}, but the model takes'
      f' {wanted}: image_size, image_size, channels.'
    )
  key, keys = stacks.keys(dropout_key, config.num_layers)
  ends = stacks.ends(lambda: _Ends(config, nnx.Rngs(0)), params)
  x_BxLxD = stacks.run(
    config.block(),
    params['blocks'],
    ends.embed(images_BxYxXxC, key),
    (keys, config.depth_rates()),
    scan=config.scan_layers,
    rematerialise=config.rematerialise,
  )
  return ends.logits(x_BxLxD)


class _Ends(nnx.Module):
  """What is before and after the blocks."""

  def __init__(self, config: ViTConfig, rngs: nnx.Rngs):
    normal = nnx.initializers.normal(blocks.STDDEV)
    patch = config.patch_size**2 * config.channels
    positions = (config.image_size // config.patch_size) ** 2
    self.config = config
    self.patches = nnx.Linear(
      patch, config.width, kernel_init=normal, dtype=config.dtype, rngs=rngs
    )
    if config.pooling == 'class_token':
      positions += 1
      self.class_token = nnx.Param(jnp.zeros(config.width))
    if config.positions == 'learned':
      self.positions = nnx.Param(
        normal(rngs.params(), (positions, config.width))
      )
    self.dropout = nnx.Dropout(config.dropout)
    self.norm = blocks.norm(config.block(), rngs)
    self.head = nnx.Linear(
      config.width,
      config.classes,
      kernel_init=normal,
      dtype=config.dtype,
      preferred_element_type=jnp.float32,
      rngs=rngs,
    )

  def embed(self, images_BxYxXxC, key):
    config = self.config
    x_BxLxD = self.patches(_patches(images_BxYxXxC, config.patch_size))
    if config.pooling == 'class_token':
      token_D = self.class_token[...].astype(x_BxLxD.dtype)
      shape = (x_BxLxD.shape[0], 1, config.width)
      x_BxLxD = jnp.concatenate(
        [jnp.broadcast_to(token_D, shape), x_BxLxD], axis=1
      )
    if config.positions == 'learned':
      positions_LxD = self.positions[...]
    else:
      positions_LxD = _sin_cos(config)
    x_BxLxD += positions_LxD[None].astype(x_BxLxD.dtype)
    return blocks.drop(self.dropout, x_BxLxD, key)

  def logits(self, x_BxLxD):
    if self.config.pooling == 'class_token':
      return self.head(self.norm(x_BxLxD[:, 0]))
    return self.head(self.norm(x_BxLxD).mean(axis=1))


def _patches(images_BxYxXxC: jax.Array, size: int) -> jax.Array:
  """Cuts images up, row by row: the convolution is then a product.

  Under vmap over workers each of them has a kernel of its own: a batched
  product is then 1.6 times as fast on CPUs as a grouped convolution.
  """
  batch, rows, columns, channels = images_BxYxXxC.shape
  x = images_BxYxXxC.reshape(
    batch, rows // size, size, columns // size, size, channels
  )
  return x.swapaxes(2, 3).reshape(batch, -1, size * size * channels)


def _sin_cos(config: ViTConfig) -> np.ndarray:
  """Fixed positions `[L, D]`, of the class token, too, if there is one."""
  side, quarter = config.image_size // config.patch_size, config.width // 4
  rate = _LONGEST ** -(np.arange(quarter) / quarter)
  angle = np.arange(side)[:, None] * rate
  one_way = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
  table = np.concatenate(
    [np.repeat(one_way, side, axis=0), np.tile(one_way, (side, 1))], axis=-1
  )
  if config.pooling == 'class_token':
    table = np.concatenate([np.zeros_like(table[:1]), table])
  return table


def _config(
  image_size, classes, patch_size, num_layers, num_heads, width, dtype, changes
) -> ViTConfig:
  config = ViTConfig(
    image_size=image_size,
    channels=3,
    classes=classes,
    patch_size=patch_size,
    num_layers=num_layers,
    num_heads=num_heads,
    width=width,
    mlp_width=4 * width,
    pooling='class_token',
    positions='learned',
    dropout=0.0,
    stochastic_depth=0.0,
    dtype=dtype,
    attention='xla',
    scan_layers=False,
    rematerialise=False,
  )
  return dataclasses.replace(config, **changes)
