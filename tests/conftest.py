"""Settings of every test: 8 virtual CPU devices, nothing promoted silently."""

import jax
import pytest

# Before any call that looks for devices.
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')


@pytest.fixture(scope='module')
def quick_compilation():
  """For many programs that run a few times each: XLA need not polish them."""
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)
