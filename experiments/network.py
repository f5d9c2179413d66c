"""Several hosts on one machine, joined by links of a known rate and delay.

    host 0                     host 1                     ...
    eth0 10.77.0.1             eth0 10.77.0.2
      |  tbf: rate out           |  tbf: rate out
    ==|== delay ===============|== delay =================
      |  tbf: rate in            |  tbf: rate in
    port0 ----------------- bridge ------------ port1 ---- ...

Every host is a network namespace (with a mount and a UTS namespace, for an
/etc/hosts and a host name of its own), and the bridge is in one more. None has
a way out: what happens there does not touch the machine's own network.

The namespaces have no names that could be left behind. Each is held by a shell
that waits for the end of its standard input, a pipe of this process. However
this process ends, the shell then kills what still runs in its namespace, and
the kernel removes the namespace and its interfaces with the last process.

Linux only, for root, with iproute2 and util-linux.
"""

from collections.abc import Iterator, Sequence
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from experiments import errors
from signmomentum import wire

_RATES = {'kbit': 1e3, 'mbit': 1e6, 'gbit': 1e9}
_TIMES = {'us': 1e-6, 'ms': 1e-3, 's': 1.0}
_NUMBER = r'(\d+(?:\.\d+)?)'
_LINK = re.compile(
  rf'(?:unlimited|{_NUMBER}({"|".join(_RATES)}))'
  rf'(?:,{_NUMBER}({"|".join(_TIMES)}))?'
)
_TOOLS = ('ip', 'tc', 'unshare', 'nsenter', 'mount', 'hostname')
_MOST_HOSTS = 250
_TIMEOUT = 60  # seconds for one command of set-up, on however busy a machine
_FRAME = 1514  # bytes of a full Ethernet frame
_PAYLOAD = 1448  # of it, for TCP
HEADERS = _FRAME - _PAYLOAD  # of Ethernet, IP and TCP
# Bytes of frames for a byte of payload, where every worker receives as much as
# it sends: of two frames that come in, one is acknowledged by an empty one.
FRAMING = (_FRAME + HEADERS / 2) / _PAYLOAD

# Holds a namespace: says that it is there, waits, then leaves nobody in it.
_HOLD = """
echo ready
cat
while
  again=
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if [ "$pid" != $$ ] && [ "$process/ns/net" -ef /proc/$$/ns/net ]; then
      kill -KILL "$pid" && again=yes
    fi
  done
  [ "$again" ]
do sleep 0.1; done
"""


class Sent(NamedTuple):
  """What has left a host by its interface.

  Attributes:
    bytes: of whole Ethernet frames of at most 1514 bytes, acknowledgements
      included, from the destination's address to the last byte of payload.
    frames: their number. Each has `HEADERS` bytes that are no payload.
  """

  bytes: int
  frames: int


class Host:
  """One of the hosts; `hosts` makes them.

  Attributes:
    address: its IP address, at which the other hosts reach it.
  """

  def __init__(self, address: str, namespace: '_Namespace'):
    self.address = address
    self._namespace = namespace

  def command(self, argv: Sequence[str]) -> list[str]:
    """Returns what to run so that `argv` runs inside this host.

    The process that is started becomes `argv`, so that signals reach it; it
    starts in the directory that is the current one now. When the hosts go, it
    is killed.

    Args:
      argv: program and arguments.
    """
    directory = f'--chdir={os.getcwd()}'
    return [*self._namespace.enter, 'env', directory, *argv]

  def sent(self) -> Sent:
    """What has left this host by its interface so far."""
    return sent(self._namespace.enter)

  def sent_bytes(self) -> int:
    """Bytes that have left this host so far, framing included."""
    return self.sent().bytes


def parse(text: str) -> wire.Link:
  """Reads a link: its rate each way, and how late what is sent arrives.

  Args:
    text: a rate in kbit, mbit or gbit (of 1000), or 'unlimited'; after a comma
      it may have a one-way latency in us, ms or s.

  Raises:
    UserError: if it is anything else.

  Example:
    >>> from experiments import network
    >>> network.parse('100mbit,20ms')
    Link(bits_per_second=100000000.0, latency_seconds=0.02)
  """
  match = _LINK.fullmatch(text.strip().lower())
  if not match or (match[1] and not float(match[1])):
    raise errors.UserError(
      f'Can not read the link {text!r}. Allowed is a rate in'
      f' {", ".join(_RATES)} (of 1000, above 0) or unlimited, and after a comma'
      f' a latency in {", ".join(_TIMES)}, as in 10mbit, 1gbit,500us or'
      ' unlimited,20ms.'
    )
  rate, rate_unit, time, time_unit = match.groups()
  return wire.Link(
    float(rate) * _RATES[rate_unit] if rate else math.inf,
    float(time) * _TIMES[time_unit] if time else 0.0,
  )


