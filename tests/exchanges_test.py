"""What is compared on the wire: results, bits and collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import exchanges
from signmomentum import wire

pytestmark = pytest.mark.usefixtures('quick_compilation')

SIZE = 2**16  # fills words and blocks, also of a part for each of 8 workers


def values(n, size):
  return jax.random.normal(jax.random.key(0), (n, size))


def run(name, n, sizes):
  """Returns the inputs and what is agreed on, each as one vector a worker."""
  mesh = exchanges.mesh(jax.devices()[:n])
  compiled, state = exchanges.build(name, mesh, sizes)
  x = values(n, sum(sizes))
  parts = jnp.split(x, np.cumsum(sizes)[:-1], axis=1)
  parts = jax.device_put(parts, jax.NamedSharding(mesh, jax.P(exchanges.AXIS)))
  result, _ = compiled(parts, state)
  assert [part.shape for part in result] == [(size,) for size in sizes]
  return np.asarray(x), np.concatenate([np.asarray(part) for part in result])


@pytest.mark.parametrize('n', [2, 4, 8])
@pytest.mark.parametrize('name', exchanges.EXCHANGES)
def test_formula_equals_the_compiled_program(name, n):
  mesh = exchanges.mesh(jax.devices()[:n])
  compiled, _ = exchanges.build(name, mesh, [SIZE])
  params = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
  np.testing.assert_allclose(
    wire.sent_bits_per_parameter(compiled, params),
    exchanges.EXCHANGES[name].bits(n),
    rtol=1e-9,
  )


@pytest.mark.parametrize('n', [3, 4])
@pytest.mark.parametrize('name', ['vote', 'gathered_vote'])
def test_votes(name, n):
  x, result = run(name, n, [1000, 24, 4096])
  total = np.sign(x).sum(0)
  decided = total != 0
  np.testing.assert_array_equal(result[decided], np.sign(total)[decided])
  if name == 'gathered_vote':
    np.testing.assert_array_equal(result[~decided], 0)


@pytest.mark.parametrize(
  'name, tolerance',
  [('fp32_mean', 1e-6), ('bf16_mean', 0.03), ('int8_mean', 0.1)]
  + [('int4_mean', 2)],
)
def test_means(name, tolerance):
  x, result = run(name, 4, [1000, 24, 4096])
  np.testing.assert_allclose(result, x.mean(0), atol=tolerance)


def test_a_mean_of_signs():
  x, result = run('sign_mean', 4, [1000, 24, 4096])
  np.testing.assert_array_equal(result, np.sign(x).mean(0))


@pytest.mark.parametrize('name', exchanges.EXCHANGES)
def test_many_leaves_take_no_more_collectives(name):
  mesh = exchanges.mesh(jax.devices()[:4])
  one, many = (
    wire.collectives(exchanges.build(name, mesh, sizes)[0])
    for sizes in ([4096], exchanges.leaf_sizes(4096, 30))
  )
  assert [c.kind for c in many] == [c.kind for c in one]
  assert len(one) <= 2


@pytest.mark.parametrize('parameters, leaves', [(10, 3), (10, 10), (7, 1)])
def test_leaves(parameters, leaves):
  sizes = exchanges.leaf_sizes(parameters, leaves)
  assert len(sizes) == leaves
  assert sum(sizes) == parameters
  assert max(sizes) - min(sizes) <= 1
