"""Signals: the first is a wish, the second acts as usual."""

import signal
import threading

import pytest

from experiments import interrupts


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
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


def test_handlers_come_back_without_a_signal():
  before = signal.getsignal(signal.SIGTERM)
  with interrupts.listening():
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before


def test_other_threads_do_not_listen():
  wishes = []

  def work():
    with interrupts.listening() as wish:
      wishes.append(wish.signal)

  thread = threading.Thread(target=work)
  thread.start()
  thread.join()
  assert wishes == [None]
