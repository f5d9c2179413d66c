"""Memory that compiled votes need beside their inputs and outputs."""

import jax
import jax.numpy as jnp
import pytest

import signmomentum as sm

VOTES = [sm.aggregate_by_majority_vote, sm.aggregate_by_sign_mean]


@pytest.mark.parametrize('vote', VOTES)
def test_memory_of_a_vote_over_ten_million_parameters(vote):
  """At most 2 bytes of temporaries a parameter; unpacked votes need 32."""
  count = 10_000_000
  mesh = jax.make_mesh((8,), ('workers',), (jax.sharding.AxisType.Auto,))
  tx = vote('workers')

  @jax.jit
  @jax.shard_map(mesh=mesh, in_specs=jax.P('workers'), out_specs=jax.P())
  def run(updates):
    return tx.update(updates[0], tx.init(updates[0]))[0]

  updates = jax.ShapeDtypeStruct((8, count), jnp.float32)
  memory = run.lower(updates).compile().memory_analysis()
  assert 0 < memory.temp_size_in_bytes <= 2 * count
