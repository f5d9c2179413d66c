"""Whatever is compiled is seen, and only while somebody looks."""

import jax
import jax.numpy as jnp
import pytest

from experiments import compilations


def _new(name):
  def fn(x):
    return x + 1

  fn.__name__ = name
  return jax.jit(fn)


def test_compilations_are_seen_while_watched():
  x = jnp.zeros(3)
  early, seen, late = map(_new, ('early', 'seen', 'late'))
  early(x)
  with compilations.watched() as names:
    early(x), seen(x), seen(x)
  late(x)
  assert len(names) == 1
  assert 'seen' in names[0]


def test_forbidden_compilations_are_named():
  x = jnp.zeros(3)
  step = _new('step')
  step(x)
  with compilations.forbidden('after the first'):
    step(x)
  message = 'Compiled after the first: .*step'
  with (
    pytest.raises(RuntimeError, match=message),
    compilations.forbidden('after the first'),
  ):
    step(x.astype(jnp.bfloat16))


def test_an_error_inside_is_not_hidden():
  def fail():
    _new('step')(jnp.zeros(3))
    raise KeyError

  with pytest.raises(KeyError), compilations.forbidden('ever'):
    fail()
