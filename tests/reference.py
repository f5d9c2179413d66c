"""The published methods in plain NumPy, one worker after the other.

Each is transcribed from its paper for one flat vector of parameters and knows
nothing of JAX, of trees or of what travels on a wire. All arithmetic is in the
dtype of the vector that it is given, float64 in the tests.

A method has ``step(t, x, gradients)``: from the parameters ``x[i]`` of every
worker and their gradients at the step ``t = 0, 1, ...`` to their new ones. A
rate is a function of ``t``. Signs are the mathematical ones: sign(0) = 0.
"""

import numpy as np


def run(method, start, gradient, workers, steps):
  """Parameters ``[steps, workers, size]`` after each step.

  Args:
    method: one of the methods below, fresh.
    start: the vector from which all workers start.
    gradient: function of worker, step and that worker's parameters.
    workers: how many.
    steps: how many.
  """
  x = [start.copy() for _ in range(workers)]
  trajectory = []
  for t in range(steps):
    x = method.step(t, x, [gradient(i, t, x[i]) for i in range(workers)])
    trajectory.append(np.stack(x))
  return np.stack(trajectory)


def mean(vectors):
  """Full-precision average over workers."""
  return sum(vectors) / len(vectors)


def majority_vote(vectors):
  """sign(sum_i sign(v_i)), paper B's MaVo."""
  return np.sign(sum(np.sign(v) for v in vectors))


def sign_mean(vectors):
  """(1/N) sum_i sign(v_i), paper B's Avg."""
  return sum(np.sign(v) for v in vectors) / len(vectors)


# Paper B: a vote at every step.


class DistributedLion:
  """Algorithm 1 of Distributed Lion; the server is ``aggregate``.

  Args:
    say: what worker i says at step t of its direction, if not the direction.
    average_every: steps after which the momenta are averaged.
  """

  def __init__(
    self,
    rate,
    b1,
    b2,
    weight_decay,
    aggregate,
    say=lambda i, t, direction: direction,
    average_every=None,
  ):
    self.rate, self.b1, self.b2 = rate, b1, b2
    self.weight_decay, self.aggregate = weight_decay, aggregate
    self.say, self.average_every = say, average_every
    self.m = None

  def step(self, t, x, gradients):
    if self.m is None:
      self.m = [np.zeros_like(g) for g in gradients]
    deltas = []
    for i, g in enumerate(gradients):
      deltas.append(self.say(i, t, self.b1 * self.m[i] + (1 - self.b1) * g))
      self.m[i] = self.b2 * self.m[i] + (1 - self.b2) * g
    if self.average_every and (t + 1) % self.average_every == 0:
      self.m = [mean(self.m) for _ in self.m]
    delta = self.aggregate(deltas)
    rate = self.rate(t)
    return [xi - rate * (delta + self.weight_decay * xi) for xi in x]


class DistributedSignum:
  """The vote on the momentum itself."""

  def __init__(self, rate, beta, weight_decay, aggregate):
    self.rate, self.beta = rate, beta
    self.weight_decay, self.aggregate = weight_decay, aggregate
    self.m = None

  def step(self, t, x, gradients):
    if self.m is None:
      self.m = [np.zeros_like(g) for g in gradients]
    for i, g in enumerate(gradients):
      self.m[i] = self.beta * self.m[i] + (1 - self.beta) * g
    delta = self.aggregate(self.m)
    rate = self.rate(t)
    return [xi - rate * (delta + self.weight_decay * xi) for xi in x]


# Compressed gradients at every step, the baselines of paper B. ``layers`` gives
# the slices of a vector that are its layers; ``dice`` what worker i throws at
# step t: uniform numbers from [0, 1) and coins, for each element.


def randomized_sign(v, bound, dice):
  """+-1 with probability 1/2 +- v / 2B: the sign itself, or a coin; 0 stays."""
  uniform, heads = dice
  sure = (uniform < np.abs(v) / bound) | (v == 0)
  return np.where(sure, np.sign(v), np.where(heads, 1, -1))


