"""Weights of GPT-2 and LLaMA: local files in the layout of Hugging Face.

A folder has a config.json and safetensors files, as `save_pretrained` of their
library leaves them. Reading goes tensor by tensor: the only copy of all weights
is the one that is returned.
"""

from collections.abc import Iterator
import json
import os
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import errors, outputs
from experiments.finetuning import (
  architectures,
  safetensors_files,
  tensor_rules,
)
from experiments.models import decoder

decoder_config = architectures.decoder_config

_FILE_BYTES = 4 * 2**30
_SHOWN = 5
_TOKENIZER = (
  'tokenizer.json',
  'tokenizer.model',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'vocab.json',
  'merges.txt',
)
_IDS = ('bos_token_id', 'eos_token_id', 'pad_token_id')


def load(
  folder: str | os.PathLike, config: decoder.DecoderConfig
) -> dict[str, Any]:
  """Returns the parameters of a model, in float32.

  Args:
    folder: with config.json and the weights, in 16 or 32 bits.
    config: the model; `decoder_config` has it from the folder. The fields in
      `architectures.FREE` may be others, and rotary positions fewer.

  Raises:
    UserError: if files or tensors are missing, too many, or of other shapes,
      or if the model is another one.
  """
  architectures.require_same(config, folder)
  tensors = safetensors_files.Tensors(folder)
  stored = {
    tensor_rules.plain(name, config): name
    for name in tensors.shapes
    if not tensor_rules.ignored(name)
  }
  _require_all(config, folder, tensors, stored)

  def read(name):
    return tensors.read(stored[name])

  _require_copies(config, folder, read, stored)
  params = {}
  for path, rule, layers in _leaves(config):
    shape = _shape(rule)
    if layers is None:
      leaf = np.empty(shape, np.float32)
      _fill(leaf, rule, read)
    else:
      stacked = config.scan_layers
      leaf = np.empty((len(layers), *shape) if stacked else shape, np.float32)
      for place, layer in enumerate(layers):
        _fill(leaf[place] if stacked else leaf, rule, read, layer)
    _put(params, path, jnp.asarray(leaf))
  return params


def require_room(
  config: decoder.DecoderConfig, folder: str | os.PathLike
) -> pathlib.Path:
  """Sees that `save` can write a model, and makes the folder.

  Args:
    config: the model.
    folder: of the weights.

  Raises:
    UserError: if the folder can't be made, or has a model already, or for a
      model that is neither GPT-2 nor LLaMA.
  """
  architectures.kind(config)
  folder = outputs.directory(folder, '--output')
  if (folder / architectures.CONFIG).exists():
    raise errors.UserError(
      f'{folder} has a model already. Name another folder for the weights.'
    )
  return folder


def save(
  params: dict[str, Any],
  config: decoder.DecoderConfig,
  folder: str | os.PathLike,
  file_bytes: int = _FILE_BYTES,
  begun_with: str | os.PathLike = '',
) -> None:
  """Writes the parameters of a model in float32, for use elsewhere.

  Args:
    params: what `load` returned, or has become of it.
    config: the model.
    folder: is made if need be, and has no model yet.
    file_bytes: about how large a file, and what is in memory at a time, may be.
    begun_with: folder of the weights before finetuning, to take the tokenizer
      and its ids from; empty: none.

  Raises:
    UserError: see `require_room`.
  """
  folder = require_room(config, folder)
  fields = architectures.json_config(config)
  if begun_with:
    fields |= _of_tokenizer(pathlib.Path(begun_with), folder)
  shapes, where = {}, {}
  for path, rule, layers in _leaves(config):
    for layer, place in _places(config, layers):
      start = 0
      for name, shape in zip(rule.names, rule.shapes, strict=True):
        name = tensor_rules.full(name.format(layer), config)
        columns = shape[0 if rule.transposed else -1]
        shapes[name] = shape
        where[name] = path, place, slice(start, start + columns), rule
        start += columns

  def read(name):
    path, place, columns, rule = where[name]
    leaf = _get(params, path)
    leaf = np.asarray(leaf if place is None else leaf[place])
    return leaf[..., columns].T if rule.transposed else leaf[..., columns]

  safetensors_files.write(folder, shapes, read, file_bytes)
  # Last: what has a config is whole.
  text = json.dumps(fields, indent=2) + '\n'
  (folder / architectures.CONFIG).write_text(text)


