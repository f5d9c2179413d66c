"""Rounds inside of rounds: islands that meet often, and all workers seldom."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _on_islands(axis_name, depth=2):
  """Local averaging of all workers around that of each island (twice)."""
  tx = optax.sgd(1.0)
  for _ in range(depth - 1):
    tx = sm.local_steps(tx, _mean('island'), 2, 'island')
  return sm.local_steps(tx, _mean(axis_name), 4, axis_name)


def _mean(axis_name):
  return optax.chain(sm.aggregate_by_mean(axis_name), optax.sgd(1.0))


def _run_on_islands(tx, params, gradients):
  """Two islands of two: the states, and the parameters after each step."""

  def start(_):
    return params, tx.init(params)

  def step(carry, gradient):
    params, state = carry
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state

  def each(fn):
    fn = jax.vmap(fn, axis_name='island')
    return jax.jit(jax.vmap(fn, axis_name='workers'))

  carry, seen = each(start)(jnp.zeros((2, 2))), []
  for gradient in gradients:
    carry = each(step)(carry, gradient)
    seen.append(jax.tree.map(np.asarray, carry[0]))
  return carry[1], seen


@pytest.mark.parametrize(
  'axis_name, depth', [('workers', 2), (('workers', 'island'), 3)]
)
def test_local_steps_inside_go_on_from_the_new_anchor(axis_name, depth):
  tx = _on_islands(axis_name, depth)
  gradients = [jnp.array([[-1.0, -3.0], [-5.0, -7.0]])] * 8
  _, seen = _run_on_islands(tx, jnp.array(0.0), gradients)
  expected = [[1, 3, 5, 7], [4, 4, 12, 12], [5, 7, 17, 19], [16] * 4]
  expected += (16 + np.array(expected)).tolist()
  np.testing.assert_array_equal(np.reshape(seen, (8, 4)), expected)


def test_local_steps_inside_of_some_leaves():
  """Also where what they do not have is a whole branch of the tree."""
  inner = optax.masked(
    sm.local_steps(optax.sgd(1.0), _mean('island'), 2, 'island'),
    {'a': True, 'b': False},
  )
  tx = sm.local_steps(inner, _mean('workers'), 2, 'workers')
  params = {'a': jnp.array(0.0), 'b': {'c': jnp.array(0.0), 'i': jnp.array(7)}}
  slope = jnp.array([[-1.0, -3.0], [-5.0, -7.0]])
  none = jnp.zeros((2, 2), int)
  gradients = [{'a': slope, 'b': {'c': -slope, 'i': none}}] * 3
  seen = _run_on_islands(tx, params, gradients)[1][-1]
  np.testing.assert_array_equal(seen['a'], [[9, 11], [13, 15]])
  np.testing.assert_array_equal(seen['b']['c'], [[7, 13], [11, 17]])
  np.testing.assert_array_equal(seen['b']['i'], 7)


def test_nested_rounding_is_taken_back_once():
  tx = _on_islands(('workers', 'island'))
  rng = np.random.default_rng(0)
  params = jnp.float32(rng.normal(size=500) * 1e-3)
  far = jnp.float32(rng.normal(size=(2, 2, 500)))
  far -= far.mean((0, 1), keepdims=True)
  rest = [jnp.zeros((2, 2, 500))] * 7
  state, seen = _run_on_islands(tx, params, [far, *rest[:3]])
  anchor = np.array(state.anchor)
  assert (seen[-1] != anchor).any()  # else this tests nothing
  state, seen = _run_on_islands(tx, params, [far, *rest])
  np.testing.assert_array_equal(state.anchor, anchor)
  np.testing.assert_array_equal(seen[-1], anchor)


def test_types_prove_that_islands_share_the_new_anchor():
  mesh = jax.make_mesh(
    (2, 2),
    ('workers', 'island'),
    (jax.sharding.AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  both = ('workers', 'island')
  tx = _on_islands(both)
  everywhere, shared, island = jax.P(both), jax.P(), jax.P('workers')
  layout = tx.init(jnp.array(0.0))
  layout = jax.tree.map(lambda _: shared, layout)
  # between outer rounds islands differ
  layout = layout._replace(inner=layout.inner._replace(anchor=island))

  def step(params, state, gradient):
    params, gradient = params[0], gradient[0]
    inner = state.inner._replace(anchor=state.inner.anchor[0])
    state = state._replace(inner=inner)
    updates, state = tx.update(gradient, state, params)
    inner = state.inner._replace(anchor=state.inner.anchor[None])
    return (params + updates)[None], state._replace(inner=inner)

  step = jax.jit(
    jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(everywhere, layout, everywhere),
      out_specs=(everywhere, layout),
    )
  )
  state = tx.init(jnp.array(0.0))
  inner = state.inner._replace(anchor=jnp.zeros(2))
  params, state = jnp.zeros(4), state._replace(inner=inner)
  for _ in range(5):
    params, state = step(params, state, jnp.array([-1.0, -3.0, -5.0, -7.0]))
  np.testing.assert_array_equal(params, [17, 19, 21, 23])
