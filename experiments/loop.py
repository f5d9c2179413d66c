"""The training loop: rounds of local steps, from a config to a table."""

import dataclasses
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from experiments import (
  assembly,
  checkpoints,
  errors,
  evaluate,
  executors,
  hosts,
  interrupts,
  losses,
  memory,
  metrics,
  progress,
  provenance,
  report,
  tasks,
  traffic,
)
import signmomentum as sm

_STOPPING = (
  'Stopping after this round, with a checkpoint. Once more: stop now, without.'
)


def train(
  config: ml_collections.ConfigDict,
  workdir: str | os.PathLike,
  workers: str = 'simulated',
  stop_at_step: int | None = None,
) -> report.Summary | None:
  """Trains, or goes on where an earlier call with this directory stopped.

  SIGTERM and SIGINT end it with a checkpoint, after the round that is being
  computed; one of several processes is enough, and a few rounds later all of
  them know. A second signal acts as it always did. A run that is finished shows
  its table again.

  Args:
    config: the experiment.
    workdir: the run's directory.
    workers: a key of `executors.EXECUTORS`.
    stop_at_step: stop there with a checkpoint, in the middle of a round if need
      be.

  Returns:
    the summary, or None if the run stopped before its end.

  Raises:
    UserError: for a mistake in the config, the directory or the devices.
    FloatingPointError: a loss or a gradient is not finite; the message names
      the step and the worker.
  """
  assembly.check(config)
  team = executors.get(workers, config.workers)
  workdir = pathlib.Path(workdir)
  if hosts.first():
    provenance.record(config, workdir)
  summary = report.load(workdir)
  if summary is None:
    with interrupts.listening(_STOPPING if hosts.first() else '') as wish:
      end = min(config.num_steps, stop_at_step or config.num_steps)
      summary = _train(config, workdir, team, end, wish)
  if summary is not None:
    hosts.say(report.table(summary))
  return summary


