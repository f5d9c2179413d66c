"""Measures of the parameters that all workers share.

It reads a state and changes nothing. Examples are scored one by one, each batch
on one device, and added up on the host in double precision: the figures are the
same for any number of workers and devices, and for a last batch that is filled
up.
"""

from collections.abc import Callable, Iterable
import functools
import math
from typing import Any

import jax
import numpy as np
import optax

from experiments import errors, tasks
import signmomentum as sm

# Of one example each: its number of targets, under this name, and sums over
# them, by name. Examples that fill up a batch have none.
COUNT = 'count'
Scores = Callable[[optax.Params, Any], dict[str, jax.Array]]


def shared_params(state: sm.WorkerState) -> optax.Params:
  """The parameters that all workers agree on, on one device.

  Args:
    state: of all workers.

  Raises:
    UserError: if a method lets the parameters differ and has no anchor.
  """
  marks = jax.tree.unflatten(jax.tree.structure(state), state.varying)
  if any(jax.tree.leaves(sm.synchronised(marks.opt_state, marks.params))):
    raise errors.UserError(
      'This method has no parameters that all workers agree on: put its parts'
      ' into signmomentum.local_steps, or aggregate what workers disagree on.'
    )
  params = sm.synchronised(state.opt_state, state.params)
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), params)


def estimates(
  scores: Scores,
  params: optax.Params,
  chunks: Iterable[Any],
  mesh: jax.sharding.Mesh | None = None,
) -> dict[str, tasks.Estimate]:
  """Means over all targets, each counted once, and their standard errors.

  The error is that of a ratio of sums over independent examples.

  Args:
    scores: of a batch; `COUNT` and sums, `[batch_size]` each. Equal functions
      compile once.
    params: the parameters.
    chunks: trees of arrays `[batches, batch_size, ...]`, all of equal shapes;
      zeros throughout make an example without targets.
    mesh: devices to do it together, None for one.
  """
  if mesh is not None:
    everywhere = jax.NamedSharding(mesh, jax.P())
    params = jax.tree.map(lambda x: _put(np.asarray(x), everywhere), params)
  parts = [_scores(scores, mesh, params, chunk) for chunk in chunks]
  sums = jax.tree.map(
    lambda *leaves: np.concatenate(leaves).ravel().astype(np.float64), *parts
  )
  counts = sums.pop(COUNT)
  return {name: _ratio(values, counts) for name, values in sums.items()}


def _ratio(values: np.ndarray, counts: np.ndarray) -> tasks.Estimate:
  there = counts > 0
  values, counts = values[there], counts[there]
  mean = float(values.sum() / counts.sum())
  examples = counts.size
  if examples == 1:
    return tasks.Estimate(mean, 0.0)
  squares = np.sum((values - mean * counts) ** 2)
  error = math.sqrt(squares * examples / (examples - 1)) / counts.sum()
  return tasks.Estimate(mean, error)


def _scores(
  scores: Scores,
  mesh: jax.sharding.Mesh | None,
  params: optax.Params,
  chunk: Any,
) -> dict[str, np.ndarray]:
  """Returns the scores of a chunk, `[batches, batch_size]` each."""
  if mesh is None:
    return jax.tree.map(np.asarray, _alone(scores, params, chunk))
  rows = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
  chunk = jax.tree.map(lambda x: _put(_filled(x, mesh.size), rows), chunk)
  together = _together(scores, mesh, params, chunk)
  return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), together)


@functools.partial(jax.jit, static_argnums=0)
def _alone(scores: Scores, params: Any, chunk: Any) -> Any:
  return jax.lax.map(functools.partial(scores, params), chunk)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _together(
  scores: Scores, mesh: jax.sharding.Mesh, params: Any, chunk: Any
) -> Any:
  rows = jax.P(mesh.axis_names)
  done = jax.shard_map(
    lambda params, chunk: jax.lax.map(functools.partial(scores, params), chunk),
    mesh=mesh,
    in_specs=(jax.P(), rows),
    out_specs=rows,
  )(params, chunk)
  # Every process reads all of it.
  everywhere = jax.NamedSharding(mesh, jax.P())
  return jax.lax.with_sharding_constraint(done, everywhere)


def _filled(leaf: np.ndarray, devices: int) -> np.ndarray:
  """Adds batches of zeros until each device has equally many."""
  more = -leaf.shape[0] % devices
  return np.pad(leaf, [(0, more)] + [(0, 0)] * (leaf.ndim - 1))


def _put(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
  """Of what all processes have; `device_put` would send it to compare."""
  return jax.make_array_from_callback(
    leaf.shape, sharding, lambda index: leaf[index]
  )
