r"""Measures what is exchanged by workers, on real processes and real links.

    python -m experiments.bench_wire --workdir=runs/wire
    python -m experiments.bench_wire --processes=4 --links=100mbit \
      --methods=fp32_mean,vote,vote_words --latency_link=   # a row anew

Every worker is a process in a network namespace of its own (Linux, as root, see
`experiments.network`), joined to the others by a link that limits its rate;
they talk by gloo over TCP. Without a limit, the processors are: all workers
share those of this machine. Prints a table, says where compression does not
pay, and writes results.json and wire.png.
"""

from collections.abc import Sequence
import dataclasses
import json
import pathlib
import sys
from typing import Any

from absl import flags
import jax

from experiments import (
  entry,
  errors,
  exchanges,
  network,
  outputs,
  processes,
  provenance,
  wire_pictures,
  wire_results,
  wire_runs,
  wire_worker,
)

_PROCESSES = flags.DEFINE_list('processes', ['2', '4', '8'], 'Workers.')
_LINKS = flags.DEFINE_list(
  'links', ['10mbit', '100mbit', '1gbit', 'unlimited'], 'Rates of links.'
)
_METHODS = flags.DEFINE_list(
  'methods', list(exchanges.EXCHANGES), 'What is exchanged.'
)
_PARAMETERS = flags.DEFINE_integer(
  'parameters', 2**21, 'Numbers that are exchanged.', lower_bound=1
)
_LOCAL_STEPS = flags.DEFINE_list(
  'local_steps', ['1', '12'], 'Local steps between exchanges.'
)
_STEP_SECONDS = flags.DEFINE_float(
  'step_seconds', 0.05, 'What a local step takes.', lower_bound=0.001
)
_LATENCY_LINK = flags.DEFINE_string(
  'latency_link', '100mbit,20ms', 'One more link; empty for none.'
)
_LEAVES = flags.DEFINE_list(
  'leaves', ['1', '1000'], 'Leaves of the trees that are voted on over it.'
)
_SECONDS = flags.DEFINE_float(
  'seconds', 1.0, 'For each measurement; slow ones take two exchanges.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of what is exchanged.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where to write the results.')
_WORKERS = 4  # that vote on trees of many leaves, if among the processes


def main(argv: Sequence[str]) -> None:
  """Measures, prints, writes and draws."""
  entry.require_flags_only(argv)
  entry.quiet()
  workdir = _WORKDIR.value and outputs.directory(_WORKDIR.value)
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', 2)  # of this process
  names = _names()
  counts = [
    _positive('processes', count, least=2) for count in _PROCESSES.value
  ]
  task = wire_worker.Task(
    names=names,
    leaves=[1],
    parameters=_PARAMETERS.value,
    rate=None,
    latency=0.0,
    local_steps=[_positive('local_steps', k) for k in _LOCAL_STEPS.value],
    step_seconds=_STEP_SECONDS.value,
    seconds=_SECONDS.value,
    seed=_SEED.value,
  )
  places = [(count, link, task) for link in _LINKS.value for count in counts]
  if _LATENCY_LINK.value:
    leaves = [_positive('leaves', number) for number in _LEAVES.value]
    vote = dataclasses.replace(task, names=['vote'], leaves=leaves)
    # A program of 1000 leaves takes a while to compile: for some workers only.
    some = min(counts, key=lambda count: abs(count - _WORKERS))
    places.append((some, _LATENCY_LINK.value, vote))
  for _, link, _ in places:
    network.parse(link)
  if reason := network.missing():
    raise errors.UserError(reason)

  encoding = wire_runs.computing(
    [name for name in names if name in exchanges.METHODS], task.parameters
  )
  rows = []
  for count, link, this in places:
    print(f'{count} processes, {link} ...', file=sys.stderr, flush=True)
    try:
      rows += wire_runs.measure(count, link, this)
    except processes.ProcessError as failure:
      sys.exit(f'error: {failure}')
    if workdir:  # each time: what has been measured is not lost
      _write(workdir, task, encoding, rows)
  print(wire_results.table(rows))
  print()
  print(wire_results.verdict(rows, task.parameters, encoding))


def _write(
  workdir: pathlib.Path,
  task: wire_worker.Task,
  encoding: dict[str, float],
  rows: Sequence[wire_results.Row],
) -> None:
  facts: dict[str, Any] = {
    'parameters': task.parameters,
    'step_seconds': task.step_seconds,
    'seed': task.seed,
    'congestion_control': _congestion_control(),
    'versions': provenance.versions(),
    'computing_seconds': encoding,
  }
  head = ''.join(
    f'"{name}": {json.dumps(_short(fact))},\n' for name, fact in facts.items()
  )
  lines = [json.dumps(_short(dataclasses.asdict(row))) for row in rows]
  outputs.write(
    workdir / 'results.json',
    '{\n' + head + '"rows": [\n' + ',\n'.join(lines) + '\n]\n}\n',
  )
  wire_pictures.draw(rows, task.parameters, encoding, workdir / 'wire.png')


def _short(fact: Any) -> Any:
  """The same with numbers that are no more exact than a clock."""
  if isinstance(fact, float):
    return float(f'{fact:.5g}')
  if isinstance(fact, dict):
    return {name: _short(value) for name, value in fact.items()}
  return [_short(v) for v in fact] if isinstance(fact, list) else fact


def _names() -> list[str]:
  for name in _METHODS.value:
    errors.lookup(exchanges.EXCHANGES, name, 'method')
  return list(_METHODS.value)


def _positive(flag: str, text: str, least: int = 1) -> int:
  if not text.isdecimal() or int(text) < least:
    raise errors.UserError(
      f'--{flag} takes whole numbers from {least}, not {text!r}.'
    )
  return int(text)


def _congestion_control() -> str:
  path = pathlib.Path('/proc/sys/net/ipv4/tcp_congestion_control')
  return path.read_text().strip()


if __name__ == '__main__':
  entry.run(main)
