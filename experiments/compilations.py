"""Sees what is compiled, by whichever part of the program asks for it."""

from collections.abc import Iterator
import contextlib

import jax

_COMPILED = '/jax/core/compile/backend_compile_duration'


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
  """Lists the names of functions that are compiled while it is entered.

  A program that comes from a cache on disk counts too: it has been lowered.

  Yields:
    the list, which grows.
  """
  names = []

  def listen(event: str, seconds: float, **facts) -> None:
    if event == _COMPILED:
      names.append(f'{facts.get("fun_name", "a function")}, {seconds:.2f} s')

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


@contextlib.contextmanager
def forbidden(when: str) -> Iterator[None]:
  """Sees that nothing is compiled while it is entered.

  Args:
    when: that is, for people.

  Raises:
    RuntimeError: something was; the message names it.
  """
  with watched() as names:
    yield
  if names:
    raise RuntimeError(
      f'Compiled {when}: {"; ".join(names)}. A shape, a type, a sharding or a'
      ' Python number has changed from call to call.'
    )
