"""Tensors in the safetensors files of a folder, in Hugging Face's layout.

    model.safetensors                       everything, or
    model.safetensors.index.json            which tensor is in which file, and
    model-00001-of-00002.safetensors, ...   those files

The files are mapped into memory, and tensors are read one at a time.
"""

from collections.abc import Callable, Mapping
import json
import os
import pathlib
from typing import Any

import numpy as np

from experiments import errors

_WHOLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_DTYPES = ('F32', 'F16', 'BF16')

Shape = tuple[int, ...]


class Tensors:
  """The tensors of a folder: names, shapes and, when asked for, numbers.

  Args:
    folder: where the files are.

  Raises:
    UserError: if files are missing, cannot be read, or hold other numbers than
      floats of 16 or 32 bits.
  """

  def __init__(self, folder: str | os.PathLike):
    safetensors = _package()
    folder = pathlib.Path(folder)
    self.shapes: dict[str, Shape] = {}
    self._files: dict[str, Any] = {}
    for path in _paths(folder):
      try:
        file = safetensors.safe_open(path, framework='np')
      except (OSError, safetensors.SafetensorError) as error:
        raise errors.UserError(f'{path} cannot be read: {error}.') from error
      for name in file.keys():  # noqa: SIM118 - it is no dict
        part = file.get_slice(name)
        if part.get_dtype() not in _DTYPES:
          raise errors.UserError(
            f'{path}: {name} is of type {part.get_dtype()}. Allowed:'
            f' {", ".join(_DTYPES)}.'
          )
        self.shapes[name] = tuple(part.get_shape())
        self._files[name] = file

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor, of the type that it has in its file."""
    return self._files[name].get_tensor(name)


def write(
  folder: str | os.PathLike,
  shapes: Mapping[str, Shape],
  read: Callable[[str], np.ndarray],
  file_bytes: int,
) -> None:
  """Writes tensors, a file at a time: one file's are in memory together.

  Args:
    folder: where to.
    shapes: of the tensors, by name.
    read: returns a tensor in float32.
    file_bytes: how large a file may be, unless a single tensor is larger.
  """
  # Here, not above, as in `_package`.
  _package()
  from safetensors import numpy as safetensors_numpy

  folder = pathlib.Path(folder)
  sizes = {name: 4 * int(np.prod(shape)) for name, shape in shapes.items()}
  parts, room = [], 0
  for name, size in sizes.items():
    if size > room:
      parts.append([])
      room = max(file_bytes, size)
    parts[-1].append(name)
    room -= size
  files = [_WHOLE]
  if len(parts) > 1:
    files = [
      f'model-{i:05}-of-{len(parts):05}.safetensors'
      for i in range(1, len(parts) + 1)
    ]
  for file, names in zip(files, parts, strict=True):
    # Not a view: what is written is the memory, in the order it is in.
    tensors = {name: np.ascontiguousarray(read(name)) for name in names}
    # Readers want to know whose conventions the tensors follow: PyTorch's.
    safetensors_numpy.save_file(tensors, folder / file, {'format': 'pt'})
  if len(parts) > 1:
    where = {
      name: file
      for file, names in zip(files, parts, strict=True)
      for name in names
    }
    index = {
      'metadata': {'total_size': sum(sizes.values())},
      'weight_map': where,
    }
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + '\n')


def _package() -> Any:
  try:
    # Here, not above: runs that load no weights do without it.
    import safetensors
  except ImportError as error:
    raise errors.UserError(
      f'Weights need a package that is missing ({error}): pip install -e'
      " '.[finetune]'."
    ) from error
  return safetensors


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / _WHOLE).is_file():
    return [folder / _WHOLE]
  index = folder / _INDEX
  if not index.is_file():
    raise errors.UserError(
      f'{folder} has neither {_WHOLE} nor {_INDEX}. Weights in other formats'
      ' (pytorch_model.bin) must be saved as safetensors first.'
    )
  try:
    names = sorted(set(json.loads(index.read_text())['weight_map'].values()))
  except (ValueError, KeyError, AttributeError, TypeError) as error:
    raise errors.UserError(
      f'{index} is not an index of safetensors: {error!r}.'
    ) from error
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    raise errors.UserError(
      f'{folder} lacks {", ".join(missing)}, which {_INDEX} names.'
    )
  return [folder / name for name in names]