def _of_tokenizer(source: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
  """Copies the files of a tokenizer and returns its ids."""
  for name in _TOKENIZER:
    if (source / name).is_file():
      shutil.copy(source / name, folder / name)
  fields = json.loads((source / architectures.CONFIG).read_text())
  return {key: value for key, value in fields.items() if key in _IDS}


def _leaves(
  config: decoder.DecoderConfig,
) -> Iterator[tuple[tuple[str, ...], tensor_rules.Rule, range | None]]:
  """Yields each parameter: path, rule and the layers that it is made from."""
  rules = tensor_rules.rules(config)
  for rule in rules.ends:
    yield rule.path, rule, None
  for rule in rules.block:
    if config.scan_layers:
      yield ('blocks', *rule.path), rule, range(config.num_layers)
    else:
      for layer in range(config.num_layers):
        path = ('blocks', f'block_{layer}', *rule.path)
        yield path, rule, range(layer, layer + 1)


def _places(config, layers):
  """Returns layers, and where in a leaf each is; None if it is all of it."""
  if layers is None:
    return [(None, None)]
  if config.scan_layers:
    return [(layer, layer) for layer in layers]
  return [(layer, None) for layer in layers]


def _shape(rule: tensor_rules.Rule) -> tuple[int, ...]:
  shapes = [s[::-1] if rule.transposed else s for s in rule.shapes]
  return *shapes[0][:-1], sum(shape[-1] for shape in shapes)


def _fill(leaf, rule, read, layer=None):
  start = 0
  for name in rule.names:
    tensor = read(name.format(layer))
    tensor = tensor.T if rule.transposed else tensor
    leaf[..., start : start + tensor.shape[-1]] = tensor
    start += tensor.shape[-1]


def _require_all(config, folder, tensors, stored):
  """Compares names and shapes before any number is read."""
  wanted = {
    name.format(layer): shape
    for _, rule, layers in _leaves(config)
    for layer, _ in _places(config, layers)
    for name, shape in zip(rule.names, rule.shapes, strict=True)
  }
  found = {name: tensors.shapes[full] for name, full in stored.items()}
  wrong = []
  for name, shape in wanted.items():
    if name not in found:
      wrong.append(f'{name} {shape} is missing')
    elif found[name] != shape:
      wrong.append(f'{name} is {found[name]}, not {shape}')
  for name, shape in found.items():
    if name not in wanted and not tensor_rules.copy_of(name, config):
      wrong.append(f'{name} {shape} is not part of the model')
  if wrong:
    more = len(wrong) - _SHOWN
    shown = wrong[:_SHOWN] + ([f'and {more} more'] if more > 0 else [])
    raise errors.UserError(f'The weights in {folder}: {"; ".join(shown)}.')


def _require_copies(config, folder, read, stored):
  """A tied head that is in a file is the embedding, or the file is not ours."""
  for name in stored:
    original = tensor_rules.copy_of(name, config)
    if original and not np.array_equal(read(name), read(original)):
      raise errors.UserError(
        f'{folder}: {name} differs from {original}, but'
        f' {architectures.CONFIG} says that they are tied.'
      )


def _put(params: dict[str, Any], path: tuple[str, ...], leaf: jax.Array):
  for key in path[:-1]:
    params = params.setdefault(key, {})
  params[path[-1]] = leaf


def _get(params: dict[str, Any], path: tuple[str, ...]) -> jax.Array:
  for key in path:
    params = params[key]
  return params