class TernGrad:
  """Ternary gradients: layer-wise scales that workers share, and clipping."""

  def __init__(self, rate, momentum, clip_factor, layers, dice):
    self.rate, self.momentum, self.clip_factor = rate, momentum, clip_factor
    self.layers, self.dice, self.m = layers, dice, 0.0

  def step(self, t, x, gradients):
    result = np.zeros_like(x[0])
    thrown = [self.dice(i, t, g.size) for i, g in enumerate(gradients)]
    for layer in self.layers(result.size):
      clipped = []
      for g in gradients:
        most = self.clip_factor * np.sqrt(np.mean(g[layer] ** 2))
        clipped.append(np.clip(g[layer], -most, most))
      s = max(np.max(np.abs(g)) for g in clipped)
      if s:
        ternary = [
          np.sign(g) * (uniform[layer] < np.abs(g) / s)
          for g, (uniform, _) in zip(clipped, thrown, strict=True)
        ]
        result[layer] = s * mean(ternary)
    self.m = self.momentum * self.m + result
    return [xi - self.rate(t) * self.m for xi in x]


def is_among_largest(v, density, layers):
  """Where the k largest magnitudes of each layer are, k rounded up."""
  chosen = np.zeros(v.size, bool)
  for layer in layers(v.size):
    k = int(np.ceil(density * v[layer].size))
    places = np.argsort(-np.abs(v[layer]), kind='stable')[:k]
    chosen[np.arange(v.size)[layer][places]] = True
  return chosen


class GradDrop:
  """Gradient dropping: what is not sent is added to the next gradient."""

  def __init__(self, rate, density, momentum, layers):
    self.rate, self.density, self.momentum = rate, density, momentum
    self.layers, self.residual, self.m = layers, None, 0.0

  def step(self, t, x, gradients):
    if self.residual is None:
      self.residual = [np.zeros_like(g) for g in gradients]
    sent = []
    for i, g in enumerate(gradients):
      p = g + self.residual[i]
      sent.append(p * is_among_largest(p, self.density, self.layers))
      self.residual[i] = p - sent[i]
    self.m = self.momentum * self.m + mean(sent)
    return [xi - self.rate(t) * self.m for xi in x]


class DeepGradientCompression:
  """Algorithm of DGC: clipping, momentum correction, masking, warm-up.

  ``density`` is a function of the step.
  """

  def __init__(self, rate, density, momentum, max_norm, layers):
    self.rate, self.density, self.momentum = rate, density, momentum
    self.max_norm, self.layers = max_norm, layers
    self.u = self.v = None

  def step(self, t, x, gradients):
    if self.u is None:
      self.u = [np.zeros_like(g) for g in gradients]
      self.v = [np.zeros_like(g) for g in gradients]
    sent = []
    for i, g in enumerate(gradients):
      threshold = self.max_norm / np.sqrt(len(gradients))
      g = g * min(1.0, threshold / np.linalg.norm(g))
      self.u[i] = self.momentum * self.u[i] + g
      self.v[i] = self.v[i] + self.u[i]
      mask = is_among_largest(self.v[i], self.density(t), self.layers)
      sent.append(self.v[i] * mask)
      self.v[i] = self.v[i] * ~mask
      self.u[i] = self.u[i] * ~mask
    return [xi - self.rate(t) * mean(sent) for xi in x]


# Means of rounded vectors. ``rounding`` gives, for vectors of a size on n
# workers, the slices that are blocks, and uniform numbers from [0, 1) for each
# element: ``up`` of worker i and ``down`` of the mean, at step t.


def scale(most, levels):
  """The smallest bfloat16 whose multiple reaches the largest magnitude."""
  word = np.float32(most / levels).view(np.uint32) & np.uint32(0xFFFF0000)
  short = float(word.view(np.float32)) * levels < most
  return float((word + np.uint32(short << 16)).view(np.float32))


def quantize(v, bits, blocks, uniform):
  """QSGD for each block: to a level next to it, right in expectation."""
  result = np.zeros_like(v)
  for block in blocks:
    s = scale(np.max(np.abs(v[block])), 2 ** (bits - 1) - 1)
    if s:
      size = np.abs(v[block]) / s
      level = np.floor(size) + (uniform[block] < size % 1)
      result[block] = s * np.sign(v[block]) * level
  return result


