"""Hugging Face's GPT-2 and LLaMA in NumPy, from their tensors by name.

After modeling_gpt2.py and modeling_llama.py of transformers, in float64, one
sequence at a time, written apart from the models of this project.
"""

import numpy as np

# Tiny, and every two sizes differ; vocabulary as of bytes.
GPT2 = {
  'model_type': 'gpt2',
  'vocab_size': 19,
  'n_positions': 12,
  'n_embd': 8,
  'n_layer': 2,
  'n_head': 2,
  'n_inner': 20,
  'activation_function': 'gelu_new',
  'layer_norm_epsilon': 1e-3,
}
LLAMA = {
  'model_type': 'llama',
  'vocab_size': 19,
  'max_position_embeddings': 12,
  'hidden_size': 16,
  'intermediate_size': 20,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'hidden_act': 'silu',
  'rms_norm_eps': 1e-3,
  'rope_theta': 500.0,
  'tie_word_embeddings': False,
}


def tensors(fields, seed=0):
  """Returns random tensors of a model, by the names in its files."""
  random = np.random.default_rng(seed)
  shapes = (_gpt2_shapes if fields['model_type'] == 'gpt2' else _llama_shapes)(
    fields
  )
  return {
    name: (
      random.normal(size=shape) / 2 + ('norm' in name or 'ln_' in name)
    ).astype(np.float32)
    for name, shape in shapes.items()
  }


def logits(fields, tensors, ids):
  """Returns the logits of one sequence, `[L, V]`."""
  forward = _gpt2 if fields['model_type'] == 'gpt2' else _llama
  return forward(
    fields, {k: np.float64(v) for k, v in tensors.items()}, np.asarray(ids)
  )


def _gpt2_shapes(f):
  width, hidden = f['n_embd'], f['n_inner']
  shapes = {
    'transformer.wte.weight': (f['vocab_size'], width),
    'transformer.wpe.weight': (f['n_positions'], width),
    'transformer.ln_f.weight': (width,),
    'transformer.ln_f.bias': (width,),
  }
  for i in range(f['n_layer']):
    for name, rows, columns in [
      ('ln_1', None, width),
      ('attn.c_attn', width, 3 * width),
      ('attn.c_proj', width, width),
      ('ln_2', None, width),
      ('mlp.c_fc', width, hidden),
      ('mlp.c_proj', hidden, width),
    ]:
      name = f'transformer.h.{i}.{name}'
      shapes[f'{name}.weight'] = (rows, columns) if rows else (columns,)
      shapes[f'{name}.bias'] = (columns,)
  return shapes


def _llama_shapes(f):
  width, hidden = f['hidden_size'], f['intermediate_size']
  few = width // f['num_attention_heads'] * f['num_key_value_heads']
  shapes = {
    'model.embed_tokens.weight': (f['vocab_size'], width),
    'model.norm.weight': (width,),
  }
  if not f['tie_word_embeddings']:
    shapes['lm_head.weight'] = (f['vocab_size'], width)
  for i in range(f['num_hidden_layers']):
    for name, shape in [
      ('self_attn.q_proj', (width, width)),
      ('self_attn.k_proj', (few, width)),
      ('self_attn.v_proj', (few, width)),
      ('self_attn.o_proj', (width, width)),
      ('mlp.gate_proj', (hidden, width)),
      ('mlp.up_proj', (hidden, width)),
      ('mlp.down_proj', (width, hidden)),
      ('input_layernorm', (width,)),
      ('post_attention_layernorm', (width,)),
    ]:
      shapes[f'model.layers.{i}.{name}.weight'] = shape
  return shapes


def _attend(q, k, v):
  """Causal attention of one head."""
  scores = q @ k.T / np.sqrt(q.shape[-1])
  scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True) @ v


def _gpt2(f, t, ids):
  def layer_norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + f['layer_norm_epsilon'])
    return x * t[f'{name}.weight'] + t[f'{name}.bias']

  def conv1d(x, name):
    return x @ t[f'{name}.weight'] + t[f'{name}.bias']

  def gelu_new(x):
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(inner))

  table = t['transformer.wte.weight']
  x = table[ids] + t['transformer.wpe.weight'][: len(ids)]
  for i in range(f['n_layer']):
    h = f'transformer.h.{i}'
    q, k, v = (
      np.split(part, f['n_head'], -1)
      for part in np.split(
        conv1d(layer_norm(x, f'{h}.ln_1'), f'{h}.attn.c_attn'), 3, -1
      )
    )
    heads = [_attend(*each) for each in zip(q, k, v, strict=True)]
    x = x + conv1d(np.concatenate(heads, -1), f'{h}.attn.c_proj')
    y = gelu_new(conv1d(layer_norm(x, f'{h}.ln_2'), f'{h}.mlp.c_fc'))
    x = x + conv1d(y, f'{h}.mlp.c_proj')
  return layer_norm(x, 'transformer.ln_f') @ table.T


def _llama(f, t, ids):
  def rms_norm(x, name):
    variance = (x**2).mean(-1, keepdims=True)
    return x / np.sqrt(variance + f['rms_norm_eps']) * t[f'{name}.weight']

  def linear(x, name):
    return x @ t[f'{name}.weight'].T

  def rotate_half(x):
    first, second = np.split(x, 2, -1)
    return np.concatenate([-second, first], -1)

  size = f['hidden_size'] // f['num_attention_heads']
  inv_freq = 1 / f['rope_theta'] ** (np.arange(0, size, 2) / size)
  freqs = np.arange(len(ids))[:, None] * inv_freq
  angles = np.concatenate([freqs, freqs], -1)

  def rotary(x):
    return x * np.cos(angles) + rotate_half(x) * np.sin(angles)

  def attention(x, name):
    q, k, v = (linear(x, f'{name}.{letter}_proj') for letter in 'qkv')
    q = np.split(q, f['num_attention_heads'], -1)
    k = np.split(k, f['num_key_value_heads'], -1)
    v = np.split(v, f['num_key_value_heads'], -1)
    groups = len(q) // len(k)
    heads = [
      _attend(rotary(q[j]), rotary(k[j // groups]), v[j // groups])
      for j in range(len(q))
    ]
    return linear(np.concatenate(heads, -1), f'{name}.o_proj')

  def mlp(x, name):
    gate = linear(x, f'{name}.gate_proj')
    y = gate / (1 + np.exp(-gate)) * linear(x, f'{name}.up_proj')
    return linear(y, f'{name}.down_proj')

  x = t['model.embed_tokens.weight'][ids]
  for i in range(f['num_hidden_layers']):
    h = f'model.layers.{i}'
    x = x + attention(rms_norm(x, f'{h}.input_layernorm'), f'{h}.self_attn')
    x = x + mlp(rms_norm(x, f'{h}.post_attention_layernorm'), f'{h}.mlp')
  head = 'model.embed_tokens' if f['tie_word_embeddings'] else 'lm_head'
  return linear(rms_norm(x, 'model.norm'), head)
