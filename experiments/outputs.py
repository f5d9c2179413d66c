"""Where results go: seen to be possible before the work, not after it."""

import os
import pathlib

from experiments import errors


def directory(path: str | os.PathLike, flag: str = '--workdir') -> pathlib.Path:
  """Makes a directory for results.

  Args:
    path: of the directory.
    flag: names it on the command line, for the message.

  Raises:
    UserError: if it can't be made, or is no directory to write to.
  """
  path = pathlib.Path(path)
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise errors.UserError(
      f'Cannot make the directory {path}: {error.strerror}. Name another with'
      f' {flag}.'
    ) from error
  if not os.access(path, os.W_OK | os.X_OK):
    raise errors.UserError(
      f'Cannot write to {path}. Name another directory with {flag}.'
    )
  return path


def file(path: str | os.PathLike | None, flag: str) -> pathlib.Path | None:
  """Sees that a file of results can be written; makes the directory it is in.

  Args:
    path: of the file; None if none is wanted.
    flag: names it on the command line, for the message.

  Raises:
    UserError: if that can't be.
  """
  if path is None:
    return None
  path = pathlib.Path(path)
  directory(path.parent, flag)
  if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
    raise errors.UserError(
      f'Cannot write to the file {path}. Name another with {flag}.'
    )
  return path


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file in a directory of results, whole or not at all."""
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    partial.write_text(text, encoding='utf-8')
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)