class QuantizedMean:
  """Every worker's vector is rounded and, if ``twice``, their mean again."""

  def __init__(self, bits, rounding, twice=True):
    self.bits, self.rounding, self.twice = bits, rounding, twice
    self.t = 0

  def __call__(self, vectors):
    layout = vectors[0].size, len(vectors)
    blocks = self.rounding.blocks(*layout)
    result = mean(
      [
        quantize(v, self.bits, blocks, self.rounding.up(i, self.t, *layout))
        for i, v in enumerate(vectors)
      ]
    )
    if self.twice:
      uniform = self.rounding.down(self.t, *layout)
      result = quantize(result, self.bits, blocks, uniform)
    self.t += 1
    return result


# One machine; also the base optimizers of local steps.


class Sgd:
  def __init__(self, rate):
    self.rate = rate

  def local(self, t, x, g):
    return x - self.rate(t) * g


class AdamW:
  """Adam with decoupled decay, both corrections of the bias."""

  def __init__(self, rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-4):
    self.rate, self.b1, self.b2 = rate, b1, b2
    self.eps, self.weight_decay = eps, weight_decay
    self.count, self.m, self.v = 0, 0.0, 0.0

  def local(self, t, x, g):
    self.count += 1
    self.m = self.b1 * self.m + (1 - self.b1) * g
    self.v = self.b2 * self.v + (1 - self.b2) * g * g
    m = self.m / (1 - self.b1**self.count)
    v = self.v / (1 - self.b2**self.count)
    direction = m / (np.sqrt(v) + self.eps) + self.weight_decay * x
    return x - self.rate(t) * direction


class Lion:
  def __init__(self, rate, b1=0.9, b2=0.99, weight_decay=1e-3):
    self.rate, self.b1, self.b2 = rate, b1, b2
    self.weight_decay = weight_decay
    self.m = 0.0

  def local(self, t, x, g):
    direction = np.sign(self.b1 * self.m + (1 - self.b1) * g)
    self.m = self.b2 * self.m + (1 - self.b2) * g
    return x - self.rate(t) * (direction + self.weight_decay * x)


class MeanGradient:
  """Data parallel training: one optimizer on the mean gradient."""

  def __init__(self, base, mean=mean):
    self.base, self.mean = base, mean

  def step(self, t, x, gradients):
    new = self.base.local(t, x[0], self.mean(gradients))
    return [new.copy() for _ in x]


# Paper A and its relatives: local steps, then an outer step.


class LocalSteps:
  """Every worker by itself; every ``sync_every`` steps ``outer.round``.

  Args:
    base: makes the base optimizer of one worker.
    outer: the outer rule, from the shared point, every worker's end point and
      the rate of the round to the new shared point.
    sync_every: tau.
    rate: gamma, whose mean over the round is the rate of the round; None: the
      outer rule takes displacements as they are. A round of rate 0 is void.
  """

  def __init__(self, base, outer, sync_every, rate=None):
    self.base, self.outer, self.sync_every = base, outer, sync_every
    self.rate = rate
    self.workers, self.anchor, self.rates = None, None, []

  def step(self, t, x, gradients):
    if self.workers is None:
      self.workers = [self.base() for _ in x]
      self.anchor = x[0].copy()
    x = [
      worker.local(t, xi, g)
      for worker, xi, g in zip(self.workers, x, gradients, strict=True)
    ]
    self.rates.append(1.0 if self.rate is None else self.rate(t))
    if len(self.rates) == self.sync_every:
      gamma = sum(self.rates) / self.sync_every
      if gamma:
        self.anchor = self.outer.round(self.anchor, x, gamma)
      self.rates = []
      x = [self.anchor.copy() for _ in x]
    return x


def displacement(anchor, ends, gamma, mean=mean):
  """Pseudo-gradient (x0 - mean_i x_i) / gamma: start minus end."""
  return mean([(anchor - end) / gamma for end in ends])


class SignMomentum:
  """Paper A: Lion on the pseudo-gradient, decay on the shared point."""

  def __init__(self, eta=1.0, b1=0.95, b2=0.98, weight_decay=0.1, mean=mean):
    self.eta, self.b1, self.b2 = eta, b1, b2
    self.weight_decay, self.mean = weight_decay, mean
    self.m = 0.0

  def round(self, anchor, ends, gamma):
    g = displacement(anchor, ends, gamma, self.mean)
    c = self.b1 * self.m + (1 - self.b1) * g
    self.m = self.b2 * self.m + (1 - self.b2) * g
    x = anchor * (1 - self.weight_decay * self.eta * gamma)
    return x - self.eta * gamma * np.sign(c)


