"""Functions take turns, and a state goes from one to the next."""

import time

import jax
import jax.numpy as jnp
import pytest

from experiments import turns


def test_functions_take_turns():
  order = []
  ways = {name: lambda name=name: order.append(name) for name in 'ab'}
  seconds = turns.medians(ways, repeats=2, calls=2)
  assert ''.join(order) == 3 * 'aabb'
  assert list(seconds) == ['a', 'b']


def test_a_time_is_the_median_of_a_call():
  naps = iter([0.5, 0.01, 0.01, 0.4, 0.4, 0.02, 0.02])
  first = next(naps)  # the turn that is not counted has two calls

  def way():
    time.sleep(next(naps, first))

  seconds = turns.medians({'way': way}, repeats=2, calls=2)['way']
  assert seconds == pytest.approx((0.4 + 0.02) / 2, rel=0.2)


def test_a_state_is_handed_on_and_used_up():
  step = jax.jit(lambda state, x: (state + x, state), donate_argnums=0)
  first = jnp.zeros(3)
  carried = turns.Carried(first)
  one, ten = carried.way(step, 1.0), carried.way(step, 10.0)
  one(), ten()
  assert one()[1].tolist() == [11.0] * 3
  assert carried.state.tolist() == [12.0] * 3
  assert first.is_deleted()
