"""Which tensors of Hugging Face's files make which parameters.

GPT-2's kernels are `[in, out]`, as ours (its layers are called Conv1D), and its
queries, keys and values are one. LLaMA's are `[out, in]`, and what is one
kernel here is several there.
"""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.finetuning import architectures
from experiments.models import decoder

_PREFIXES = {'gpt2': 'transformer.', 'llama': 'model.'}
# In old files: causal masks and wavelengths.
_IGNORED = ('.attn.bias', '.attn.masked_bias', '.rotary_emb.inv_freq')
_HEAD = 'lm_head.weight'


class Rule(NamedTuple):
  """Where a parameter is in the files.

  Attributes:
    path: of the parameter, in the whole model or in a block.
    names: tensors that make it, one after the other along its last axis; in a
      block, `{}` is its index.
    shapes: of the tensors.
    transposed: whether each is transposed.
  """

  path: tuple[str, ...]
  names: Sequence[str]
  shapes: Sequence[tuple[int, ...]]
  transposed: bool = False


class Rules(NamedTuple):
  """Rules for what is around the blocks, and for every block."""

  ends: Sequence[Rule]
  block: Sequence[Rule]


def ignored(name: str) -> bool:
  """Returns whether a tensor of a file is no weight."""
  return name.endswith(_IGNORED)


def plain(name: str, config: decoder.DecoderConfig) -> str:
  """Returns the name of a tensor without the prefix that it may have."""
  return name.removeprefix(_PREFIXES[architectures.kind(config)])


def full(name: str, config: decoder.DecoderConfig) -> str:
  """Returns the name of a tensor with its prefix: all but the head have it."""
  return name if name == _HEAD else _PREFIXES[architectures.kind(config)] + name


def rules(config: decoder.DecoderConfig) -> Rules:
  """Returns the rules of a model, by names without a prefix."""
  make = _gpt2_rules if architectures.kind(config) == 'gpt2' else _llama_rules
  ends, block = make(config)
  if not config.tie_embeddings:
    head = (config.vocab_size, config.width)
    ends.append(Rule(('head', 'embedding'), [_HEAD], [head]))
  return Rules(ends, block)


def copy_of(name: str, config: decoder.DecoderConfig) -> str | None:
  """Returns the tensor that another one must equal: a head that is tied."""
  if name != _HEAD or not config.tie_embeddings:
    return None
  return rules(config).ends[0].names[0]


def _gpt2_rules(config):
  width, hidden = config.width, config.mlp_width

  def both(path, name, rows, columns=None):
    """A layer's kernel and bias, or a norm's scale and bias."""
    shape = (rows,) if columns is None else (rows, columns)
    first = 'scale' if columns is None else 'kernel'
    return [
      Rule((path, first), [f'{name}.weight'], [shape]),
      Rule((path, 'bias'), [f'{name}.bias'], [shape[-1:]]),
    ]

  ends = [
    Rule(('tokens', 'embedding'), ['wte.weight'], [(config.vocab_size, width)]),
    Rule(('positions', 'embedding'), ['wpe.weight'], [(config.context, width)]),
    *both('norm', 'ln_f', width),
  ]
  block = [
    *both('attention_norm', 'h.{}.ln_1', width),
    *both('qkv', 'h.{}.attn.c_attn', width, 3 * width),
    *both('attention_out', 'h.{}.attn.c_proj', width, width),
    *both('mlp_norm', 'h.{}.ln_2', width),
    *both('mlp_in', 'h.{}.mlp.c_fc', width, hidden),
    *both('mlp_out', 'h.{}.mlp.c_proj', hidden, width),
  ]
  return ends, block


def _llama_rules(config):
  width, hidden = config.width, config.mlp_width
  few = width // config.num_heads * config.num_kv_heads
  layer = 'layers.{}.'

  def kernel(path, group, rows, outputs):
    names = [f'{layer}{group}.{name}_proj.weight' for name in outputs]
    shapes = [(columns, rows) for columns in outputs.values()]
    return Rule((path, 'kernel'), names, shapes, transposed=True)

  def scale(path, name):
    return Rule((path, 'scale'), [f'{name}.weight'], [(width,)])

  ends = [
    Rule(
      ('tokens', 'embedding'),
      ['embed_tokens.weight'],
      [(config.vocab_size, width)],
    ),
    scale('norm', 'norm'),
  ]
  block = [
    scale('attention_norm', f'{layer}input_layernorm'),
    kernel('qkv', 'self_attn', width, {'q': width, 'k': few, 'v': few}),
    kernel('attention_out', 'self_attn', width, {'o': width}),
    scale('mlp_norm', f'{layer}post_attention_layernorm'),
    kernel('mlp_in', 'mlp', width, {'gate': hidden, 'up': hidden}),
    kernel('mlp_out', 'mlp', hidden, {'down': width}),
  ]
  return ends, block