class OneBitSignMomentum:
  """A x B: each worker's own outer momentum, and a vote on the directions.

  With ``layers``, each worker adds to its direction what its last sign, taken
  with the mean magnitude of a layer, has missed.
  """

  def __init__(self, eta=1.0, b1=0.95, b2=0.98, weight_decay=0.1, layers=None):
    self.eta, self.b1, self.b2 = eta, b1, b2
    self.weight_decay, self.layers = weight_decay, layers
    self.m = self.residual = None

  def round(self, anchor, ends, gamma):
    if self.m is None:
      self.m = [np.zeros_like(anchor) for _ in ends]
      self.residual = [np.zeros_like(anchor) for _ in ends]
    directions = []
    for i, end in enumerate(ends):
      g = (anchor - end) / gamma
      directions.append(self.b1 * self.m[i] + (1 - self.b1) * g)
      self.m[i] = self.b2 * self.m[i] + (1 - self.b2) * g
      if self.layers:
        directions[i] = directions[i] + self.residual[i]
        for layer in self.layers(anchor.size):
          c = directions[i][layer]
          self.residual[i][layer] = c - np.mean(np.abs(c)) * np.sign(c)
    delta = majority_vote(directions)
    return anchor - self.eta * gamma * (delta + self.weight_decay * anchor)


class SlowMo:
  """u = beta u + g, x -= alpha gamma u."""

  def __init__(self, alpha=1.0, beta=0.5):
    self.alpha, self.beta, self.u = alpha, beta, 0.0

  def round(self, anchor, ends, gamma):
    self.u = self.beta * self.u + displacement(anchor, ends, gamma)
    return anchor - self.alpha * gamma * self.u


class SignedSlowMo:
  """The sign of SlowMo's buffer."""

  def __init__(self, alpha=1.0, beta=0.95, weight_decay=0.0):
    self.alpha, self.beta, self.u = alpha, beta, 0.0
    self.weight_decay = weight_decay

  def round(self, anchor, ends, gamma):
    self.u = self.beta * self.u + displacement(anchor, ends, gamma)
    direction = np.sign(self.u) + self.weight_decay * anchor
    return anchor - self.alpha * gamma * direction


class Nesterov:
  """DiLoCo's outer step: b = mu b + D, x -= alpha (mu b + D)."""

  def __init__(self, alpha=0.7, momentum=0.9):
    self.alpha, self.momentum, self.b = alpha, momentum, 0.0

  def round(self, anchor, ends, gamma):
    d = displacement(anchor, ends, gamma)
    self.b = self.momentum * self.b + d
    return anchor - self.alpha * (self.momentum * self.b + d)


class Lookahead:
  """phi += alpha (mean_i theta_i - phi); alpha = 1 is local averaging."""

  def __init__(self, alpha=0.5):
    self.alpha = alpha

  def round(self, anchor, ends, gamma):
    del gamma
    return anchor + self.alpha * (mean(ends) - anchor)


# What optax's wrappers do to a method.


class Accumulated:
  """One step for the mean gradient of every ``every`` steps."""

  def __init__(self, method, every):
    self.method, self.every, self.seen = method, every, []

  def step(self, t, x, gradients):
    self.seen.append(gradients)
    if len(self.seen) < self.every:
      return x
    means = [mean(own) for own in zip(*self.seen, strict=True)]
    self.seen = []
    return self.method.step(t // self.every, x, means)


class PassedThrough:
  """No method: the gradient itself is the update."""

  def step(self, t, x, gradients):
    del t
    return [xi + g for xi, g in zip(x, gradients, strict=True)]


class Partitioned:
  """``first`` for the elements of a mask, ``second`` for the others.

  Neither knows of the other's.
  """

  def __init__(self, mask, first, second):
    self.mask, self.first, self.second = mask, first, second

  def step(self, t, x, gradients):
    new = [np.empty_like(xi) for xi in x]
    for mask, method in ((self.mask, self.first), (~self.mask, self.second)):
      parts = [xi[mask] for xi in x], [g[mask] for g in gradients]
      for xi, part in zip(new, method.step(t, *parts), strict=True):
        xi[mask] = part
    return new
