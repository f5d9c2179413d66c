"""Packages that a set of TFDS is made with, known before it is made.

Its code asks for them when it runs, and most of it runs after the download.
"""

import importlib.util
import sys
import types
from typing import Any

# Modules of TFDS, by how their names begin.
_OF_ALL_SETS = ('tensorflow_datasets.core', 'tensorflow_datasets.public_api')


def missing(builder: Any) -> list[str]:
  """Returns the packages that a set may ask for and that are not installed.

  What code of TFDS that all sets have asks for is not among them.

  Args:
    builder: TFDS's, of a set that is not prepared.
  """
  from tensorflow_datasets.core.utils import lazy_imports_utils

  lazy = type(lazy_imports_utils.tensorflow)
  wanted = {
    value.module_name.partition('.')[0]
    for module in _code(builder)
    for value in vars(module).values()
    if type(value) is lazy
  }
  return [
    package
    for package in sorted(wanted)
    if importlib.util.find_spec(package) is None
  ]


def _code(builder: Any) -> list[types.ModuleType]:
  """Returns the modules in which a set is made, without what all sets have."""
  left = [sys.modules[kind.__module__] for kind in type(builder).__mro__]
  found = []
  while left:
    module = left.pop()
    if module in found or module.__name__.startswith(_OF_ALL_SETS):
      continue
    found.append(module)
    left += [
      value
      for value in vars(module).values()
      if isinstance(value, types.ModuleType)
      and value.__name__.startswith('tensorflow_datasets.')
    ]
  return found
