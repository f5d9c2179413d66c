"""Settings of every test: 8 virtual CPU devices, nothing promoted silently."""

import signal

import jax
import pytest

# In a shell's background Ctrl-C is ignored, also by the processes of the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

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
