"""Hosts on one machine: rates, delays, counters, and that nothing is left."""

from concurrent import futures
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import needs
import pytest

from experiments import errors, network
from signmomentum import wire

pytestmark = pytest.mark.timeout(120)

# Takes bytes; prints when the first could come and when the last one did.
SERVER = """
import socket, sys, time
port, left = int(sys.argv[1]), int(sys.argv[2])
listening = socket.create_server(('', port))
print('up', flush=True)
connection, _ = listening.accept()
print(time.monotonic())
while left:
  left -= len(connection.recv(1 << 20))
print(time.monotonic())
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
  connection.sendall(bytes(int(sys.argv[3])))
  connection.recv(1)
"""
TRIPS = """
import socket, sys, time
for _ in range(7):
  start = time.monotonic()
  try: socket.create_connection((sys.argv[1], 5000))
  except ConnectionRefusedError: print(time.monotonic() - start)
"""
# Starts processes in hosts, tells their namespaces, and waits.
PARENT = """
import subprocess, sys, time
from experiments import network
with network.hosts(2, network.parse('100mbit,1ms')) as hosts:
  child = ['sh', '-c', 'sleep 1000 & readlink /proc/$$/ns/net; exec sleep 1000']
  for host in hosts:
    subprocess.Popen(host.command(child))
  time.sleep(1000)
"""


@pytest.fixture
def make():
  """Makes hosts, or skips the test."""
  needs.hosts()
  return network.hosts


def python(host, source, *argv):
  """What to run for Python inside a host."""
  return host.command([sys.executable, '-S', '-c', source, *map(str, argv)])


def run(host, source, *argv):
  """Runs Python inside a host; returns the numbers that it prints."""
  command = python(host, source, *argv)
  done = subprocess.run(
    command, capture_output=True, text=True, check=True, timeout=60
  )
  return [float(line) for line in done.stdout.split()]


def send(source, target, size, port=5000):
  """Sends `size` bytes of payload; returns when it began and when it ended."""
  command = python(target, SERVER, port, size)
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    server.stdout.readline()
    run(source, CLIENT, target.address, port, size)
    return [float(line) for line in server.stdout.read().split()]


