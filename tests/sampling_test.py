"""Text from a model: the right distribution's draws, from the right run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import config, errors, loop, sampling, traffic
from experiments.models import decoder
from tests import tiny

MODEL = tiny.objective(tiny.load()).model
PARAMS = jax.tree.map(
  # Larger than at the start of training, or all tokens are alike.
  lambda p: 5 * p,
  decoder.init(MODEL, jax.random.key(0)),
)


def _sample(start, length, temperature=0.0, seed=0):
  key = jax.random.key(seed)
  tokens = jnp.array(start, jnp.int32)
  return list(
    np.asarray(sampling.sample(MODEL, PARAMS, tokens, length, temperature, key))
  )


@pytest.mark.parametrize('count', [1, 7, 8, 9, 20])  # the context is 8
def test_greedy_takes_the_likeliest_token(count):
  apply = jax.jit(decoder.apply, static_argnums=0)
  tokens = list(range(count))
  for _ in range(10):
    window = tokens[-MODEL.context :]
    filled = window + [0] * (MODEL.context - len(window))  # one shape for jit
    logits = apply(MODEL, PARAMS, np.array([filled]))[0, len(window) - 1]
    tokens.append(int(np.argmax(logits)))
  assert _sample(range(count), 10) == tokens


def test_draws_follow_the_seed():
  assert _sample([1], 30, 1.0, seed=1) == _sample([1], 30, 1.0, seed=1)
  assert _sample([1], 30, 1.0, seed=1) != _sample([1], 30, 1.0, seed=2)


def test_draws_have_the_distribution_of_the_model():
  """First tokens of 2000 draws; five standard deviations of their shares."""
  keys = jax.random.split(jax.random.key(0), 2000)
  start = jnp.array([1], jnp.int32)
  drawn = jax.vmap(
    lambda key: sampling.sample(MODEL, PARAMS, start, 1, 2.0, key)[1]
  )(keys)
  logits = decoder.apply(MODEL, PARAMS, start[None])[0, 0]
  expected = np.asarray(jax.nn.softmax(logits / 2.0))
  share = np.bincount(np.asarray(drawn), minlength=32) / keys.size
  bound = 5 * np.sqrt(expected * (1 - expected) / keys.size) + 1 / keys.size
  assert np.all(np.abs(share - expected) <= bound)
  assert np.sum(expected > 0.02) > 3


def test_generate_continues_the_prompt(tmp_path, monkeypatch):
  monkeypatch.setattr(traffic, 'bits_per_parameter', lambda *_: 4.0)
  loop.train(tiny.load(), tmp_path, stop_at_step=4)
  text = sampling.generate(tmp_path, 'The ', 20, temperature=0.5, seed=0)
  assert text.startswith('The ')
  assert len(text) > 4
  assert text == sampling.generate(tmp_path, 'The ', 20, 0.5, seed=0)
  assert text != sampling.generate(tmp_path, 'The ', 20, 0.5, seed=1)
  assert sampling.generate(tmp_path, 'Thé', 0, 1.0, 0) == 'Thé'


@pytest.mark.parametrize('length, temperature', [(-1, 1.0), (1, -1.0)])
def test_refuses_negative_numbers(length, temperature, tmp_path):
  with pytest.raises(errors.UserError, match='must not be negative'):
    sampling.generate(tmp_path, '', length, temperature, 0)


def test_no_run(tmp_path):
  with pytest.raises(errors.UserError, match='No config'):
    sampling.generate(tmp_path, '', 1, 1.0, 0)


def test_a_run_of_images_has_no_text(tmp_path, monkeypatch):
  monkeypatch.setattr(traffic, 'bits_per_parameter', lambda *_: 4.0)
  loop.train(config.load('configs/vit_mnist.py:smoke'), tmp_path)
  with pytest.raises(errors.UserError, match='its model has no texts'):
    sampling.generate(tmp_path, '', 1, 1.0, 0)
