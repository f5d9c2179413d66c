r"""Trains with several processes on this machine, each with a CPU device.

    python -m experiments.launch --processes=4 -- \
      --config=configs/gpt2_nano.py --workdir=runs/processes
    python -m experiments.launch --processes=4 --link=100mbit,20ms -- \
      --config=configs/gpt2_nano.py --workdir=runs/link

After -- are arguments of `experiments.train`, which each process gets. They
find each other over the loopback interface, or, with --link, over links of that
rate and delay (see `experiments.network`: Linux, as root). The first process
shows its progress. A signal stops all of them, with a checkpoint. If one fails
or hangs, all are ended, it is named, and the exit code is 1.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import socket
import sys
from typing import NamedTuple

from absl import flags

from experiments import entry, errors, hosts, network, processes

_PROCESSES = flags.DEFINE_integer(
  'processes', None, 'How many to start.', lower_bound=1, required=True
)
_LINK = flags.DEFINE_string(
  'link',
  None,
  'Rate and one-way latency of the link of each process: 100mbit,20ms.',
)
_SILENCE = flags.DEFINE_float(
  'silence',
  processes.SILENCE,
  'After how many seconds without a sign of life a process has failed.',
  lower_bound=3.0,
)
_LOOPBACK = '127.0.0.1'


class _Place(NamedTuple):
  """Where a process runs.

  Attributes:
    address: at which the others reach it.
    command: makes of a command what runs it there.
  """

  address: str
  command: Callable[[list[str]], list[str]]


def main(argv: Sequence[str]) -> None:
  """Reads the flags, starts the processes and waits for them."""
  _, *arguments = argv
  if not arguments:
    raise errors.UserError(
      'There is nothing to run: put the arguments of experiments.train after'
      ' --, such as -- --config=configs/gpt2_nano.py --workdir=runs/processes.'
    )
  with _places(_PROCESSES.value, _LINK.value) as places:
    try:
      processes.run(_team(places, arguments), _SILENCE.value)
    except processes.ProcessError as failure:
      sys.exit(f'error: {failure}')


@contextlib.contextmanager
def _places(count: int, link: str | None) -> Iterator[list[_Place]]:
  """Makes the places to run at, as long as they are used."""
  if link is None:
    yield [_Place(_LOOPBACK, list)] * count
    return
  with network.hosts(count, network.parse(link)) as there:
    yield [_Place(host.address, host.command) for host in there]


def _team(
  places: Sequence[_Place], arguments: Sequence[str]
) -> list[processes.Process]:
  """Returns processes that find each other, at the first one's address."""
  address = f'{places[0].address}:{_free_port()}'
  common = hosts.one_cpu_device()
  common['JAX_COORDINATOR_BIND_ADDRESS'] = address  # else all interfaces
  return [
    processes.Process(
      module='experiments.train',
      arguments=['--workers=devices', '--distributed', *arguments],
      environment=common | hosts.environment(address, len(places), index),
      command=place.command,
    )
    for index, place in enumerate(places)
  ]


def _free_port() -> int:
  with socket.socket() as server:
    server.bind((_LOOPBACK, 0))
    return server.getsockname()[1]


if __name__ == '__main__':
  entry.run(main)
