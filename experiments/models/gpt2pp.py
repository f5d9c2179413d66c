"""GPT2++: GPT-2 with a gated MLP and RMSNorm, as in LLaMA.

The models of the Distributed Lion paper (arXiv 2404.00438), which states no
more about them than this and two sizes. These are the names of two models in
GPT-3's table (Brown et al., 2020), so layers, heads and width are taken from
there; vocabulary, context and tied embeddings from GPT-2; and from LLaMA that
nothing has a bias and that the MLP has 8 / 3 of the width (a multiple of 128):
its three matrices then have the parameters of GPT-2's two.

    size   layers  heads  width    parameters   without learned positions
    350m       24     16   1024   360,843,264                 359,794,688
    760m       24     16   1536   758,320,128                 756,747,264
"""

from typing import Any

from experiments import errors
from experiments.models import decoder

_WIDTHS = {'350m': 1024, '760m': 1536}


def size(
  name: str, dtype: str = 'float32', **changes: Any
) -> decoder.DecoderConfig:
  """Returns the model of a name.

  Args:
    name: '350m' or '760m'.
    dtype: of the computation.
    **changes: other values of fields, such as `positions='rotary'`.

  Raises:
    UserError: if there is no such size.
  """
  width = errors.lookup(_WIDTHS, name, 'size of GPT2++')
  fields = {
    'vocab_size': 50257,
    'context': 1024,
    'num_layers': 24,
    'num_heads': 16,
    'num_kv_heads': 16,
    'width': width,
    'mlp': 'swiglu',
    'mlp_width': -(-8 * width // (3 * 128)) * 128,
    'norm': 'rms',
    'norm_epsilon': 1e-5,
    'positions': 'learned',
    'rope_theta': 10_000.0,
    'tie_embeddings': True,
    'dropout': 0.0,
    'use_bias': False,
    'dtype': dtype,
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  return decoder.DecoderConfig(**fields | changes)
