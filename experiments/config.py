"""Configs: a Python file, arguments of its `get_config`, single overrides.

    configs/gpt2_nano.py                       the file's defaults
    configs/gpt2_nano.py:method=slowmo,seed=1  arguments: the choice in a family
    --config.optimizer.learning_rate=1e-3      overrides: any field, its type

One mechanism serves the command line and callers such as `compare`, which
loads one file many times. (`ml_collections.config_flags` can do the first only,
and answers an unknown field with a traceback.)
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
import importlib.util
import json
import os
import pathlib
from typing import Any

from absl import app
import ml_collections

from experiments import errors, outputs

_BOOLS = {'true': True, 'false': False}


def load(
  spec: str,
  overrides: Mapping[str, Any] | Iterable[str] = (),
  **arguments: Any,
) -> ml_collections.ConfigDict:
  """Loads a config file.

  Args:
    spec: path of the file, with arguments after a colon if there are any:
      `configs/gpt2_nano.py:method=slowmo,workers=8`.
    overrides: fields to set afterwards, `{'model.width': 64}` or
      `['model.width=64']`. Values are strings, or of the field's type.
    **arguments: arguments of the file that win over those in `spec`.

  Returns:
    The config, locked: no field can be added by mistake later.

  Raises:
    UserError: for a file, an argument or a field that does not exist (the
      message names the nearest), and for a value of another type.
  """
  path, _, text = spec.partition(':')
  pairs = _pairs(text) | {key: str(value) for key, value in arguments.items()}
  config = run_file(path, 'config file', 'get_config(arg)').get_config(
    ','.join(f'{key}={value}' for key, value in pairs.items())
  )
  config.lock()
  for field, value in _items(overrides):
    _set(config, field, value)
  return config


def parse_arg(arg: str, **defaults: Any) -> ml_collections.ConfigDict:
  """Parses the argument string of a config file's `get_config`.

  `parse_arg('method=slowmo,smoke', method='adamw', workers=4, smoke=False)`
  has method 'slowmo', workers 4 and smoke True.

  Args:
    arg: comma-separated `key=value`; a bare `key` sets a bool to True.
    **defaults: every key there is, with its default, whose type is the type.

  Returns:
    All keys with their values, locked.

  Raises:
    UserError: for an unknown or repeated key, or a value of another type.
  """
  values = dict(defaults)
  for key, value in _pairs(arg).items():
    if key not in defaults:
      raise errors.unknown('config argument', key, defaults)
    values[key] = _convert(value, defaults[key], key)
  return ml_collections.ConfigDict(values).lock()


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the flags and hands `--config.field=value` to `main`.

  Use: `entry.run(main, flags_parser=config.parse_flags)`, with
  `main(overrides)` calling `config.load(_CONFIG.value, overrides)`.

  Args:
    argv: the command line.

  Returns:
    The overrides, each as `field=value`. A bare `--config.field` is true.
  """
  overrides, others = [], []
  for word in argv:
    if not word.startswith('--config.'):
      others.append(word)
      continue
    field, has_value, value = word.removeprefix('--config.').partition('=')
    overrides.append(f'{field}={value if has_value else "true"}')
  rest = app.parse_flags_with_usage(others)
  if rest[1:]:
    app.usage(
      shorthelp=True,
      detailed_error=f'Not a flag: {" ".join(rest[1:])}',
      exitcode=1,
    )
  return overrides


def save(config: ml_collections.ConfigDict, path: str | os.PathLike) -> None:
  """Writes a config as JSON, for the record and for `read`."""
  outputs.write(pathlib.Path(path), config.to_json(indent=2) + '\n')


def read(path: str | os.PathLike) -> ml_collections.ConfigDict:
  """Returns the config that `save` wrote, locked.

  Raises:
    UserError: if there is no such file.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise errors.UserError(
      f"No config at {path}. A run writes it; is this a run's directory?"
    )
  try:
    fields = json.loads(path.read_text(encoding='utf-8'))
    return ml_collections.ConfigDict(fields).lock()
  except (ValueError, TypeError, AttributeError) as error:
    raise errors.UserError(
      f'{path} is not the config of a run: {error}.'
    ) from error


def run_file(path: str | os.PathLike, kind: str, function: str) -> Any:
  """Runs a Python file and returns its module.

  Args:
    path: of the file.
    kind: what kind of file it is, for the message.
    function: a function that it must have, as `name(arguments)`.

  Raises:
    UserError: if there is no such file, or no such function in it.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    siblings = [str(other) for other in file.parent.glob('[!_]*.py')]
    if not siblings:
      raise errors.UserError(
        f'No {kind} {path}, nor any other in {file.parent.absolute()}.'
      )
    raise errors.unknown(kind, str(path), siblings)
  spec = importlib.util.spec_from_file_location(file.stem, file)
  if spec is None or spec.loader is None:
    raise errors.UserError(f'{path} is not a Python file.')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, function.partition('(')[0]):
    raise errors.UserError(f'{path} has no function {function}.')
  return module


def _pairs(arg: str) -> dict[str, str]:
  """Splits 'a=1,b' into {'a': '1', 'b': 'true'}."""
  pairs = {}
  for item in filter(None, (part.strip() for part in arg.split(','))):
    key, has_value, value = item.partition('=')
    key = key.strip()
    if key in pairs:
      raise errors.UserError(f'Config argument {key!r} is given twice.')
    pairs[key] = value.strip() if has_value else 'true'
  return pairs


def _items(overrides: Any) -> Iterable[tuple[str, Any]]:
  if isinstance(overrides, Mapping):
    yield from overrides.items()
    return
  for override in overrides:
    field, has_value, value = override.partition('=')
    if not has_value:
      raise errors.UserError(f'{override!r} is not of the form field=value.')
    yield field, value


def _set(config: ml_collections.ConfigDict, field: str, value: Any) -> None:
  """Sets the field at a dotted path."""
  *groups, name = field.split('.')
  group, prefix = config, ''
  for key in [*groups, name]:
    if not isinstance(group, ml_collections.ConfigDict):
      raise errors.UserError(
        f'Config field {prefix[:-1]!r} is a value, not a group of fields.'
      )
    if key not in group:
      allowed = [prefix + other for other in group]
      raise errors.unknown('config field', prefix + key, allowed)
    parent, group, prefix = group, group[key], f'{prefix}{key}.'
  parent[name] = _convert(value, parent[name], field)


def _convert(value: Any, current: Any, field: str) -> Any:
  """Returns `value` as the type of `current`, if nothing is lost."""
  if isinstance(current, ml_collections.ConfigDict):
    raise errors.UserError(
      f'Config field {field!r} is a group; set one of its fields: '
      f'{", ".join(current)}.'
    )
  try:
    converted = _parse(value, current) if isinstance(value, str) else value
  except (ValueError, SyntaxError):
    converted = None
  # bool is an int and 1 a fine float; nothing else may change its type.
  if type(current) is float and type(converted) is int:
    converted = float(converted)
  if current is not None and type(converted) is not type(current):
    kind = type(current).__name__
    raise errors.UserError(
      f'Config field {field!r} is of type {kind} (now {current!r}): '
      f'{value!r} is not.'
    )
  return converted


def _parse(text: str, current: Any) -> Any:
  if isinstance(current, str):
    return text
  if isinstance(current, bool):
    return _BOOLS.get(text.lower())
  if isinstance(current, int | float):
    return type(current)(text)
  return ast.literal_eval(text)
