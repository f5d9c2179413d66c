"""GPT-2: the sizes of Radford et al., 2019."""

from typing import Any

from experiments.models import decoder


def small(dtype: str = 'float32', **changes: Any) -> decoder.DecoderConfig:
  """Returns the smallest of the GPT-2 paper: 124,439,808 parameters."""
  return _config(12, 12, 768, dtype, changes)


def medium(dtype: str = 'float32', **changes: Any) -> decoder.DecoderConfig:
  """Returns the second of the GPT-2 paper: 354,823,168 parameters."""
  return _config(24, 16, 1024, dtype, changes)


def large(dtype: str = 'float32', **changes: Any) -> decoder.DecoderConfig:
  """Returns the third of the GPT-2 paper: 774,030,080 parameters."""
  return _config(36, 20, 1280, dtype, changes)


def _config(num_layers, num_heads, width, dtype, changes):
  fields = {
    'vocab_size': 50257,
    'context': 1024,
    'num_layers': num_layers,
    'num_heads': num_heads,
    'num_kv_heads': num_heads,
    'width': width,
    'mlp': 'gelu',
    'mlp_width': 4 * width,
    'norm': 'layer',
    'norm_epsilon': 1e-5,
    'positions': 'learned',
    'rope_theta': 10_000.0,
    'tie_embeddings': True,
    'dropout': 0.0,
    'use_bias': True,
    'dtype': dtype,
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  return decoder.DecoderConfig(**fields | changes)
