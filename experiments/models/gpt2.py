"""GPT-2: the sizes of Radford et al., 2019."""

from experiments.models import decoder


def small(dtype: str = 'float32') -> decoder.DecoderConfig:
  """The smallest of the GPT-2 paper: 124 million parameters."""
  return decoder.DecoderConfig(
    vocab_size=50257,
    context=1024,
    num_layers=12,
    num_heads=12,
    width=768,
    dropout=0.0,
    use_bias=True,
    dtype=dtype,
  )
