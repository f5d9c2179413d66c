"""Signals: the first is a wish, the second acts as usual."""

import pathlib
import select
import signal
import subprocess
import sys
import threading

import pytest

from experiments import interrupts

ROOT = pathlib.Path(interrupts.__file__).parent.parent
SECONDS = 60
NUMBERS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize('number', NUMBERS)
def test_the_first_is_a_wish_and_the_second_as_usual(number):
  heard = []
  before = signal.signal(number, lambda *_: heard.append(number))
  try:
    with interrupts.listening() as wish:
      assert wish.signal is None
      signal.raise_signal(number)
      assert wish.signal == number.name
      assert heard == []
      signal.raise_signal(number)
      assert heard == [number]
    signal.raise_signal(number)
    assert heard == [number, number]
  finally:
    signal.signal(number, before)


def test_the_second_may_be_heard_of(capfd):
  heard = []
  with interrupts.listening(second=lambda: heard.append(True)) as wish:
    signal.raise_signal(signal.SIGTERM)
    assert heard == []
    for number in NUMBERS:
      signal.raise_signal(number)
    assert heard == [True, True]
    assert wish.signal == 'SIGTERM'
  assert capfd.readouterr().err == ''


def test_what_was_ignored_is_again_from_the_second(capsys):
  """Runs of a sweep are asked to stop once a second."""
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with interrupts.listening('It stops.') as wish:
      for _ in range(3):
        signal.raise_signal(signal.SIGINT)
      assert wish.signal == 'SIGINT'
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, before)
  assert capsys.readouterr().err == 'It stops.\n'


_BUSY = """
import hashlib
from experiments import interrupts
interrupts.end_commands()
with interrupts.listening('It stops.'):
  print('ready', flush=True)
  # As XLA does, it leaves the interpreter to others, and looks at no signals.
  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
"""


@pytest.mark.parametrize('number', NUMBERS)
def test_both_are_heard_while_something_else_computes(number):
  with subprocess.Popen(
    [sys.executable, '-c', _BUSY],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as busy:
    try:
      assert busy.stdout.readline() == 'ready\n'
      busy.send_signal(number)
      assert select.select([busy.stderr], [], [], SECONDS)[0]
      assert busy.stderr.readline() == 'It stops.\n'
      assert busy.poll() is None
      busy.send_signal(number)
      assert busy.wait(SECONDS) == 128 + number
      assert busy.stderr.read() == ''
    finally:
      busy.kill()


def test_commands_end_without_a_traceback():
  before = signal.getsignal(signal.SIGINT)
  try:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a shell's `command &`
    interrupts.end_commands()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.end_commands()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
  finally:
    signal.signal(signal.SIGINT, before)


def test_handlers_come_back_without_a_signal():
  before = signal.getsignal(signal.SIGTERM)
  with interrupts.listening():
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before
  assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_do_not_listen():
  wishes = []

  def work():
    with interrupts.listening() as wish:
      wishes.append(wish.signal)

  thread = threading.Thread(target=work)
  thread.start()
  thread.join()
  assert wishes == [None]
