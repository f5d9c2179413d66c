"""Operations of a recorded trace."""

import jax
import jax.numpy as jnp

from experiments import traces


def test_operations_in_a_loop_are_listed_and_the_loop_is_not(tmp_path):
  def body(_, x):
    return jnp.tanh(x @ x)

  run = jax.jit(lambda x: jax.lax.fori_loop(0, 5, body, x))
  x = jnp.ones((64, 64))
  text = run.lower(x).compile().as_text()
  run(x).block_until_ready()
  with jax.profiler.trace(str(tmp_path)):
    run(x).block_until_ready()
  seconds = traces.operations(tmp_path)
  assert seconds
  assert all(f'%{name} ' in text for name in seconds)
  assert not [name for name in seconds if name.startswith('while')]
  assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
  assert min(seconds.values()) > 0
