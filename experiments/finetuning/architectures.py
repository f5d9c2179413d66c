"""The models GPT-2 and LLaMA as the config.json of Hugging Face has them."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from experiments import errors
from experiments.models import decoder

CONFIG = 'config.json'

# What `config.json` does not say, but whoever trains.
FREE = ('dropout', 'dtype', 'attention', 'scan_layers', 'rematerialise')

# By which an architecture is known.
_KINDS = {
  'gpt2': {
    'mlp': 'gelu',
    'norm': 'layer',
    'positions': 'learned',
    'use_bias': True,
  },
  'llama': {
    'mlp': 'swiglu',
    'norm': 'rms',
    'positions': 'rotary',
    'use_bias': False,
  },
}
# Fields of `config.json` with what they are by default, and may be.
_REQUIRED = {
  'gpt2': {
    'activation_function': ('gelu_new', 'gelu_pytorch_tanh'),
    'scale_attn_weights': (True,),
    'scale_attn_by_inverse_layer_idx': (False,),
    'add_cross_attention': (False,),
  },
  'llama': {
    'hidden_act': ('silu', 'swish'),
    'attention_bias': (False,),
    'mlp_bias': (False,),
  },
}


def kind(config: decoder.DecoderConfig) -> str:
  """Returns 'gpt2' or 'llama'.

  Raises:
    UserError: for a decoder that is neither.
  """
  grouped = config.num_kv_heads != config.num_heads
  for name, fields in _KINDS.items():
    same = all(getattr(config, key) == value for key, value in fields.items())
    if same and not (name == 'gpt2' and grouped):
      return name
  names = (*_KINDS['gpt2'], 'num_heads', 'num_kv_heads')
  own = {key: getattr(config, key) for key in names}
  raise errors.UserError(
    f'No architecture of Hugging Face has {own}. Known: {_KINDS}.'
  )


def decoder_config(
  folder: str | os.PathLike, **changes: Any
) -> decoder.DecoderConfig:
  """Returns the model that the config.json of a folder describes.

  Args:
    folder: where it is.
    **changes: other values of fields. Without any there is no dropout, and it
      computes in float32.

  Raises:
    UserError: if there is none, or a model that `decoder` is not.
  """
  path = pathlib.Path(folder) / CONFIG
  if not path.is_file():
    raise errors.UserError(
      f'{path} is missing: it says what model the weights are of.'
    )
  try:
    fields = json.loads(path.read_text(encoding='utf-8'))
    name = errors.lookup(
      {key: key for key in _KINDS}, fields['model_type'], 'model_type'
    )
    _check(path, fields, _REQUIRED[name])
    read = _of_gpt2 if name == 'gpt2' else _of_llama
    own = _KINDS[name] | read(path, fields)
    for key in ('vocab_size', 'context', 'num_layers', 'num_heads', 'width'):
      if type(own[key]) is not int or own[key] < 1:
        raise ValueError(f'{key} is {own[key]!r}')
  except errors.UserError:
    raise
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ZeroDivisionError,
  ) as error:
    raise errors.UserError(
      f'{path} is not the config of a model: {error!r}.'
    ) from error
  ours = {
    'dropout': 0.0,
    'dtype': 'float32',
    'attention': 'xla',
    'scan_layers': False,
    'rematerialise': False,
  }
  return decoder.DecoderConfig(**own | ours | changes)


def json_config(config: decoder.DecoderConfig) -> dict[str, Any]:
  """Returns the config.json of a model, as `decoder_config` reads it.

  Raises:
    UserError: for a decoder that is neither GPT-2 nor LLaMA.
  """
  common = {
    'vocab_size': config.vocab_size,
    'tie_word_embeddings': config.tie_embeddings,
    'torch_dtype': 'float32',
  }
  if kind(config) == 'gpt2':
    return common | {
      'model_type': 'gpt2',
      'architectures': ['GPT2LMHeadModel'],
      'n_positions': config.context,
      'n_embd': config.width,
      'n_layer': config.num_layers,
      'n_head': config.num_heads,
      'n_inner': config.mlp_width,
      'activation_function': 'gelu_new',
      'layer_norm_epsilon': config.norm_epsilon,
      'resid_pdrop': config.dropout,
      'embd_pdrop': config.dropout,
      'attn_pdrop': 0.0,
    }
  return common | {
    'model_type': 'llama',
    'architectures': ['LlamaForCausalLM'],
    'max_position_embeddings': config.context,
    'hidden_size': config.width,
    'intermediate_size': config.mlp_width,
    'num_hidden_layers': config.num_layers,
    'num_attention_heads': config.num_heads,
    'num_key_value_heads': config.num_kv_heads,
    'hidden_act': 'silu',
    'rms_norm_eps': config.norm_epsilon,
    'rope_theta': config.rope_theta,
    'attention_bias': False,
    'mlp_bias': False,
  }


def require_same(
  config: decoder.DecoderConfig, folder: str | os.PathLike
) -> None:
  """Sees that a model is the one of a folder, but for what is free.

  Rotary positions may be fewer than there: that has no weights.

  Raises:
    UserError: for what differs, or if the folder's is no such model.
  """
  found = dataclasses.asdict(decoder_config(folder))
  if config.positions == 'rotary' and config.context < found['context']:
    found['context'] = config.context
  wrong = [
    f'{key} is {value}, there it is {found[key]}'
    for key, value in dataclasses.asdict(config).items()
    if key not in FREE and value != found[key]
  ]
  if wrong:
    raise errors.UserError(
      f'The model is not the one of {folder}: {"; ".join(wrong)}.'
    )


def _of_gpt2(path, fields):
  del path
  width = fields['n_embd']
  return {
    'vocab_size': fields['vocab_size'],
    'context': fields['n_positions'],
    'num_layers': fields['n_layer'],
    'num_heads': fields['n_head'],
    'num_kv_heads': fields['n_head'],
    'width': width,
    'mlp_width': fields.get('n_inner') or 4 * width,
    'norm_epsilon': fields.get('layer_norm_epsilon', 1e-5),
    'rope_theta': 10_000.0,
    'tie_embeddings': fields.get('tie_word_embeddings', True),
  }


def _of_llama(path, fields):
  heads, width = fields['num_attention_heads'], fields['hidden_size']
  if (fields.get('head_dim') or width // heads) != width // heads:
    raise errors.UserError(
      f'{path}: head_dim={fields["head_dim"]} is not supported, only'
      f' hidden_size / num_attention_heads={width // heads}.'
    )
  # Newer files have one table for both.
  rope = fields.get('rope_parameters') or fields.get('rope_scaling') or {}
  scaling = rope.get('rope_type', rope.get('type', 'default'))
  if scaling != 'default' or rope.get('partial_rotary_factor', 1) != 1:
    raise errors.UserError(
      f'{path}: scaled rotary positions are not supported: {rope}.'
    )
  theta = rope.get('rope_theta', fields.get('rope_theta', 10_000.0))
  return {
    'vocab_size': fields['vocab_size'],
    'context': fields['max_position_embeddings'],
    'num_layers': fields['num_hidden_layers'],
    'num_heads': heads,
    'num_kv_heads': fields.get('num_key_value_heads') or heads,
    'width': width,
    'mlp_width': fields['intermediate_size'],
    'norm_epsilon': fields.get('rms_norm_eps', 1e-6),
    'rope_theta': float(theta),
    'tie_embeddings': fields.get('tie_word_embeddings', False),
  }


def _check(path, fields, required):
  for field, allowed in required.items():
    if fields.get(field, allowed[0]) not in allowed:
      listed = ', '.join(map(str, allowed))
      raise errors.UserError(
        f'{path}: {field}={fields[field]} is not supported. Allowed: {listed}.'
      )
