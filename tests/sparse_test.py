"""The largest elements as indices and values: what arrives, what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import signmomentum as sm

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _run(tx, updates, steps=1, present=None):
  """What all workers get, and each worker's message, after some steps."""

  def worker(updates, present):
    state = tx.init(updates)
    for _ in range(steps):
      result, sent, state = tx.exchange(updates, state, present=present)
    return result, sent()

  axes = (0, None if present is None else 0)
  return jax.jit(
    jax.vmap(worker, axes, (None, 0), axis_name='workers', axis_size=3)
  )(updates, None if present is None else np.array(present))


def _kept(leaf, density):
  """The k largest magnitudes of each row, k rounded up."""
  flat = np.asarray(leaf, np.float64).reshape(len(leaf), -1)
  k = int(np.ceil(density * flat.shape[1]))
  kept = np.zeros_like(flat)
  for row, vector in zip(kept, flat, strict=True):
    places = np.argsort(-np.abs(vector), kind='stable')[:k]
    row[places] = vector[places]
  return kept.reshape(leaf.shape)


def _tree(dtype):
  rng = np.random.default_rng(0)
  shapes = {'matrix': (3, 5, 7), 'vector': (3, 40), 'scalar': (3,)}
  shapes |= {'empty': (3, 0, 2)}
  return {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32', 'float64'])
@pytest.mark.parametrize('density', [0.1, 0.5, 1.0])
def test_mean_of_the_largest(dtype, density):
  with jax.enable_x64(dtype == 'float64'):
    tree = _tree(dtype)
    mean, sent = _run(sm.aggregate_by_top_k('workers', density), tree)
    for name, leaf in tree.items():
      assert mean[name].dtype == sent[name].dtype == leaf.dtype
      kept = _kept(leaf, density)
      np.testing.assert_array_equal(np.asarray(sent[name], float), kept)
      tolerance = float(jnp.finfo(leaf.dtype).eps)
      np.testing.assert_allclose(
        np.asarray(mean[name], float),
        kept.mean(0),
        rtol=tolerance,
        atol=tolerance,
      )


@pytest.mark.parametrize('absent', [[], [1], [0, 1, 2]])
def test_absent_workers_send_nothing(absent):
  present = np.array([i not in absent for i in range(3)])
  tree = _tree('float32')
  poisoned = jax.tree.map(
    lambda x: x.at[np.array(absent, int)].set(np.nan), tree
  )
  tx = sm.aggregate_by_top_k('workers', 0.3)
  mean, sent = _run(tx, poisoned, present=present)
  for name, leaf in tree.items():
    kept = _kept(leaf, 0.3)[present]
    total = kept.sum(0) if len(kept) else np.zeros(leaf.shape[1:])
    np.testing.assert_allclose(mean[name], total / max(1, len(kept)), rtol=1e-6)
    assert not np.any(np.asarray(sent[name])[~present])


@pytest.mark.parametrize(
  'steps, density', [(1, 0.5), (2, 0.5), (3, 0.25), (5, 0.25), (6, 0.1)]
)
def test_warmup_goes_through_its_densities(steps, density):
  tx = sm.aggregate_by_top_k('workers', 0.1, warmup=[(2, 0.5), (3, 0.25)])
  _, sent = _run(tx, _tree('float32'), steps)
  assert np.count_nonzero(sent['vector'], axis=1).tolist() == [40 * density] * 3


def test_density_is_not_rounded_up_by_a_rounding_error():
  _, sent = _run(
    sm.aggregate_by_top_k('workers', 0.07), {'w': jnp.ones((3, 100))}
  )
  assert np.count_nonzero(sent['w'], axis=1).tolist() == [7] * 3


def test_one_element_of_a_leaf_is_sent_at_least():
  updates = {'w': jnp.ones((3, 100)), 'empty': jnp.ones((3, 0))}
  _, sent = _run(sm.aggregate_by_top_k('workers', 1e-9), updates)
  assert np.count_nonzero(sent['w'], axis=1).tolist() == [1] * 3


@pytest.mark.parametrize('density', [0.0, -0.1, 1.1, np.nan])
def test_bad_density(density):
  with pytest.raises(ValueError, match='above 0 and at most 1'):
    sm.aggregate_by_top_k('workers', density)
  with pytest.raises(ValueError, match='above 0 and at most 1'):
    sm.aggregate_by_top_k('workers', 0.1, warmup=[(3, density)])


def test_bad_warmup():
  with pytest.raises(ValueError, match='of a warmup must be at least 1, not 0'):
    sm.aggregate_by_top_k('workers', 0.1, warmup=[(0, 0.5)])
  with pytest.raises(TypeError, match='of a warmup must be an int, not 1.9'):
    sm.aggregate_by_top_k('workers', 0.1, warmup=[(1.9, 0.5)])


def test_warmup_of_deep_gradient_compression():
  with pytest.raises(ValueError, match='at least 4, or 0'):
    sm.deep_gradient_compression(0.1, density=0.001, warmup_steps=3)
  with pytest.raises(ValueError, match='max_norm must be above 0'):
    sm.deep_gradient_compression(0.1, max_norm=0.0)
  # 0.2: there is nothing above it to begin with
  sm.deep_gradient_compression(0.1, density=0.3, warmup_steps=1)


@pytest.mark.parametrize(
  'make, static',
  [
    (sm.graddrop, ('density',)),
    (sm.deep_gradient_compression, ('density', 'warmup_steps')),
  ],
)
def test_what_decides_about_shapes_cannot_be_injected(make, static):
  with pytest.raises(TypeError, match=r'static_args'):
    optax.inject_hyperparams(make)(learning_rate=0.1).init(jnp.ones(3))
  tx = optax.inject_hyperparams(make, static)(learning_rate=0.1)

  def update(gradient):
    return tx.update(gradient, tx.init(params), params)[0]

  params, gradients = jnp.zeros(2), jnp.array([[4.0, 1.0], [2.0, 1.0]])
  step = jax.vmap(update, out_axes=None, axis_name='workers')(gradients)
  np.testing.assert_allclose(step, [-0.3, 0])
