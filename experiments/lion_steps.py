"""`distributed_lion` on one worker, timed against `optax.lion`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments import turns, updates
from experiments.models import decoder
import signmomentum as sm

AXIS = 'workers'
_LION = {'learning_rate': 1e-4, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 1.0}
_METHODS = {
  'lion': lambda: optax.lion(**_LION, mask=decoder.decay_mask),
  'distributed_lion': lambda: sm.distributed_lion(
    **_LION, mask=decoder.decay_mask, axis_name=AXIS
  ),
}


def measure_update(
  params: optax.Params, mesh: jax.sharding.Mesh, repeats: int, calls: int
) -> dict[str, Any]:
  """Times the update of `distributed_lion` in turns with that of `optax.lion`.

  Args:
    params: of one worker.
    mesh: of one device.
    repeats: turns of each.
    calls: in a turn.

  Returns:
    seconds and bytes of temporaries of both, and the ratio of the seconds.
  """
  ways, memory = {}, {}
  gradients = jax.tree.map(lambda p: jnp.ones_like(p)[None], params)
  gradients = jax.device_put(gradients, jax.NamedSharding(mesh, jax.P(AXIS)))
  for name, make in _METHODS.items():
    tx = make()
    step = updates.lower(tx, params, mesh, AXIS).compile()
    memory[name] = step.memory_analysis().temp_size_in_bytes
    state = turns.Carried(sm.Workers(1, mesh, AXIS).init(tx, params))
    ways[name] = state.way(step, gradients)
  return _compared(turns.medians(ways, repeats, calls), memory)


def measure_step(
  model: decoder.DecoderConfig,
  params: optax.Params,
  tokens_BxL: jax.Array,
  mesh: jax.sharding.Mesh,
  repeats: int,
  calls: int,
) -> dict[str, Any]:
  """Times a training step with `distributed_lion` in turns with a plain one.

  Args:
    model: the model.
    params: its parameters.
    tokens_BxL: sequences, each with a token more than the context.
    mesh: of one device.
    repeats: turns of each.
    calls: in a turn.

  Returns:
    as `measure_update`, and the losses of both after as many steps.
  """

  def loss(params, tokens_BxL):
    logits_BxLxV = decoder.apply(model, params, tokens_BxL[:, :-1])
    return jnp.mean(decoder.nats(logits_BxLxV, tokens_BxL[:, 1:]))

  lion = _METHODS['lion']()
  vote = _METHODS['distributed_lion']()
  team = sm.Workers(1, mesh, AXIS)

  def plain(state, tokens_BxL):
    params, opt_state = state
    value, gradient = jax.value_and_grad(loss)(params, tokens_BxL)
    new, opt_state = lion.update(gradient, opt_state, params)
    return (optax.apply_updates(params, new), opt_state), value

  def voted(state, tokens_BxL):
    params = sm.as_local(state.params, AXIS)
    value, gradient = jax.value_and_grad(loss)(params, tokens_BxL)
    new, opt_state = vote.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, new)
    return state.replace(params=params, opt_state=opt_state), value

  start = jax.tree.map(jnp.copy, params)
  states = {
    'lion': (start, lion.init(start)),
    'distributed_lion': team.init(vote, params),
  }
  steps = {
    'lion': (jax.jit(plain, donate_argnums=0), tokens_BxL),
    'distributed_lion': (team.step(voted), tokens_BxL[None]),
  }
  ways, memory = {}, {}
  for name, (step, tokens) in steps.items():
    compiled = step.lower(states[name], tokens).compile()
    memory[name] = compiled.memory_analysis().temp_size_in_bytes
    ways[name] = turns.Carried(states.pop(name)).way(compiled, tokens)
  figures = _compared(turns.medians(ways, repeats, calls), memory)
  losses = {name: float(jnp.squeeze(way()[1])) for name, way in ways.items()}
  return figures | {'losses': losses}


def _compared(
  seconds: dict[str, float], memory: dict[str, int]
) -> dict[str, Any]:
  return {
    'seconds': seconds,
    'ratio': seconds['distributed_lion'] / seconds['lion'],
    'temporary_bytes': memory,
  }
