"""The task of predicting the next token of a text."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from experiments import baselines, errors, evaluate, tasks
from experiments.data import batches, text, token_files, tokenizers
from experiments.models import decoder

# How many targets a batch of an evaluation has, for speed and memory only.
_BATCH_TARGETS = 4096


@dataclasses.dataclass(frozen=True)
class NextToken:
  """A decoder and the cross-entropy of the next token.

  Attributes:
    model: the decoder.
  """

  model: decoder.DecoderConfig
  unit = 'tokens'

  @property
  def units_per_example(self) -> int:
    """Targets in a window."""
    return self.model.context

  def init(self, key: jax.Array) -> optax.Params:
    """Returns new parameters."""
    return decoder.init(self.model, key)

  def decay_mask(self, params: optax.Params) -> Any:
    """Returns True for matrices and embeddings."""
    return decoder.decay_mask(params)

  def loss(
    self, params: optax.Params, batch: jax.Array, key: jax.Array | None
  ) -> jax.Array:
    """Returns the mean over all targets; `batch` are ids `[B, L + 1]`."""
    logits_BxLxV = decoder.apply(self.model, params, batch[:, :-1], key)
    return jnp.mean(decoder.nats(logits_BxLxV, batch[:, 1:]))

  def targets(self, batch: jax.Array) -> jax.Array:
    """Returns the number of targets, the same in all batches of a size."""
    return jnp.float32(batch[:, 1:].size)

  def shapes(self) -> optax.Params:
    """Returns the shapes of the parameters."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def batch(self, batch_size: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of a batch."""
    return jax.ShapeDtypeStruct((batch_size, self.model.context + 1), jnp.int32)

  def scores(
    self, params: optax.Params, windows: batches.Evaluation
  ) -> dict[str, jax.Array]:
    """Returns targets and nats of each window of a batch."""
    tokens_BxL, mask_BxL = windows.tokens, windows.mask
    logits_BxLxV = decoder.apply(self.model, params, tokens_BxL[:, :-1])
    nats_BxL = decoder.nats(logits_BxLxV, tokens_BxL[:, 1:])
    return {
      evaluate.COUNT: jnp.sum(mask_BxL, axis=-1),
      'nats': jnp.sum(jnp.where(mask_BxL, nats_BxL, 0), axis=-1),
    }


def objective(config: ml_collections.ConfigDict) -> NextToken:
  """Returns the model and the loss of a config."""
  return NextToken(model_config(config, _vocab_size(config.data.tokenizer)))


def load(config: ml_collections.ConfigDict, only: Sequence[int]) -> tasks.Task:
  """Returns the task of a config, with the batches of some workers."""
  tokens = _tokens(config.data)
  next_token = NextToken(model_config(config, tokens.vocab_size))
  data = batches.Batches(
    tokens.train,
    config.data.context,
    config.batch_size,
    config.workers,
    config.seed,
    only,
    config.data.sharding,
  )
  return tasks.Task(
    objective=next_token,
    data=data,
    evaluator=functools.partial(evaluator, next_token, tokens),
    baselines=functools.partial(_baselines, config.data.source, tokens),
    source=tokens.corpus,
    sha256=tokens.corpus_sha256,
  )


def model_config(
  config: ml_collections.ConfigDict, vocab_size: int
) -> decoder.DecoderConfig:
  """Returns the model of a config."""
  return decoder.DecoderConfig(
    vocab_size=vocab_size, context=config.data.context, **config.model
  )


def evaluator(
  next_token: NextToken,
  tokens: text.Tokens,
  max_tokens: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[[optax.Params], tasks.Measures]:
  """Returns what measures parameters on the held-out text.

  Args:
    next_token: the model.
    tokens: the text.
    max_tokens: as in `batches.evaluation_windows`.
    mesh: as in `evaluate.estimates`.
  """
  context = next_token.model.context
  batch_size = max(1, _BATCH_TARGETS // context)
  windows = batches.evaluation_windows(
    tokens.validation, context, batch_size, max_tokens
  )

  def measure(params):
    (nats,) = evaluate.estimates(
      next_token.scores, params, [windows], mesh
    ).values()
    return measures(nats, tokens.bytes_per_token)

  return measure


def measures(
  nats: tasks.Estimate, bytes_per_token: float
) -> dict[str, tasks.Estimate]:
  """A loss in nats per token, and in units that people compare.

  No tokenizer can change bits per byte.
  """
  per_byte = 1 / bytes_per_token / math.log(2)
  # Of a loss beyond all floats, which a run may end at, too.
  perplexity = math.exp(min(nats.value, 700.0))
  return {
    'validation_loss': nats,
    'validation_bits_per_byte': tasks.Estimate(
      nats.value * per_byte, nats.error * per_byte
    ),
    'validation_perplexity': tasks.Estimate(
      perplexity, nats.error * perplexity
    ),
  }


@functools.cache
def _vocab_size(tokenizer: str) -> int:
  return tokenizers.get(tokenizer).vocab_size  # reads its files


def _tokens(data: ml_collections.ConfigDict) -> text.Tokens:
  if data.source == 'embedded':
    if data.path:
      raise errors.UserError(
        f'data.path={data.path!r} is for data.source=token_files; an embedded'
        ' corpus has none.'
      )
    return text.load(data.corpus, data.tokenizer)
  if data.source == 'token_files':
    return token_files.load(data.path, data.tokenizer)
  raise errors.unknown(
    'source of text', data.source, ('embedded', 'token_files')
  )


def _baselines(source: str, tokens: text.Tokens) -> dict[str, float]:
  if source != 'embedded':  # which may be too much to count
    return {}
  counting = baselines.compute(tokens)
  return {'unigram': counting.unigram, 'bigram': counting.bigram}
