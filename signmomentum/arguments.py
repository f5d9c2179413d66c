"""Checks of arguments, made where a transformation is made."""

from collections.abc import Collection
import numbers
from typing import Any

import jax
import jax.numpy as jnp


def require_int(who: str, name: str, value: Any, least: int) -> None:
  """Refuses what is not a whole number, or too small.

  ``optax.inject_hyperparams`` makes arrays of integer arguments, and traces
  them once they have been checked: those pass.

  Args:
    who: the function that was called, for the message.
    name: its argument.
    value: what was given.
    least: the smallest value allowed.

  Raises:
    TypeError: the value is not an int, nor an integer array without axes.
    ValueError: it is below ``least``.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_int('local_steps', 'sync_every', 0, least=1)
    Traceback (most recent call last):
    ...
    ValueError: local_steps: sync_every must be at least 1, not 0.
  """
  if isinstance(value, jax.Array):
    whole = jnp.issubdtype(value.dtype, jnp.integer) and value.ndim == 0
  else:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not whole:
    raise TypeError(f'{who}: {name} must be an int, not {value!r}.')
  if not isinstance(value, jax.core.Tracer) and value < least:
    raise ValueError(f'{who}: {name} must be at least {least}, not {value}.')


def require_one_of(
  who: str, name: str, value: Any, allowed: Collection[str]
) -> None:
  """Refuses what is not one of a few words.

  Raises:
    ValueError: it is none of them.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_one_of('terngrad', 'kind', 'red', ('blue', 'green'))
    Traceback (most recent call last):
    ...
    ValueError: terngrad: kind must be one of ['blue', 'green'], not 'red'.
  """
  if value not in allowed:
    raise ValueError(
      f'{who}: {name} must be one of {sorted(allowed)}, not {value!r}.'
    )


def require_positive(who: str, name: str, value: Any) -> None:
  """Refuses a number that is not above 0; what is traced passes.

  Raises:
    ValueError: it is 0, below, or NaN.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_positive('terngrad', 'clip_factor', 0)
    Traceback (most recent call last):
    ...
    ValueError: terngrad: clip_factor must be above 0, not 0.
  """
  if not isinstance(value, jax.core.Tracer) and not value > 0:
    raise ValueError(f'{who}: {name} must be above 0, not {value}.')


def require_static(who: str, name: str, value: Any) -> None:
  """Refuses an array where a number decides about shapes.

  Raises:
    TypeError: the value is a JAX array.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_static('graddrop', 'density', 0.01)
  """
  if isinstance(value, jax.Array):
    raise TypeError(
      f'{who}: {name} decides about the shapes of messages, so it must be a'
      ' Python number, not an array. With optax.inject_hyperparams, name it in'
      f" static_args=('{name}',)."
    )


def require_static_bool(who: str, name: str, value: Any) -> None:
  """Refuses what does not say yes, no or None when a step is traced.

  Raises:
    TypeError: the value is neither a Python bool nor None.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_static_bool('local_steps', 'sync', True)
  """
  if not (value is None or isinstance(value, bool)):
    raise TypeError(
      f'{who}: {name} must be a Python bool or None, not {type(value)}: it'
      ' picks a branch when the step is traced. Compile one step for each, or'
      ' leave it out to go by the count.'
    )
