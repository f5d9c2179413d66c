"""Runs that measure a wire: workers on hosts, and one worker on its own."""

from collections.abc import Sequence
import dataclasses
import functools
import json
import math
import pathlib
import tempfile

import jax

from experiments import (
  exchanges,
  hosts,
  network,
  processes,
  turns,
  wire_results,
  wire_worker,
)

_REPEATS = 15  # of encoding and decoding
_PORT = 4444  # of the first host, where nobody else is


def measure(
  count: int, link: str, task: wire_worker.Task
) -> list[wire_results.Row]:
  """Measures a task with some workers on one kind of link.

  Args:
    count: of workers.
    link: that each has, as `network.parse` reads it; it goes into the task.
    task: what to do.

  Returns:
    a row for each exchange of the task.

  Raises:
    ProcessError: a worker failed.
    UserError: there can be no such link here.
  """
  limit = network.parse(link)
  rate = limit.bits_per_second
  task = dataclasses.replace(
    task, rate=None if math.isinf(rate) else rate, latency=limit.latency_seconds
  )
  text = json.dumps(dataclasses.asdict(task))
  with (
    network.hosts(count, limit) as there,
    tempfile.TemporaryDirectory(prefix='bench_wire_') as folder,
  ):
    address = f'{there[0].address}:{_PORT}'
    files = [pathlib.Path(folder, f'{i}.json') for i in range(count)]
    processes.run(
      [
        processes.Process(
          module='experiments.wire_worker',
          arguments=[text, str(file)],
          environment=hosts.one_cpu_device()
          | hosts.environment(address, count, i),
          command=lambda argv, host=host: host.command(_silent(argv)),
        )
        for i, (host, file) in enumerate(zip(there, files, strict=True))
      ]
    )
    seen = [json.loads(file.read_text()) for file in files]
  return [
    wire_results.row(
      link, task.parameters, [wire_worker.Cell(**cell) for cell in cells]
    )
    for cells in zip(*seen, strict=True)
  ]


def computing(names: Sequence[str], parameters: int) -> dict[str, float]:
  """Median seconds of an exchange that no link slows: encoding and decoding.

  Two workers of this process make it, with a device each; what they send is
  copied. (A worker alone would do: but then XLA makes another program.)

  Args:
    names: of exchanges, which take turns.
    parameters: exchanged.
  """
  mesh = exchanges.mesh(jax.devices()[:2])
  updates = [jax.random.normal(jax.random.key(0), (2, parameters))]
  updates = jax.device_put(
    updates, jax.NamedSharding(mesh, jax.P(exchanges.AXIS))
  )
  built = {name: exchanges.build(name, mesh, [parameters]) for name in names}
  ways = {
    name: functools.partial(compiled, updates, state)
    for name, (compiled, state) in built.items()
  }
  return turns.medians(ways, _REPEATS)


def _silent(argv: Sequence[str]) -> list[str]:
  """Without what libraries print to say that all is well."""
  return ['sh', '-c', 'exec "$@" > /dev/null', 'sh', *argv]
