"""The task of answering: finetuning on instructions, from given weights.

The loss is on the tokens of the answers alone, the end of the text included. A
step counts all its positions as 'tokens' seen, those of prompts and those that
fill up a row, too: that is what it costs.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from experiments import errors, evaluate, hosts, language, tasks
from experiments.data import shards
from experiments.finetuning import instructions, vocabularies, weights
from experiments.models import decoder

# How many targets a batch of an evaluation has, for speed and memory only.
_BATCH_TARGETS = 4096


@dataclasses.dataclass(frozen=True)
class Answers:
  """A decoder and the cross-entropy of answers.

  Attributes:
    model: the decoder.
    length: targets in a row, at most the model's context.
    model_path: folder of the weights to begin with; empty: random ones.
  """

  model: decoder.DecoderConfig
  length: int
  model_path: str
  unit = 'tokens'

  @property
  def units_per_example(self) -> int:
    """Positions of a row, whatever they are."""
    return self.length

  def init(self, key: jax.Array) -> optax.Params:
    """Returns the parameters to begin with: those given, or new ones."""
    if self.model_path:
      return weights.load(self.model_path, self.model)
    return decoder.init(self.model, key)

  def decay_mask(self, params: optax.Params) -> Any:
    """Returns True for matrices and embeddings."""
    return decoder.decay_mask(params)

  def loss(
    self,
    params: optax.Params,
    batch: dict[str, jax.Array],
    key: jax.Array | None,
  ) -> jax.Array:
    """Returns the mean over the answers' tokens, as `batch` has them.

    Every token counts equally within a batch, as in Alpaca's training; so one
    of a worker with few of them counts for more than one of another worker.
    """
    nats_BxL = self._nats(params, batch, key)
    # A batch has answers, a part of one with nothing but filling has not.
    return jnp.sum(nats_BxL) / jnp.maximum(1, jnp.sum(batch['mask']))

  def targets(self, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns the number of the answers' tokens."""
    return jnp.sum(batch['mask'], dtype=jnp.float32)

  def shapes(self) -> optax.Params:
    """Returns the shapes of the parameters, without reading any."""
    return jax.eval_shape(lambda: decoder.init(self.model, jax.random.key(0)))

  def batch(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch: ids, and which targets are answers."""
    shape = batch_size, self.length
    return {
      'tokens': jax.ShapeDtypeStruct((batch_size, self.length + 1), jnp.int32),
      'mask': jax.ShapeDtypeStruct(shape, jnp.bool_),
    }

  def scores(
    self, params: optax.Params, batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns the answers' tokens and their nats, of each row of a batch."""
    return {
      evaluate.COUNT: jnp.sum(batch['mask'], axis=-1),
      'nats': jnp.sum(self._nats(params, batch, None), axis=-1),
    }

  def _nats(self, params, batch, key):
    tokens_BxL = batch['tokens']
    logits_BxLxV = decoder.apply(self.model, params, tokens_BxL[:, :-1], key)
    nats_BxL = decoder.nats(logits_BxLxV, tokens_BxL[:, 1:])
    return jnp.where(batch['mask'], nats_BxL, 0)


class Data:
  """Rows of some workers.

  Args:
    rows: the examples.
    own: which of them when.
  """

  def __init__(self, rows: instructions.Rows, own: shards.Shards):
    self._rows = rows
    self._shards = own

  def round(self, first_step: int, steps: int) -> dict[str, np.ndarray]:
    """Returns `tokens` and `mask`, `[workers, steps, batch_size, ...]`."""
    indices = self._shards.indices(first_step, steps)
    return {
      'tokens': self._rows.tokens[indices],
      'mask': self._rows.mask[indices],
    }

  def epoch(self, step: int) -> float:
    """Returns how often the examples have been seen before a step."""
    return self._shards.epoch(step)


def objective(config: ml_collections.ConfigDict) -> Answers:
  """Returns the model and the loss of a config; reads no file.

  Raises:
    UserError: if an example is to be longer than the model's context.
  """
  model = decoder.DecoderConfig(**config.model)
  if config.data.context < 1:
    raise errors.UserError(
      f'data.context={config.data.context} must be at least 1.'
    )
  if config.data.context > model.context:
    raise errors.UserError(
      f'data.context={config.data.context} is above'
      f' model.context={model.context}.'
    )
  return Answers(model, config.data.context, config.data.model_path)


def load(config: ml_collections.ConfigDict, only: Sequence[int]) -> tasks.Task:
  """Returns the task of a config, with the batches of some workers.

  Raises:
    UserError: if data or tokenizer are not there, or do not fit the model.
  """
  answers = objective(config)
  vocabulary = vocabularies.get(config.data.tokenizer or config.data.model_path)
  if vocabulary.size > answers.model.vocab_size:
    raise errors.UserError(
      f'The tokenizer has {vocabulary.size} ids, the model'
      f' model.vocab_size={answers.model.vocab_size}.'
    )
  if not config.data.model_path:
    hosts.say('No model_path: the weights begin at random.')
  found = instructions.load(config.data.path)
  train = _rows('to learn from', found.train, vocabulary, answers.length)
  validation = _rows('held out', found.validation, vocabulary, answers.length)
  own = shards.Shards(
    len(train.tokens),
    config.batch_size,
    config.workers,
    config.seed,
    only,
    config.data.sharding,
  )
  return tasks.Task(
    objective=answers,
    data=Data(train, own),
    evaluator=functools.partial(evaluator, answers, validation),
    baselines=dict,
    source=found.name,
    sha256=found.sha256,
  )


def evaluator(
  answers: Answers,
  rows: instructions.Rows,
  max_tokens: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[[optax.Params], tasks.Measures]:
  """Returns what measures parameters on answers that were held out.

  Args:
    answers: the model.
    rows: the examples.
    max_tokens: take about so many positions, from examples that are spread
      evenly; all if None.
    mesh: as in `evaluate.estimates`.
  """
  size = len(rows.tokens)
  wanted = size if max_tokens is None else -(-max_tokens // answers.length)
  count = max(1, min(size, wanted))
  indices = np.arange(count) * size // count
  batch_size = min(count, max(1, _BATCH_TARGETS // answers.length))

  def batches(values):
    fill = [(0, -count % batch_size)] + [(0, 0)] * (values.ndim - 1)
    values = np.pad(values[indices], fill)
    return values.reshape(-1, batch_size, *values.shape[1:])

  chunk = {'tokens': batches(rows.tokens), 'mask': batches(rows.mask)}

  def measure(params):
    (nats,) = evaluate.estimates(answers.scores, params, [chunk], mesh).values()
    # Bits per byte of a text would say little about answers.
    found = language.measures(nats, 1.0)
    del found['validation_bits_per_byte']
    return found

  return measure


def _rows(what, examples, vocabulary, length):
  rows = instructions.rows(examples, vocabulary, length)
  if rows.cut or rows.left_out:
    hosts.say(
      f'Of {len(examples):,} examples {what}, with {length} tokens each:'
      f' {rows.cut:,} answers are cut short, {rows.left_out:,} examples are'
      ' left out, as nothing of the answer has room.'
    )
  return rows
