"""One worker of `experiments.bench_wire`: measures exchanges with the others.

    python -m experiments.wire_worker TASK FILE

`TASK` is a `Task` as JSON. The worker makes every exchange in turn with the
others, all at once, and writes to `FILE` what it saw: a list of `Cell`s. It has
to run in one of the hosts of `experiments.network`.

Before an exchange that is timed, the workers wait for each other. Where they
begin at different times, gloo may use a connection in one direction after the
other: who comes late first sends all it has, if others are ready for it, and
only then says that it is ready itself. Two workers then take twice as long. In
rounds of local steps they begin when they are ready, as in training.

A *local step* is a wait of fixed length: it stands for an accelerator that
computes while this machine's processors, which all workers share, have nothing
to do.
"""

from collections.abc import Callable, Sequence
import dataclasses
import json
import math
import pathlib
import signal
import sys
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from experiments import exchanges, hosts, network
from signmomentum import wire

_FASTEST = 1e-3  # seconds, of an exchange whose link takes no time
_MOST, _MOST_ROUNDS = 30, 5  # repeats
_LIMIT = 1800  # seconds, after which something must be wrong


@dataclasses.dataclass(frozen=True)
class Task:
  """What the workers are to measure.

  Attributes:
    names: keys of `exchanges.EXCHANGES`.
    leaves: numbers of leaves, each measured.
    parameters: in all leaves together.
    rate: of the link that they have, in bits per second; None: unlimited.
    latency: of the link, in seconds.
    local_steps: numbers of local steps between exchanges, each measured.
    step_seconds: what a local step takes.
    seconds: to spend on each measurement; slow ones take two exchanges at least
      and a round of local steps.
    seed: of what is exchanged.
  """

  names: Sequence[str]
  leaves: Sequence[int]
  parameters: int
  rate: float | None
  latency: float
  local_steps: Sequence[int]
  step_seconds: float
  seconds: float
  seed: int


@dataclasses.dataclass(frozen=True)
class Cell:
  """What one worker saw of one exchange.

  Attributes:
    name: a key of `exchanges.EXCHANGES`.
    leaves: of the tree.
    collectives: of the compiled program, their kinds.
    compiled_bytes: that the compiled program sends, says its text.
    hops: messages that wait for one another, in a ring.
    seconds: of each exchange, from when all are there.
    sent_bytes: by the interface, in whole frames, in an exchange on average;
      waiting for each other is in it.
    frames: likewise.
    processor_seconds: that this worker computes, and handles what it sends and
      receives, in an exchange on average.
    steps_per_second: by the local steps in a round, of each round.
    ceiling: the same without any exchange.
  """

  name: str
  leaves: int
  collectives: Sequence[str]
  compiled_bytes: float
  hops: float
  seconds: Sequence[float]
  sent_bytes: float
  frames: float
  processor_seconds: float
  steps_per_second: dict[str, Sequence[float]]
  ceiling: dict[str, Sequence[float]]


def measure(task: Task) -> list[Cell]:
  """Measures all exchanges of a task; all workers call it at once."""
  mesh = exchanges.mesh(jax.devices())
  ceiling = {
    str(steps): _rates(task, steps, _MOST_ROUNDS, lambda: None)
    for steps in task.local_steps
  }
  return [
    _measure(task, name, leaves, mesh, ceiling)
    for leaves in task.leaves
    for name in task.names
  ]


def _measure(
  task: Task,
  name: str,
  leaves: int,
  mesh: jax.sharding.Mesh,
  ceiling: dict[str, list[float]],
) -> Cell:
  sizes = exchanges.leaf_sizes(task.parameters, leaves)
  compiled, state = exchanges.build(name, mesh, sizes)
  updates = _updates(task.seed, mesh, sizes)

  def exchange():
    jax.block_until_ready(compiled(updates, state))

  found = wire.collectives(compiled)
  rate = task.rate or math.inf
  sent = wire.exchange_seconds(found, wire.Link(1.0)) / 8
  hops = wire.exchange_seconds(found, wire.Link(math.inf, 1.0))
  # The number of repeats must be the same for all, so it follows from the task.
  seconds = max(_FASTEST, 8 * sent / rate + hops * task.latency)
  repeats = min(_MOST, max(2, int(task.seconds / seconds)))
  meet = _meeting(mesh)
  exchange()  # connects
  before = _sent()
  busy = time.process_time()
  times = [_timed(exchange, meet) for _ in range(repeats)]
  busy = time.process_time() - busy
  after = _sent()
  rates = {
    str(steps): _rates(
      task,
      steps,
      int(task.seconds / (seconds + steps * task.step_seconds)),
      exchange,
    )
    for steps in task.local_steps
  }
  return Cell(
    name=name,
    leaves=leaves,
    collectives=[c.kind for c in found if c.sent_bytes],
    compiled_bytes=sent,
    hops=hops,
    seconds=times,
    sent_bytes=(after.bytes - before.bytes) / repeats,
    frames=(after.frames - before.frames) / repeats,
    processor_seconds=busy / repeats,
    steps_per_second=rates,
    ceiling=ceiling,
  )


def _updates(
  seed: int, mesh: jax.sharding.Mesh, sizes: Sequence[int]
) -> list[jax.Array]:
  own = jax.NamedSharding(mesh, jax.P(exchanges.AXIS))
  draws = np.random.default_rng([seed, jax.process_index()])

  def array(size):
    here = draws.standard_normal((1, size), np.float32)
    return jax.make_array_from_process_local_data(own, here)

  return [array(size) for size in sizes]


def _rates(
  task: Task, steps: int, rounds: int, exchange: Callable[[], Any]
) -> list[float]:
  """Local steps per second, in each of some rounds."""

  def one_round():
    for _ in range(steps):
      time.sleep(task.step_seconds)
    exchange()

  rounds = min(_MOST_ROUNDS, max(1, rounds))
  return [steps / _timed(one_round) for _ in range(rounds)]


def _meeting(mesh: jax.sharding.Mesh) -> Callable[[], Any]:
  """Returns what waits until all workers call it: the shortest exchange."""
  here = _updates(0, mesh, [1])
  compiled, state = exchanges.build('fp32_mean', mesh, [1])
  return lambda: jax.block_until_ready(compiled(here, state))


def _timed(
  call: Callable[[], Any], first: Callable[[], Any] = lambda: None
) -> float:
  first()
  began = time.perf_counter()
  call()
  return time.perf_counter() - began


def _sent() -> network.Sent:
  """What this host has sent, when no worker has anything left to send."""
  multihost_utils.sync_global_devices('sent')
  sent = network.sent()
  multihost_utils.sync_global_devices('seen')
  return sent


def main() -> None:
  """Joins the others, measures and writes."""
  task, file = sys.argv[1:]
  signal.alarm(_LIMIT)
  with hosts.joined(True):
    cells = measure(Task(**json.loads(task)))
    rows = [dataclasses.asdict(cell) for cell in cells]
    pathlib.Path(file).write_text(json.dumps(rows))


if __name__ == '__main__':
  main()
