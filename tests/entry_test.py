"""What commands refuse before they do anything."""

import jax
import pytest

from experiments import entry, errors


def test_only_flags():
  entry.require_flags_only(['command'])
  with pytest.raises(errors.UserError, match='Not a flag: quick 3.*--help'):
    entry.require_flags_only(['command', 'quick', '3'])


def test_a_mistake_in_the_number_of_workers_does_not_break_jax():
  before = jax.config.jax_num_cpu_devices
  entry.set_cpu_devices('simulated', 0)
  assert jax.config.jax_num_cpu_devices == before
