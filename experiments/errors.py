"""Errors that are the user's to mend, and names that are nearly right."""

from collections.abc import Iterable, Mapping
import difflib
from typing import TypeVar

_T = TypeVar('_T')


class UserError(ValueError):
  """A mistake in a command or a config; `entry.run` shows it in one line."""


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
  """Returns the error for a name that does not exist.

  Args:
    what: what the name stands for, such as 'method'.
    name: the name that was asked for.
    allowed: the names that exist.

  Returns:
    An error to raise: it names the nearest name and lists all of them.
  """
  allowed = sorted(allowed)
  # No cut-off: with so few names the nearest one is a useful hint, always.
  nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)
  hint = f' The nearest is {nearest[0]!r}.' if nearest else ''
  listed = ', '.join(allowed) or 'none'
  return UserError(f'Unknown {what} {name!r}.{hint} Allowed: {listed}.')


def lookup(table: Mapping[str, _T], name: str, what: str) -> _T:
  """Returns `table[name]`.

  Args:
    table: what there is, by name.
    name: the name to look up.
    what: what the names stand for, such as 'method'.

  Raises:
    UserError: if there is no such name; the message has the nearest one.
  """
  if name not in table:
    raise unknown(what, name, table)
  return table[name]