def _train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  team: sm.Workers,
  end: int,
  wish: interrupts.Wish,
) -> report.Summary | None:
  clock = _Clock()
  run = assembly.build(config, team)
  exchange = run.exchange
  bits = traffic.bits_per_parameter(
    run.tx, run.params, config.workers, config.sync_every, run.faults
  )
  objective = run.task.objective
  measure = run.task.evaluator(config.eval_limit, team.mesh)
  run_round = run.program()
  step, batches = 0, run.batches(0)
  hosts.say(f'Data: {run.task.source}, sha256 {run.task.sha256}.')
  hosts.say('Compiling; this takes a while.')
  # It is the program of all calls; the state does not exist yet.
  compiled = run_round.lower(
    run.state_shapes(), *run.arguments(batches, 0, 0, config.sync_every)
  ).compile()
  peak = memory.peak_bytes(compiled)
  memory.require(peak, 1 if team.mesh is None else jax.local_device_count())
  hosts.say(f'A round needs {memory.shown(peak)} on each device.')

  # To go on where a run stopped:
  # 1. Make the state that it began with, for structure, shapes and devices.
  # 2. Read the newest checkpoint in its place: state, step, sums for the log.
  # 3. Cut off what the log says of later steps.
  # 4. Data and dropout need nothing: they are functions of seed and step.
  state = run.state()
  sums = losses.Losses()
  store = checkpoints.Checkpoints(workdir)
  hosts.require_same('the newest checkpoint', store.latest() or 0)
  if store.latest() is not None:
    step, state, position = store.restore(state)
    hosts.say(f'Goes on from step {step:,} of {config.num_steps:,}.')
    _require_same_data(position, run.task)
    sums = losses.Losses(**position['losses'])
    clock = dataclasses.replace(clock, earlier=position['seconds'])
  log = hosts.only_first(lambda: metrics.Metrics(workdir, step))
  bar = hosts.only_first(
    lambda: progress.Progress(
      config.num_steps * run.units_per_step,
      step * run.units_per_step,
      objective.unit,
    )
  )
  # A wish to stop that has been heard of everywhere.
  known = wish if exchange.alone else interrupts.Wish()

  def settle(rnd: _Round | None) -> None:
    """Waits for the losses of a round, to show and to log them."""
    if rnd is None:
      return
    nats, norms, wishes = jax.device_get(rnd.outputs)
    known.number = known.number or int(wishes.max())
    made = np.s_[:, rnd.start : rnd.stop]
    sums.add(rnd.first + rnd.start, nats[made], norms[made])
    bar.advance((rnd.stop - rnd.start) * run.units_per_step, sums.last)
    done = rnd.first + rnd.stop
    if done % config.log_every == 0:
      log.write(done, sums.pop() | progressed(done))

  def progressed(step: int) -> dict[str, float]:
    seconds = clock.seconds()
    return {
      objective.unit: step * run.units_per_step,
      'epochs': run.task.data.epoch(step),
      **traffic.sent(bits, run.parameters, step, seconds),
      'seconds': seconds,
    }

  with store, log, bar:
    in_flight = None
    if step:
      batches = run.batches(step)
    while step < end and not known.signal:
      first = step - step % config.sync_every
      rnd = _Round(first, step - first, min(config.sync_every, end - first))
      state, outputs = run_round(state, *run.arguments(batches, *rnd[:3]))
      outputs = exchange.gather(outputs, wish.number)
      before, in_flight = in_flight, rnd._replace(outputs=outputs)
      step = first + rnd.stop
      # The host prepares the next round, and looks at the one before, while
      # the devices compute.
      batches = run.batches(step)
      settle(before)

      if step % config.eval_every == 0:
        settle(in_flight)
        in_flight = None
        measures = measure(evaluate.shared_params(state))
        log.write(step, report.flat(measures) | progressed(step))
        bar.evaluated(report.headline(measures))
      if step % config.checkpoint_every == 0:
        settle(in_flight)
        in_flight = None
        log.flush()
        store.save(step, state, _position(sums, clock, run.task))
    settle(in_flight)
    log.flush()
    store.save(step, state, _position(sums, clock, run.task))

  if step < config.num_steps:
    hosts.say(
      f'Stopped at step {step:,} of {config.num_steps:,}'
      f'{f" by {known.signal}" if known.signal else ""}, with a checkpoint. The'
      ' same command goes on.'
    )
    return None
  measures = run.task.evaluator(None, team.mesh)(evaluate.shared_params(state))
  facts = {
    'steps': step,
    'parameters': run.parameters,
    'seen': step * run.units_per_step,
    'epochs': run.task.data.epoch(step),
    'bits': bits,
    'peak_bytes': peak,
    'seconds': clock.seconds(),
  }
  summary = _summary(config, run.task, measures, facts)
  if hosts.first():
    report.draw(summary, workdir)
    report.save(summary, workdir)
  return summary


def _summary(
  config: ml_collections.ConfigDict,
  task: tasks.Task,
  measures: tasks.Measures,
  facts: dict[str, Any],
) -> report.Summary:
  """Adds to measures what they are to be compared with."""
  return report.Summary(
    method=config.method,
    workers=config.workers,
    sync_every=config.sync_every,
    seed=config.seed,
    unit=task.objective.unit,
    measures=dict(measures),
    baselines=dict(task.baselines()),
    all_reduce_bits=traffic.all_reduce_bits(config.workers),
    source=task.source,
    sha256=task.sha256,
    **facts,
  )


class _Round(NamedTuple):
  """Steps `first + start` to `first + stop` and what comes out of them."""

  first: int
  start: int
  stop: int
  outputs: Any = None  # losses, norms and wishes to stop, of all workers


@dataclasses.dataclass(frozen=True)
class _Clock:
  """Wall time of a run, earlier calls included."""

  earlier: float = 0.0
  began: float = dataclasses.field(default_factory=time.monotonic)

  def seconds(self) -> float:
    return self.earlier + time.monotonic() - self.began


def _position(sums: losses.Losses, clock: _Clock, task: tasks.Task) -> dict:
  return {
    'losses': dataclasses.asdict(sums),
    'seconds': clock.seconds(),
    'sha256': task.sha256,
  }


def _require_same_data(position: dict, task: tasks.Task) -> None:
  before = position.get('sha256', task.sha256)
  if before != task.sha256:
    raise errors.UserError(
      f'The data {task.source} has sha256 {task.sha256}; what the run was'
      f' trained on had {before}. Bring that back, or begin another run with'
      ' another --workdir.'
    )
