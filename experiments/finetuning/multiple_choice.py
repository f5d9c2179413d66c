"""How often a model finds the right one of several answers likeliest.

The prompt is a few questions of the training file with their right answers, the
same for all, and then the question. An answer is as likely as the model says
the product of its tokens is (`accuracy`), or as that per byte of the answer
(`accuracy_per_byte`), which does not favour short ones. The two are `acc` and,
but for what is not ASCII, `acc_norm` of lm-evaluation-harness.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import errors, tasks
from experiments.finetuning import questions, vocabularies
from experiments.models import decoder

# How many targets a batch has, for speed and memory only.
_BATCH_TARGETS = 4096
# Rows are filled up to powers of two from here on: few programs to compile.
_SHORTEST = 32
_BETWEEN = '\n\n'


@dataclasses.dataclass(frozen=True)
class Result:
  """How well a model chooses.

  Attributes:
    questions: how many there were.
    shots: examples before each question, if they all have room.
    accuracy: share of right choices, by likelihood.
    accuracy_per_byte: the same, by likelihood per byte.
    shots_dropped: how many examples had no room before their question, of
      `questions` times `shots`.
    cut: how many questions lost their beginning, as they have no room alone.
  """

  questions: int
  shots: int
  accuracy: tasks.Estimate
  accuracy_per_byte: tasks.Estimate
  shots_dropped: int
  cut: int


class Request(NamedTuple):
  """A prompt with an answer: ids, and which targets are of the answer."""

  ids: np.ndarray
  start: int


def evaluate(
  model: decoder.DecoderConfig,
  params: optax.Params,
  vocabulary: vocabularies.Vocabulary,
  asked: Sequence[questions.Question],
  examples: Sequence[questions.Question],
  shots: int,
  seed: int,
) -> Result:
  """Asks a model.

  Args:
    model: the model.
    params: its parameters.
    vocabulary: of its tokens.
    asked: the questions.
    examples: to draw the shots from.
    shots: how many to draw.
    seed: of the draw.

  Raises:
    UserError: if there are fewer examples than shots, or no questions.
  """
  if not asked:
    raise errors.UserError('There are no questions.')
  if not 0 <= shots <= len(examples):
    raise errors.UserError(
      f'shots={shots} must be between 0 and {len(examples)}, the number of'
      ' questions in the training file.'
    )
  drawn = np.random.default_rng(seed).permutation(len(examples))[:shots]
  before = [examples[i].prompt + _right(examples[i]) for i in drawn]
  requests, dropped, cut = [], 0, 0
  for question in asked:
    kept, own = _requests(question, before, vocabulary, model.context)
    dropped += shots - kept
    cut += any(request.ids.size > model.context + 1 for request in own)
    requests += [_fitting(request, model.context) for request in own]
  scores = iter(score(model, params, requests))
  right, right_per_byte = [], []
  for question in asked:
    each = np.array([next(scores) for _ in question.choices])
    # Without the space that they begin with, as if they stood alone.
    sizes = [len(choice.strip().encode()) or 1 for choice in question.choices]
    right.append(_chosen(each) == question.answer)
    right_per_byte.append(_chosen(each / sizes) == question.answer)
  return Result(
    questions=len(asked),
    shots=shots,
    accuracy=_share(right),
    accuracy_per_byte=_share(right_per_byte),
    shots_dropped=dropped,
    cut=cut,
  )


def score(
  model: decoder.DecoderConfig,
  params: optax.Params,
  requests: Sequence[Request],
) -> list[float]:
  """Returns the logarithms of the probabilities of answers.

  Args:
    model: the model.
    params: its parameters.
    requests: with at most `model.context + 1` ids.
  """
  lengths = {}
  for i, request in enumerate(requests):
    least = max(_SHORTEST, request.ids.size - 1)
    length = min(2 ** math.ceil(math.log2(least)), model.context)
    lengths.setdefault(length, []).append(i)
  scores = [0.0] * len(requests)
  for length, members in sorted(lengths.items()):
    size = max(1, _BATCH_TARGETS // length)
    for first in range(0, len(members), size):
      batch = members[first : first + size]
      tokens = np.zeros((size, length + 1), np.int32)
      mask = np.zeros((size, length), bool)
      for row, i in enumerate(batch):
        ids, start = requests[i]
        tokens[row, : ids.size] = ids
        # The first of all has nothing before it to be predicted from.
        mask[row, max(0, start - 1) : ids.size - 1] = True
      found = np.asarray(_score(model, params, tokens, mask), np.float64)
      for row, i in enumerate(batch):
        scores[i] = float(found[row])
  return scores


@functools.partial(jax.jit, static_argnums=0)
def _score(
  model: decoder.DecoderConfig,
  params: Any,
  tokens_BxL: jax.Array,
  mask_BxL: jax.Array,
) -> jax.Array:
  logits_BxLxV = decoder.apply(model, params, tokens_BxL[:, :-1])
  nats_BxL = decoder.nats(logits_BxLxV, tokens_BxL[:, 1:])
  return -jnp.sum(jnp.where(mask_BxL, nats_BxL, 0), axis=-1)


def _requests(
  question: questions.Question,
  before: Sequence[str],
  vocabulary: vocabularies.Vocabulary,
  context: int,
) -> tuple[int, list[Request]]:
  """Returns how many shots have room, the last ones, and a request a choice."""
  for kept in range(len(before), -1, -1):
    texts = [*before[len(before) - kept :], question.prompt]
    prompt = _BETWEEN.join(texts)
    own = [
      Request(*vocabulary.pair(prompt, choice)) for choice in question.choices
    ]
    # All choices after the same prompt, or they could not be compared.
    if all(request.ids.size <= context + 1 for request in own):
      break
  return kept, own


def _fitting(request: Request, context: int) -> Request:
  """Leaves away the beginning of what is too long, as there is no other way."""
  excess = max(0, request.ids.size - context - 1)
  return Request(request.ids[excess:], max(0, request.start - excess))


def _right(question: questions.Question) -> str:
  return question.choices[question.answer]


def _chosen(scores: np.ndarray) -> int:
  # Of what is no number nothing is chosen.
  return int(np.argmax(scores)) if np.isfinite(scores).all() else -1


def _share(hits: Sequence[bool]) -> tasks.Estimate:
  mean = float(np.mean(hits))
  return tasks.Estimate(
    mean, math.sqrt(mean * (1 - mean) / max(1, len(hits) - 1))
  )
