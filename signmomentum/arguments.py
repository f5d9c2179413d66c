"""Checks of arguments that must be whole numbers."""

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
