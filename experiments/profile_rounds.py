r"""Shows where the time of a training run goes.

    python -m experiments.profile_rounds --config=configs/gpt2_nano.py \
      --workdir=runs/profile --trace

1. The program of a round is compiled: seconds, and the memory that it needs.
2. Rounds follow each other as in training: the same program on the buffers of
   the state before, while the host prepares the next input and then waits for
   the losses of the round before. From the second round on nothing may be
   compiled: that is an error. (Logs, evaluations and checkpoints are left out.)
3. A round by itself takes turns with two that do less: one does not end, with
   no exchange and no outer step of `local_steps`; one only has the gradients.
   The differences are what the rest takes. A method that exchanges at every
   step does so in its updates of every step.
4. With --trace, WORKDIR/trace has a few rounds for TensorBoard or Perfetto
   (ui.perfetto.dev opens perfetto_trace.json.gz), and the operations that take
   most of the time are listed.

Simulated workers exchange within one device. What a network adds is measured by
`experiments.bench_wire`.
"""

from collections.abc import Callable, Sequence
import itertools
import json
import pathlib
import statistics
import time
from typing import Any

from absl import flags
import jax
import optax

from experiments import (
  assembly,
  compilations,
  config,
  entry,
  executors,
  outputs,
  provenance,
  traces,
  turns,
)
import signmomentum as sm

_CONFIG = flags.DEFINE_string(
  'config', None, 'Config file, as of experiments.train.', required=True
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where to write profile.json and the trace.', required=True
)
_WORKERS = flags.DEFINE_enum(
  'workers',
  'simulated',
  list(executors.EXECUTORS),
  'Whether one device simulates the workers, or each device is one.',
)
_CPU_DEVICES = flags.DEFINE_integer(
  'cpu_devices', None, 'How many virtual devices to make of the CPU.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 20, 'Rounds, and turns of each kind of round.', lower_bound=2
)
_TRACE = flags.DEFINE_bool('trace', False, 'Record a trace.')
_STAGES = ('trace', 'lower', 'compile')
_TRACED_ROUNDS = 3
_OPERATIONS = 10  # that are listed


def measure(
  run: assembly.Assembly, rounds: int, folder: pathlib.Path | None = None
) -> dict[str, Any]:
  """Measures the rounds of a run.

  Args:
    run: what is run.
    rounds: how many in a row, and turns of each kind of round.
    folder: where to record a trace; None: nowhere.

  Returns:
    seconds, bytes and counts: see `table`.

  Raises:
    RuntimeError: something was compiled after the first round.
  """
  program = run.program()
  state = run.state()
  figures = _compile(program, state, _arguments(run, 0))
  state = _in_a_row(run, program, state, 0, 1)[0]
  with compilations.forbidden('after the first round'):
    state, laps = _in_a_row(run, program, state, 1, rounds)
  # The first of them did not wait for the round before.
  host = {
    name: statistics.median(lap[name] for lap in laps[1:]) for name in laps[0]
  }
  seconds = statistics.median(sum(lap.values()) for lap in laps[1:])
  steps = run.config.sync_every
  figures |= {
    'compilations_after_the_first_round': 0,
    'round_seconds': seconds,
    'units_per_second': steps * run.units_per_step / seconds,
    'host_seconds': host,
  }
  if folder is not None:
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
      state, _ = _in_a_row(run, program, state, 1 + rounds, _TRACED_ROUNDS)
    figures['operation_seconds'] = {
      name: total / _TRACED_ROUNDS
      for name, total in traces.operations(folder).items()
    }
  return figures | {'parts_seconds': _parts(run, program, state, rounds)}


def table(figures: dict[str, Any]) -> str:
  """The figures for people."""
  host, parts = figures['host_seconds'], figures['parts_seconds']
  lines = [
    f'{figures["method"]}: {figures["parameters"]:,} parameters,'
    f' {figures["workers"]} workers, {figures["sync_every"]} local steps a'
    f' round, on {figures["versions"]["device"]}',
    '',
    'compilation                          ms',
    *(_row(name, figures[f'{name}_seconds']) for name in _STAGES),
    '  after the first round              none',
    '',
    'a round in training                  ms',
    _row('in all', figures['round_seconds'])
    + f'   {figures["units_per_second"]:,.0f} {figures["unit"]}/s',
    *(_row(f'host {name}', seconds) for name, seconds in host.items()),
    '',
    'a round by itself                    ms',
    _row('in all', parts['round']),
    *(
      _row(name, seconds) + f'{seconds / parts["round"]:8.0%}'
      for name, seconds in parts.items()
      if name != 'round'
    ),
    '',
    'memory of its program             bytes   per parameter',
    *(
      f'  {name:<20}{size:>17,}{size / figures["parameters"]:>16.2f}'
      for name, size in figures['memory_bytes'].items()
    ),
  ]
  longest = list(figures.get('operation_seconds', {}).items())[:_OPERATIONS]
  if longest:
    lines += ['', 'longest operations of a round, all threads together     ms']
    lines += [f'  {name:<47}{1e3 * s:9.3f}' for name, s in longest]
  return '\n'.join(lines)


