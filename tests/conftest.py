"""Settings of every test: 8 virtual CPU devices, nothing promoted silently."""

import jax

# Before any call that looks for devices.
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