def missing() -> str | None:
  """Says why there can be no hosts here and what to do, None if there can."""
  if sys.platform != 'linux':
    return f'Network namespaces are of Linux; this is {sys.platform}.'
  if os.geteuid():
    return 'Network namespaces need root: run it as root, or with sudo.'
  if tools := [tool for tool in _TOOLS if not shutil.which(tool)]:
    return (
      f'The programs {", ".join(tools)} are missing: install iproute2 and'
      ' util-linux (Debian, Ubuntu: apt-get install iproute2).'
    )
  try:
    namespace = _Namespace()
  except errors.UserError as error:
    return str(error)
  try:
    namespace.run(
      'ip link add bridge type bridge',
      'ip link add port type veth peer name cable',
      'tc qdisc add dev port root tbf rate 1mbit burst 3028 limit 30280',
    )
  except errors.UserError as error:
    return str(error)
  finally:
    namespace.close()
  return None


@contextlib.contextmanager
def hosts(count: int, link: wire.Link) -> Iterator[tuple[Host, ...]]:
  """Makes hosts, each joined to a common bridge by a link of its own.

  Args:
    count: number of hosts.
    link: of each host. Its rate limits what the host sends and, apart from
      that, what it receives, in bits of Ethernet frames (see `FRAMING`). Its
      latency is added to every frame once, on its way out of the host that
      sends it: one way takes a latency, a round trip two.

  Yields:
    the hosts. Whatever still runs in them at the end is killed.

  Raises:
    UserError: there can be no hosts here (see `missing`), or not so many.
  """
  if not 1 <= count <= _MOST_HOSTS:
    raise errors.UserError(
      f'There can be 1 to {_MOST_HOSTS} hosts, not {count}.'
    )
  if reason := missing():
    raise errors.UserError(reason)
  with contextlib.ExitStack() as stack:

    def namespace():
      return stack.enter_context(contextlib.closing(_Namespace()))

    bridge, ends = namespace(), [namespace() for _ in range(count)]
    bridge.run(
      'ip link add bridge type bridge',
      _quiet('bridge'),
      'ip link set bridge up',
    )
    if link.latency_seconds:
      stack.enter_context(_delayed_cables(bridge, count, link.latency_seconds))
    else:
      bridge.run(
        *(
          f'ip link add port{i} type veth peer name cable{i}'
          for i in range(count)
        )
      )
    addresses = [f'10.77.0.{i + 1}' for i in range(count)]
    for i, end in enumerate(ends):
      bridge.run(
        f'ip link set cable{i} netns {end.pid} name eth0',
        f'ip link set port{i} master bridge',
        _quiet(f'port{i}'),
        _limit(f'port{i}', link),
        f'ip link set port{i} up',
      )
      end.run(
        f'hostname host{i}',
        # A file system that vanishes with the namespace. No place is needed
        # for it but for a moment, and every machine has /sys.
        'mount -t tmpfs hosts /sys',
        "echo '127.0.0.1 localhost' > /sys/hosts",
        *(
          f"echo '{address} host{j}' >> /sys/hosts"
          for j, address in enumerate(addresses)
        ),
        'mount --bind /sys/hosts /etc/hosts',
        'umount /sys',
        'ip link set lo up',
        _quiet('eth0'),
        f'ip address add {addresses[i]}/24 dev eth0',
        _limit('eth0', link),
        'ip link set eth0 up',
      )
    _await_ports(bridge)
    yield tuple(map(Host, addresses, ends))


