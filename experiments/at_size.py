"""The round of a config as a program, from shapes: nothing is allocated.

So a config that cannot run at size is found on a laptop, and what the program
sends and needs can be read.
"""

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from experiments import assembly, plans, tasks, updates
import signmomentum as sm

# Operations between devices in StableHLO.
_COLLECTIVE = re.compile(
  r'stablehlo\.(all_gather|all_reduce|all_to_all|collective_permute'
  r'|reduce_scatter|collective_broadcast)"?\('
)


def lower(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
  platform: str | None = None,
) -> jax.stages.Lowered:
  """Lowers the round of a config.

  Args:
    config: the experiment.
    mesh: of devices that need not be there, one for each worker; None: all
      workers are simulated on one device.
    platform: to lower for, such as 'cuda' or 'tpu'; by default that of the
      mesh, or of this machine. `.compile()` is for those alone.

  Raises:
    UserError: for a mistake in the config.
  """
  assembly.check(config)
  objective = tasks.objective(config)
  tx = assembly.optimizer(config, objective)
  params = objective.shapes()
  team = sm.Workers(config.workers, mesh, plans.AXIS)
  program = team.step(assembly.round_of(config, tx, objective))
  batch = jax.tree.map(
    lambda s: _shape(s, (config.workers, config.sync_every), team),
    objective.batch(config.batch_size),
  )
  step = jax.ShapeDtypeStruct((), jnp.int32)
  traced = program.trace(
    updates.state_shapes(tx, params, team), batch, step, step, step
  )
  if platform is None:
    return traced.lower()
  return traced.lower(lowering_platforms=(platform,))


def collectives(lowered: jax.stages.Lowered) -> dict[str, int]:
  """How many collectives of each kind are in a program, loops counted once."""
  return dict(collections.Counter(_COLLECTIVE.findall(lowered.as_text())))


def _shape(
  shape: jax.ShapeDtypeStruct, lead: tuple[int, ...], team: sm.Workers
) -> jax.ShapeDtypeStruct:
  sharding: Any = None
  if team.mesh is not None:
    sharding = jax.NamedSharding(team.mesh, jax.P(team.axis_name))
  return jax.ShapeDtypeStruct(
    (*lead, *shape.shape), shape.dtype, sharding=sharding
  )
