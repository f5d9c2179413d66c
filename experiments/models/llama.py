"""LLaMA: RMSNorm, gated MLP, rotary positions, a head of its own, no biases.

Touvron et al., LLaMA, 2023 (arXiv 2302.13971). LLaMA 2 of this size differs in
`context=4096, norm_epsilon=1e-5`.
"""

from typing import Any

from experiments import errors
from experiments.models import decoder

_SIZES = {
  '7b': {
    'vocab_size': 32_000,
    'context': 2048,
    'num_layers': 32,
    'num_heads': 32,
    'num_kv_heads': 32,
    'width': 4096,
    'mlp_width': 11_008,
  },
  # For tests: everything in which the architecture differs from GPT-2, with
  # keys and values that pairs of heads share, as in the larger ones of LLaMA 2.
  'tiny': {
    'vocab_size': 256,
    'context': 32,
    'num_layers': 2,
    'num_heads': 4,
    'num_kv_heads': 2,
    'width': 32,
    'mlp_width': 88,
  },
}


def size(
  name: str, dtype: str = 'float32', **changes: Any
) -> decoder.DecoderConfig:
  """Returns the model of a name.

  Args:
    name: '7b', with 6,738,415,616 parameters, or 'tiny', for tests.
    dtype: of the computation.
    **changes: other values of fields.

  Raises:
    UserError: if there is no such size.
  """
  fields = errors.lookup(_SIZES, name, 'size of LLaMA') | {
    'mlp': 'swiglu',
    'norm': 'rms',
    'norm_epsilon': 1e-6,
    'positions': 'rotary',
    'rope_theta': 10_000.0,
    'tie_embeddings': False,
    'dropout': 0.0,
    'use_bias': False,
    'dtype': dtype,
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  return decoder.DecoderConfig(**fields | changes)
