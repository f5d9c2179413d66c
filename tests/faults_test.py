"""Faults of a run: who is absent, who works against the others."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import faults
from tests import tiny


def test_nothing_goes_wrong_by_default():
  assert faults.get(tiny.load()) == faults.NONE
  assert faults.NONE.extra_args(jax.random.key(0)) == {}
  gradient = {'w': jnp.ones(3)}
  assert faults.NONE.corrupt(gradient, jnp.int32(0)) is gradient


def test_workers_are_there_as_often_as_wanted():
  absent = faults.Faults(presence=0.75)
  keys = jax.random.split(jax.random.key(0), 4000)
  present = jax.vmap(lambda key: absent.extra_args(key)['present'])(keys)
  assert abs(np.mean(present) - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 4000)


def test_the_first_workers_negate_their_gradients():
  against = faults.Faults(adversaries=2)
  gradient = {'w': jnp.ones(3, jnp.bfloat16)}
  corrupted = jax.vmap(against.corrupt, (None, 0))(gradient, jnp.arange(4))
  assert corrupted['w'].dtype == jnp.bfloat16
  assert corrupted['w'][:, 0].tolist() == [-1, -1, 1, 1]