def inhabitants(namespaces):
  """The processes in some network namespaces."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      if os.readlink(process / 'ns' / 'net') in namespaces:
        found.append(int(process.name))
    except OSError:  # it has ended
      continue
  return found


def wait_until(condition, seconds=30):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


# What a link is.


@pytest.mark.parametrize(
  'text, rate, latency',
  [
    ('100mbit,20ms', 100e6, 0.02),
    ('10mbit', 10e6, 0),
    ('1gbit,500us', 1e9, 500e-6),
    ('2.5Gbit, 1s', None, None),
    (' 2.5Gbit,1s', 2.5e9, 1),
    ('9kbit', 9e3, 0),
    ('unlimited', math.inf, 0),
    ('unlimited,20ms', math.inf, 0.02),
    ('100', None, None),
    ('100 mbit', None, None),
    ('0mbit', None, None),
    ('-1mbit', None, None),
    ('100mbit,20', None, None),
    ('20ms', None, None),
    ('20ms,100mbit', None, None),
    ('100mibit', None, None),
    ('', None, None),
  ],
)
def test_links_are_read_or_refused(text, rate, latency):
  if rate is None:
    with pytest.raises(errors.UserError, match='mbit.*unlimited.*500us'):
      network.parse(text)
  else:
    assert network.parse(text) == wire.Link(rate, latency)


# What there must be.


@pytest.mark.parametrize(
  'what, value, advice',
  [
    ('sys.platform', 'darwin', 'of Linux'),
    ('os.geteuid', lambda: 1000, 'sudo'),
    ('shutil.which', lambda tool: None if tool == 'tc' else tool, 'iproute2'),
  ],
)
def test_says_what_is_missing(monkeypatch, what, value, advice):
  monkeypatch.setattr('os.geteuid', lambda: 0)
  monkeypatch.setattr('shutil.which', lambda tool: tool)
  monkeypatch.setattr(what, value)
  assert advice in network.missing()
  with (
    pytest.raises(errors.UserError, match=advice),
    network.hosts(2, wire.Link(1e6)),
  ):
    pass


def test_says_that_the_kernel_refuses(monkeypatch, tmp_path):
  for tool in ('ip', 'tc', 'unshare', 'nsenter', 'mount', 'hostname'):
    (tmp_path / tool).write_text('#!/bin/sh\necho not permitted >&2\nexit 1\n')
    (tmp_path / tool).chmod(0o755)
  monkeypatch.setattr('os.geteuid', lambda: 0)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  assert 'not permitted' in network.missing()
  assert '--privileged' in network.missing()


@pytest.mark.parametrize('count', [0, 251])
def test_refuses_a_strange_number_of_hosts(count):
  with (
    pytest.raises(errors.UserError, match='1 to 250'),
    network.hosts(count, wire.Link(1e6)),
  ):
    pass


# What the hosts are like.


def test_hosts_have_names_and_know_each_other(make):
  script = 'hostname; getent hosts host1 host2; cat /proc/net/dev'
  with make(3, wire.Link(math.inf)) as hosts:
    command = hosts[2].command(['sh', '-c', script])
    seen = subprocess.run(command, capture_output=True, text=True).stdout
  assert [host.address for host in hosts][1] in seen
  assert re.match(r'host2\n\S+ +host1\n\S+ +host2\n', seen)
  assert set(re.findall(r'(\w+):', seen)) == {'lo', 'eth0'}


def test_the_machine_itself_is_as_before(make):
  def machine():
    devices = pathlib.Path('/proc/net/dev').read_text()
    return (
      re.findall(r'(\S+):', devices),
      pathlib.Path('/etc/hosts').read_text(),
      pathlib.Path('/proc/self/mountinfo').read_text(),
      os.uname().nodename,
    )

  before = machine()
  with make(2, wire.Link(1e9, 1e-3)):
    assert machine() == before
  assert machine() == before


def test_a_command_is_the_process_itself(make, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with make(1, wire.Link(math.inf)) as (host,):
    command = host.command(['sh', '-c', 'pwd; echo $$; exec sleep 5'])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
      lines = [child.stdout.readline().strip() for _ in range(2)]
      child.terminate()
      assert child.wait(10) == -signal.SIGTERM
  assert lines == [str(tmp_path), str(child.pid)]


def test_a_link_has_its_rate_and_the_counters_tell_all(make):
  size, rate = 1_500_000, 10e6
  with make(3, wire.Link(rate)) as hosts:
    assert hosts[0].sent() == (0, 0)
    start, end = send(hosts[0], hosts[1], size)
    sent = hosts[0].sent()
    assert hosts[0].sent_bytes() == sent.bytes
    assert hosts[1].sent_bytes() < 0.05 * size  # acknowledgements
    assert hosts[2].sent_bytes() < 500  # nothing, or who has which address
  pure = 8 * size * (1514 / 1448) / rate
  assert 0.98 * pure < end - start < 1.15 * pure
  assert sent.bytes == pytest.approx(size * 1514 / 1448, rel=0.01)
  assert sent.bytes - 66 * sent.frames == pytest.approx(size, rel=0.001)


@pytest.mark.parametrize(
  'transfers', [[(0, 1), (0, 2)], [(1, 0), (2, 0)]], ids=['sends', 'receives']
)
def test_a_link_limits_all_that_a_host_does(make, transfers):
  size, rate = 500_000, 10e6
  with make(3, wire.Link(rate)) as hosts, futures.ThreadPoolExecutor() as pool:
    jobs = [
      pool.submit(send, hosts[source], hosts[target], size, 5000 + i)
      for i, (source, target) in enumerate(transfers)
    ]
    starts, ends = zip(*(job.result() for job in jobs), strict=True)
  assert max(ends) - min(starts) > 0.98 * 8 * 2 * size / rate


def test_a_round_trip_takes_two_latencies(make):
  with make(2, wire.Link(1e9, 0.02)) as hosts:
    trip = min(run(hosts[0], TRIPS, hosts[1].address))
  assert 0.04 < trip < 0.055


# What is left.


@pytest.mark.parametrize('latency', [0, 1e-3])
def test_nothing_is_left_in_the_end(make, latency):
  child = ['sh', '-c', 'sleep 1000 & readlink /proc/$$/ns/net; exec sleep 1000']
  with make(2, wire.Link(1e9, latency)) as hosts:
    children = [
      subprocess.Popen(host.command(child), stdout=subprocess.PIPE, text=True)
      for host in hosts
    ]
    namespaces = {child.stdout.readline().strip() for child in children}
    assert len(namespaces) == 2
    assert len(inhabitants(namespaces)) >= 6  # with those that hold them
  assert [child.wait(10) for child in children] == [-signal.SIGKILL] * 2
  assert inhabitants(namespaces) == []
  for child in children:
    child.stdout.close()


def test_nothing_is_left_when_the_parent_is_killed(make):
  with subprocess.Popen(
    [sys.executable, '-c', PARENT], stdout=subprocess.PIPE, text=True
  ) as parent:
    namespaces = {parent.stdout.readline().strip() for _ in range(2)}
    # The bridge's too, which is that of the process that delays.
    (line,) = delay_lines_of(parent.pid)
    namespaces.add(os.readlink(f'/proc/{line}/ns/net'))
    assert len(namespaces) == 3
    assert len(inhabitants(namespaces)) >= 8
    parent.kill()
    assert parent.wait(10) == -signal.SIGKILL
    wait_until(lambda: not inhabitants(namespaces))
  mounts = pathlib.Path('/proc/self/mountinfo').read_text()
  assert not [space for space in namespaces if space in mounts]


def delay_lines_of(pid):
  """The processes that delay what a process's hosts send."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      status = (process / 'status').read_text()
      line = (process / 'cmdline').read_bytes()
    except OSError:  # it has ended
      continue
    if b'delay_line' in line and f'PPid:\t{pid}\n' in status:
      found.append(int(process.name))
  return found
