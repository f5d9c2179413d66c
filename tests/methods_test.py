"""Methods by name: what they refuse, and that each of them learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import errors, methods, plans, rounds
import signmomentum as sm
from tests import tiny

PLAN = plans.Plan(
  num_steps=60,
  sync_every=3,
  decay_mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
  seed=0,
)


def _fields(method, **changes):
  return dict(tiny.load(method=method).optimizer) | changes


@pytest.mark.parametrize('method', methods.METHODS)
def test_learns(method):
  """On one batch again and again, the loss falls in 20 rounds."""
  objective = tiny.objective(tiny.load())
  fields = _fields(method, warmup_steps=3)
  # enough for the few steps there are; that of SGD is another kind of number
  fields['learning_rate'] = 0.3 if 'momentum' in fields else 1e-2
  tx = methods.build(method, fields, PLAN)
  state = sm.Workers(2).init(tx, objective.init(jax.random.key(0)))
  run = sm.Workers(2).step(
    rounds.program(tx, objective.loss, PLAN.sync_every, 0)
  )
  tokens = jax.random.randint(jax.random.key(1), (2, 1, 2, 9), 0, 32)
  tokens = np.repeat(tokens, PLAN.sync_every, axis=1)
  losses = []
  for first in range(0, PLAN.num_steps, PLAN.sync_every):
    state, (loss, _) = run(state, tokens, first, 0, PLAN.sync_every)
    losses.append(float(jnp.mean(loss)))
  assert losses[-1] < 0.9 * losses[0]


def test_unknown_method_names_the_nearest():
  with pytest.raises(errors.UserError, match="nearest is 'slowmo'"):
    methods.build('slomo', {}, PLAN)
  with pytest.raises(errors.UserError, match="nearest is 'slowmo'"):
    methods.names(['adamw', 'slomo'])


def test_all_methods():
  assert methods.names(['all']) == list(methods.METHODS)
  assert methods.names(['lion', 'adamw']) == ['lion', 'adamw']


def test_unknown_field_names_the_nearest():
  fields = _fields('slowmo') | {'outer_momentun': 0.5}
  with pytest.raises(errors.UserError, match="nearest is 'outer_momentum'"):
    methods.build('slowmo', fields, PLAN)


def test_missing_fields_are_named():
  fields = _fields('slowmo')
  del fields['clip'], fields['outer_momentum']
  with pytest.raises(errors.UserError, match='outer_momentum, clip'):
    methods.build('slowmo', fields, PLAN)


def test_schedule():
  rate = plans.schedule(PLAN, 2.0, warmup_steps=10, final_fraction=0.25)
  np.testing.assert_allclose(
    [rate(step) for step in (0, 5, 10, 35, 60)], [0, 1, 2, 1.25, 0.5], rtol=1e-6
  )


@pytest.mark.parametrize('warmup_steps', [-1, 60, 61])
def test_schedule_refuses_a_warmup_without_an_end(warmup_steps):
  with pytest.raises(errors.UserError, match=f'warmup_steps={warmup_steps}'):
    plans.schedule(PLAN, 1.0, warmup_steps, 0.1)


@pytest.mark.parametrize('method', methods.METHODS)
def test_decays_matrices_only(method):
  """Gradients are zero: only a decay can move a weight."""
  params = {'matrix': jnp.ones((2, 2)), 'vector': jnp.ones(2)}
  tx = methods.build(method, _fields(method, warmup_steps=0), PLAN)

  @sm.Workers(2).step
  def step(state, _):
    zero = jax.tree.map(jnp.zeros_like, state.params)
    updates, opt_state = tx.update(zero, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, opt_state=opt_state), ()

  state = sm.Workers(2).init(tx, params)
  for _ in range(PLAN.sync_every):
    state, _ = step(state, ())
  synchronised = sm.synchronised(state.opt_state, state.params)
  np.testing.assert_array_equal(synchronised['vector'], 1)
  assert np.all(synchronised['matrix'] < 1)
