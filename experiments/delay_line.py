"""Cables with a delay: what goes in at one end comes out later at the other.

    python delay_line.py COUNT SECONDS

Makes `COUNT` pairs of network devices, `cable0` and `port0` and so on, in the
network namespace that it is started in, says that they are there, and carries
Ethernet frames from one to the other until it is killed. Those from a cable,
the host's end, to its port are held back for a while.

This takes a process because many kernels come without the queueing discipline
for it, netem. It runs alone, without the rest of this repository.
"""

import collections
import errno
import fcntl
import os
import select
import struct
import sys
import time

# From linux/if_tun.h.
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 1, 2

_MOST = 2**17  # bytes, more than any frame
_TURN = 64  # frames from one device before the next is looked at


def tap(name: str) -> int:
  """Makes a network device, and returns the file of what is sent through it.

  A frame comes with a header that tells what is left to do. So 64 kB that are
  to be cut into frames stay together, and are cut where they leave the machine,
  which here is nowhere.

  Args:
    name: of the device.
  """
  file = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
  mode = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
  fcntl.ioctl(file, _TUNSETIFF, struct.pack('16sH22x', name.encode(), mode))
  fcntl.ioctl(file, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
  return file


def carry(cables: list[int], ports: list[int], seconds: float) -> None:
  """Carries frames until a device vanishes."""
  other = dict(zip([*cables, *ports], [*ports, *cables], strict=True))
  late = set(cables)
  waiting = (
    collections.deque()
  )  # (when, to where, frame): all wait equally long
  while True:
    wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
    for file in select.select(list(other), [], [], wait)[0]:
      for _ in range(_TURN):
        try:
          frame = os.read(file, _MOST)
        except BlockingIOError:
          break
        if file in late:
          waiting.append((time.monotonic() + seconds, other[file], frame))
        else:
          _write(other[file], frame)
    while waiting and waiting[0][0] <= time.monotonic():
      _, file, frame = waiting.popleft()
      _write(file, frame)


def _write(file: int, frame: bytes) -> None:
  try:
    os.write(file, frame)
  except OSError as error:
    if error.errno != errno.EIO:  # the other end is down: the frame is lost
      raise


def main() -> None:
  """Makes the cables and serves them."""
  count, seconds = int(sys.argv[1]), float(sys.argv[2])
  cables = [tap(f'cable{i}') for i in range(count)]
  ports = [tap(f'port{i}') for i in range(count)]
  print('ready', flush=True)
  carry(cables, ports, seconds)


if __name__ == '__main__':
  main()
