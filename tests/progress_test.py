"""Progress: a bar on a terminal, a few lines elsewhere."""

import io
import time

from experiments import progress


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def _run(file, monkeypatch, seconds_per_step=1.0):
  """Ten steps of 100 tokens, of which two were made before."""
  now = 0.0
  monkeypatch.setattr(time, 'monotonic', lambda: now)
  with progress.Progress(1000, 200, file=file) as show:
    for step in range(8):
      now += seconds_per_step
      show.advance(100, 5.0 - step / 10)
      show.evaluated('validation 4.000')
  return file.getvalue()


def test_a_line_now_and_then(monkeypatch):
  lines = _run(io.StringIO(), monkeypatch, 10.0).splitlines()
  assert len(lines) == 4  # every 20 s, the first multiple of 10 above 15
  assert lines[0] == (
    ' 40%  loss 4.900, validation 4.000  10 tokens/s  60 s left'
  )


def test_no_lines_for_a_short_run(monkeypatch):
  assert _run(io.StringIO(), monkeypatch) == ''


def test_a_bar_on_a_terminal(monkeypatch):
  shown = _run(_Terminal(), monkeypatch)
  assert '1.00k/1.00k' in shown
  assert 'loss 4.300, validation 4.000' in shown
