"""Checks of arguments, made where a transformation is made."""

from collections.abc import Collection
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def require_bool(who: str, name: str, value: Any) -> None:
  """Refuses what is neither True nor False, such as ``'no'``.

  Raises:
    TypeError: the value is no bool.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_bool('local_steps', 'flag', 'no')
    Traceback (most recent call last):
    ...
    TypeError: local_steps: flag must be True or False, not 'no'.
  """
  if not isinstance(value, bool | np.bool_):
    raise TypeError(f'{who}: {name} must be True or False, not {value!r}.')


def require_floating(who: str, name: str, dtype: Any) -> None:
  """Refuses dtypes in which nobody can add; None stands for another's.

  Those of 8 bits and less can be stored, but JAX adds them to no other.

  Raises:
    ValueError: the dtype is not floating, or below 16 bits.

  Example:
    >>> import jax.numpy as jnp
    >>> from signmomentum import arguments
    >>> arguments.require_floating('lion_momentum', 'mu_dtype', jnp.bfloat16)
  """
  if dtype is None:
    return
  known = jnp.dtype(dtype)
  if not jnp.issubdtype(known, jnp.floating) or known.itemsize < 2:
    raise ValueError(
      f'{who}: {name} must be a floating dtype of 16 bits or more, such as'
      f' jnp.bfloat16, not {known}.'
    )


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
  if np.any(_known(value) < least):
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
    TypeError: the value is no real number, nor an array of such.
    ValueError: it is 0, below, infinite or NaN.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_positive('terngrad', 'clip_factor', 0)
    Traceback (most recent call last):
    ...
    ValueError: terngrad: clip_factor must be above 0 and finite, not 0.
  """
  _require_number(who, name, value)
  known = _known(value)
  if not np.all((known > 0) & (known < np.inf)):
    raise ValueError(f'{who}: {name} must be above 0 and finite, not {value}.')


def require_rate(who: str, name: str, value: Any) -> None:
  """Refuses what is neither a number from 0 on nor a schedule.

  What is traced passes, and so do schedules, whose values are not known.

  Raises:
    TypeError: the value is no real number, no array of such and no function.
    ValueError: it is below 0, infinite or NaN.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_rate('diloco', 'learning_rate', -0.1)
    Traceback (most recent call last):
    ...
    ValueError: diloco: learning_rate must be at least 0 and finite, not -0.1.
  """
  if callable(value):
    return
  _require_number(who, name, value, 'or a schedule')
  known = _known(value)
  if not np.all((known >= 0) & (known < np.inf)):
    raise ValueError(
      f'{who}: {name} must be at least 0 and finite, not {value}.'
    )


def require_seed(who: str, seed: Any) -> None:
  """Refuses what is no seed; arrays pass as in :func:`require_int`.

  JAX makes the same keys of seeds that differ by a multiple of ``2**32``.

  Raises:
    TypeError: the seed is not an int, nor an integer array without axes.
    ValueError: it is below 0, or not below ``2**32``.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_seed('terngrad', 2**32)
    Traceback (most recent call last):
    ...
    ValueError: terngrad: seed must be below 2**32, not 4294967296.
  """
  require_int(who, 'seed', seed, least=0)
  if np.any(_known(seed) >= 2**32):
    raise ValueError(f'{who}: seed must be below 2**32, not {seed}.')


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


def require_within(
  who: str, name: str, value: Any, low: float, high: float
) -> None:
  """Refuses a number that is not in a closed interval; what is traced passes.

  Raises:
    TypeError: the value is no real number, nor an array of such.
    ValueError: it is below ``low``, above ``high``, or NaN.

  Example:
    >>> from signmomentum import arguments
    >>> arguments.require_within('lion_momentum', 'b1', 2.0, 0, 1)
    Traceback (most recent call last):
    ...
    ValueError: lion_momentum: b1 must be from 0 to 1, not 2.0.
  """
  _require_number(who, name, value)
  known = _known(value)
  if not np.all((low <= known) & (known <= high)):
    raise ValueError(
      f'{who}: {name} must be from {low} to {high}, not {value}.'
    )


def _require_number(who: str, name: str, value: Any, also: str = '') -> None:
  real = isinstance(value, numbers.Real | np.generic | np.ndarray | jax.Array)
  if real:
    dtype = value.dtype if hasattr(value, 'dtype') else np.asarray(value).dtype
    real = jnp.issubdtype(dtype, jnp.integer)
    real |= jnp.issubdtype(dtype, jnp.floating)
  if not real:
    allowed = ' '.join(filter(None, ['a real number', also]))
    raise TypeError(f'{who}: {name} must be {allowed}, not {value!r}.')


def _known(value: Any) -> np.ndarray:
  """What can be compared of a number: nothing, where it is traced."""
  if isinstance(value, jax.core.Tracer):
    return np.empty(0)
  return np.asarray(value)  # JAX would trace what is computed in a jit
