"""Text from a trained model."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import errors
from experiments.finetuning import trained, vocabularies
from experiments.models import decoder


def generate(
  workdir: str | os.PathLike,
  prompt: str,
  length: int,
  temperature: float,
  seed: int,
) -> str:
  """Continues a prompt with the newest checkpoint of a run.

  Args:
    workdir: the run's directory.
    prompt: where to start; empty: the beginning of a document.
    length: number of tokens to add.
    temperature: 1 is the model's distribution, 0 its likeliest token.
    seed: of the draws.

  Returns:
    the prompt and what follows.

  Raises:
    UserError: if there is no run of texts, or `length` or `temperature` is
      negative.
  """
  if length < 0 or temperature < 0:
    raise errors.UserError(
      f'length={length} and temperature={temperature} must not be negative.'
    )
  run = trained.load(workdir)
  vocabulary = vocabularies.get(trained.tokenizer(run.config))
  # As every text begins, or after the end of another one.
  begin = vocabulary.begin or (vocabulary.end,)
  start = np.append(begin, vocabulary.encode(prompt)).astype(np.int32)
  tokens = sample(
    run.model,
    run.params,
    start,
    length,
    temperature,
    jax.random.key(seed),
  )
  return vocabulary.decode(np.asarray(tokens)[len(begin) :].tolist())


@functools.partial(jax.jit, static_argnums=(0, 3))
def sample(
  model: decoder.DecoderConfig,
  params: Any,
  start: jax.Array,
  length: int,
  temperature: jax.typing.ArrayLike,
  key: jax.Array,
) -> jax.Array:
  """Continues tokens, each from the last `model.context` before it.

  Args:
    model: the model.
    params: its parameters.
    start: ids, at least one.
    length: number of tokens to add.
    temperature: 0 takes the likeliest.
    key: of the draws.

  Returns:
    the ids of `start` and those that follow.
  """
  count = start.size
  # Room for a whole window; causality hides what is not written yet.
  room = max(count + length, model.context)
  tokens = jnp.zeros(room, jnp.int32).at[:count].set(start)

  def add(place, tokens):
    begin = jnp.maximum(place - model.context, 0)
    window = jax.lax.dynamic_slice(tokens, (begin,), (model.context,))
    logits = decoder.apply(model, params, window[None])[0, place - 1 - begin]
    noise = jax.random.gumbel(jax.random.fold_in(key, place), logits.shape)
    return tokens.at[place].set(jnp.argmax(logits + temperature * noise))

  tokens = jax.lax.fori_loop(count, count + length, add, tokens)
  return tokens[: count + length]