def main(overrides: Sequence[str]) -> None:
  """Measures, prints and writes."""
  experiment = config.load(_CONFIG.value, overrides)
  entry.quiet()
  entry.set_cpu_devices(_WORKERS.value, experiment.workers, _CPU_DEVICES.value)
  assembly.check(experiment)
  workdir = outputs.directory(_WORKDIR.value)
  team = executors.get(_WORKERS.value, experiment.workers)
  run = assembly.build(experiment, team)
  folder = workdir / 'trace' if _TRACE.value else None
  figures = {
    'method': experiment.method,
    'parameters': run.parameters,
    'unit': run.task.objective.unit,
    'workers': experiment.workers,
    'executor': _WORKERS.value,
    'sync_every': experiment.sync_every,
    'rounds': _ROUNDS.value,
    'seed': experiment.seed,
    **measure(run, _ROUNDS.value, folder),
    'config': json.loads(experiment.to_json()),
    'versions': provenance.versions(),
  }
  print(table(figures))
  text = json.dumps(figures, indent=2) + '\n'
  outputs.write(workdir / 'profile.json', text)


def _arguments(run: assembly.Assembly, step: int) -> tuple[Any, ...]:
  """Those of the whole round that begins with a step."""
  return run.arguments(run.batches(step), step, 0, run.config.sync_every)


def _compile(
  program: Callable, state: sm.WorkerState, arguments: tuple[Any, ...]
) -> dict[str, Any]:
  """Seconds of each stage, and the memory of the program."""
  marks = [time.perf_counter()]
  traced = program.trace(state, *arguments)
  marks.append(time.perf_counter())
  lowered = traced.lower()
  marks.append(time.perf_counter())
  memory = lowered.compile().memory_analysis()
  marks.append(time.perf_counter())
  seconds = [end - begin for begin, end in itertools.pairwise(marks)]
  return {
    f'{stage}_seconds': taken
    for stage, taken in zip(_STAGES, seconds, strict=True)
  } | {
    'memory_bytes': {
      'state and input': memory.argument_size_in_bytes,
      'reused for results': memory.alias_size_in_bytes,
      'temporaries': memory.temp_size_in_bytes,
    }
  }


def _in_a_row(
  run: assembly.Assembly,
  program: Callable,
  state: sm.WorkerState,
  first: int,
  rounds: int,
) -> tuple[sm.WorkerState, list[dict[str, float]]]:
  """Runs rounds in the order of the training loop.

  Args:
    run: what is run.
    program: its program.
    state: of all workers.
    first: how many rounds have been before.
    rounds: how many to run.

  Returns:
    the state, and for each round the seconds in which the host did what.
  """
  steps, laps, in_flight = run.config.sync_every, [], None
  batches = run.batches(first * steps)
  for index in range(first, first + rounds):
    began = time.perf_counter()
    state, outputs = program(
      state, *run.arguments(batches, index * steps, 0, steps)
    )
    outputs = run.exchange.gather(outputs, 0)
    started = time.perf_counter()
    batches = run.batches((index + 1) * steps)
    prepared = time.perf_counter()
    jax.device_get(in_flight)
    laps.append(
      {
        'starts it': started - began,
        'prepares input': prepared - started,
        'waits': time.perf_counter() - prepared,
      }
    )
    in_flight = outputs
  jax.device_get(in_flight)
  return state, laps


def _parts(
  run: assembly.Assembly,
  program: Callable,
  state: sm.WorkerState,
  repeats: int,
) -> dict[str, float]:
  """Seconds of a round by itself, and of its parts."""
  arguments = _arguments(run, 0)

  def unended(updates, state, params=None, **extra_args):
    return run.tx.update(updates, state, params, sync=False, **extra_args)

  def unmoved(updates, state, params=None, **extra_args):
    del updates, extra_args
    return optax.tree.zeros_like(params), state

  def with_update(update):
    return run.program(
      optax.GradientTransformationExtraArgs(run.tx.init, update)
    )

  steps, gradients = with_update(unended), with_update(unmoved)
  # It never sees the end of a round, and so can not share the state with those
  # that do.
  other = turns.Carried(run.state())
  ways = {'gradients': other.way(gradients, *arguments)}
  text = program.lower(state, *arguments).as_text()
  if steps.lower(other.state, *arguments).as_text() != text:
    ways['steps'] = other.way(steps, *arguments)
  ways['round'] = turns.Carried(state).way(program, *arguments)
  seconds = turns.medians(ways, repeats)
  every_step = seconds.get('steps', seconds['round'])
  return {
    'round': seconds['round'],
    'gradients': seconds['gradients'],
    'updates, every step': every_step - seconds['gradients'],
    'end of the round': seconds['round'] - every_step,
  }


def _row(name: str, seconds: float) -> str:
  return f'  {name:<24}{1e3 * seconds:13.3f}'


if __name__ == '__main__':
  entry.run(main, flags_parser=config.parse_flags)
