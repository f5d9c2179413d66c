"""Runs a module in a process that shows that it is alive.

    python -m experiments.heartbeat FILE PARENT MODULE ARGUMENTS...

A thread renews the time of FILE every second, from before MODULE is imported.
Compiling does not hold it up, nor does waiting for other processes: what does
is a process that is stopped, or that never comes back from a system call or
from a library that keeps the interpreter to itself.

What MODULE says as it exits, in the manner of `sys.exit('why')`, is also kept
in a file beside FILE, with the suffix of `WORDS`, once it has been shown.

The process ends with its parent, whose id is PARENT, however that ends.
"""

import ctypes
import os
import pathlib
import runpy
import signal
import sys
import threading
import time

WORDS = '.words'
_PERIOD = 1.0  # seconds
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def main() -> None:
  """Reads the arguments, begins to beat and runs the module."""
  file, parent, module, *arguments = sys.argv[1:]
  _end_with(int(parent))
  threading.Thread(
    target=_beat, args=(pathlib.Path(file), int(parent)), daemon=True
  ).start()
  sys.argv = [module, *arguments]
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except SystemExit as end:
    if not isinstance(end.code, str):
      raise
    print(end.code, file=sys.stderr, flush=True)
    pathlib.Path(file).with_suffix(WORDS).write_text(end.code, encoding='utf-8')
    sys.exit(1)


def _beat(file: pathlib.Path, parent: int) -> None:
  while True:
    _end_without(parent)
    os.utime(file)
    time.sleep(_PERIOD)


def _end_with(parent: int) -> None:
  if sys.platform == 'linux':  # at once, also for a process that is stopped
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  _end_without(parent)


def _end_without(parent: int) -> None:
  if os.getppid() != parent:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == '__main__':
  main()
