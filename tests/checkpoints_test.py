"""Checkpoints: what comes back, and what is said when nothing can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import checkpoints, errors, methods, plans
import signmomentum as sm
from tests import tiny

PARAMS = {'matrix': jnp.arange(6.0).reshape(2, 3), 'vector': jnp.ones(3)}


def _state(workers=4, mesh=None):
  """A state in which every leaf has numbers of its own."""
  config = tiny.load(method='distributed_sign_momentum_one_bit')
  plan = plans.Plan(100, 3, lambda p: jax.tree.map(lambda x: x.ndim > 1, p), 0)
  tx = methods.build(config.method, config.optimizer, plan)
  state = sm.Workers(workers, mesh).init(tx, PARAMS)
  leaves, treedef = jax.tree.flatten(state)
  leaves = [
    (leaf + i + jnp.arange(leaf.size).reshape(leaf.shape)).astype(leaf.dtype)
    for i, leaf in enumerate(leaves)
  ]
  return jax.tree.unflatten(treedef, leaves)


def _assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def _save(folder, *steps):
  with checkpoints.Checkpoints(folder) as store:
    for step in steps:
      store.save(step, _state(), {'place': step})


def test_everything_comes_back(tmp_path):
  _save(tmp_path, 7)
  with checkpoints.Checkpoints(tmp_path) as store:
    empty = jax.tree.map(jnp.zeros_like, _state())
    step, state, position = store.restore(empty)
  assert (step, position) == (7, {'place': 7})
  _assert_equal(state, _state())
  assert state.varying == _state().varying
  assert 0 < sum(state.varying) < len(state.varying)


def test_devices_read_what_a_simulation_wrote(tmp_path):
  _save(tmp_path, 7)
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((4,), ('workers',), auto, devices=jax.devices()[:4])
  target = _state(mesh=mesh)
  with checkpoints.Checkpoints(tmp_path) as store:
    _, state, _ = store.restore(jax.tree.map(jnp.zeros_like, target))
  _assert_equal(state, _state())
  for leaf, own in zip(jax.tree.leaves(state), state.varying, strict=True):
    spec = jax.P('workers') if own else jax.P()
    assert leaf.sharding.is_equivalent_to(
      jax.NamedSharding(mesh, spec), leaf.ndim
    )


def test_keeps_the_newest(tmp_path):
  _save(tmp_path, 1, 2, 3)
  with checkpoints.Checkpoints(tmp_path) as store:
    assert store.latest() == 3
  folders = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert folders == {'2', '3'}


def test_saving_a_step_twice_is_saving_it_once(tmp_path):
  _save(tmp_path, 7, 7)
  _save(tmp_path, 7)


def test_none_yet(tmp_path):
  with checkpoints.Checkpoints(tmp_path) as store:
    assert store.latest() is None
    with pytest.raises(errors.UserError, match='no checkpoint'):
      store.restore(_state())


def test_unreadable_names_the_folder_and_the_way_out(tmp_path):
  _save(tmp_path, 5, 7)
  for path in (tmp_path / 'checkpoints' / '7').rglob('*'):
    if path.is_file() and path.stat().st_size:
      path.write_bytes(b'garbage')
  with (
    checkpoints.Checkpoints(tmp_path) as store,
    pytest.raises(errors.UserError) as caught,
  ):
    store.restore(_state())
  message = str(caught.value)
  assert str(tmp_path / 'checkpoints' / '7') in message
  assert 'Delete' in message
  assert 'step 5' in message