def sent(enter: Sequence[str] = ()) -> Sent:
  """What has left the host that this process is in, by its interface.

  Args:
    enter: a command to put before others, to look from another place.
  """
  # The interface counts 64 kB that it is to cut into frames as one frame; its
  # queueing discipline knows better.
  command = [*enter, 'tc', '-s', '-json', 'qdisc', 'show', 'dev', 'eth0']
  (counts,) = json.loads(_output(command))
  return Sent(counts['bytes'], counts['packets'])


def _await_ports(bridge: '_Namespace') -> None:
  """Waits until the bridge forwards from every port.

  The kernel tells it in its own time that a cable has come up: after it has put
  away the namespaces of before, which can take seconds.
  """
  show = [*bridge.enter, 'ip', '-json', '-details', 'link', 'show']
  end = time.monotonic() + _TIMEOUT
  while True:
    ports = json.loads(_output([*show, 'master', 'bridge']))
    states = {p['linkinfo']['info_slave_data']['state'] for p in ports}
    if states == {'forwarding'}:
      return
    if time.monotonic() > end:
      raise errors.UserError(f'The ports of a bridge remain {states}.')
    time.sleep(0.01)


def _quiet(device: str) -> str:
  """The command without which IPv6, if there is any, talks by itself."""
  return f'[ ! -e /proc/net/if_inet6 ] || ip link set {device} addrgenmode none'


def _limit(device: str, link: wire.Link) -> str:
  """The command that limits what leaves by a device, and counts it."""
  add = f'ip link set {device} txqueuelen 10000; tc qdisc add dev {device} root'
  bytes_per_second = link.bits_per_second / 8
  if math.isinf(bytes_per_second):
    return f'{add} pfifo limit 10000'
  # What has not been sent may be made up for within 1 ms, not later: short
  # messages are to see the rate too. The queue holds what all others may send
  # at once; with a short one, TCP loses packets and waits for 200 ms.
  burst = max(2 * _FRAME, round(bytes_per_second * 1e-3))
  limit = max(2**20, round(bytes_per_second * 0.1))
  rate = round(link.bits_per_second)
  return f'{add} tbf rate {rate}bit burst {burst} limit {limit}'


@contextlib.contextmanager
def _delayed_cables(
  bridge: '_Namespace', count: int, seconds: float
) -> Iterator[None]:
  """Makes the two ends of `count` cables, by a process that delays."""
  script = pathlib.Path(__file__).with_name('delay_line.py')
  command = [*bridge.enter, sys.executable, '-I', str(script)]
  with subprocess.Popen(
    [*command, str(count), str(seconds)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    start_new_session=True,
    text=True,
  ) as line:
    try:
      if not line.stdout.readline():
        raise errors.UserError(
          f'Can not make a link with a delay: {line.stderr.read().strip()}'
        )
      yield
    finally:
      line.kill()


class _Namespace:
  """A network, a mount and a UTS namespace, as long as this process lives.

  Attributes:
    pid: a process inside.
    enter: a command to put before another, to run it inside.
  """

  def __init__(self):
    self._holder = subprocess.Popen(
      ['unshare', '--net', '--mount', '--uts', '--', 'sh', '-c', _HOLD],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      start_new_session=True,  # out of reach of Ctrl-C
      text=True,
    )
    self.pid = self._holder.pid
    target = f'--target={self.pid}'
    self.enter = ('nsenter', target, '--net', '--mount', '--uts', '--')
    if not self._holder.stdout.readline():
      error = self._holder.stderr.read().strip()
      self.close()
      raise errors.UserError(
        f'The kernel refuses a network namespace ({error}). In a container,'
        ' start it with --privileged, or run on the machine itself.'
      )

  def run(self, *commands: str) -> None:
    """Runs commands inside; the first that fails is an error."""
    _output([*self.enter, 'sh', '-e', '-c', '\n'.join(commands)])

  def close(self) -> None:
    """Kills what runs inside, and waits until nothing does."""
    self._holder.stdin.close()
    try:
      self._holder.wait(_TIMEOUT)
    finally:
      self._holder.kill()
      self._holder.wait()
      self._holder.stdout.close()
      self._holder.stderr.close()


def _output(command: Sequence[str]) -> str:
  done = subprocess.run(
    command, capture_output=True, text=True, timeout=_TIMEOUT
  )
  if done.returncode:
    raise errors.UserError(
      f'{command[-1]}\nfailed, in a network namespace: {done.stderr.strip()}'
    )
  return done.stdout
