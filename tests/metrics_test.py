"""The log: one line a step, also after going on from a checkpoint."""

from experiments import metrics


def _write(workdir, start, steps, **values):
  with metrics.Metrics(workdir, start) as log:
    for step in steps:
      log.write(step, {'loss': float(step)} | values)


def test_values_of_a_step_share_a_line(tmp_path):
  with metrics.Metrics(tmp_path, 0) as log:
    log.write(1, {'a': 1.0})
    log.write(1, {'b': 2.0})
    log.write(2, {'a': 3.0})
  assert metrics.read(tmp_path) == [
    {'step': 1, 'a': 1.0, 'b': 2.0},
    {'step': 2, 'a': 3.0},
  ]


def test_going_on_cuts_off_later_steps(tmp_path):
  _write(tmp_path, 0, [10, 20, 30])
  _write(tmp_path, 20, [30, 40], again=True)
  records = metrics.read(tmp_path)
  assert [record['step'] for record in records] == [10, 20, 30, 40]
  assert ['again' in record for record in records] == [False, False, True, True]


def test_a_torn_line_is_cut_off(tmp_path):
  _write(tmp_path, 0, [10, 20])
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 30, "lo')
  _write(tmp_path, 20, [30])
  assert [record['step'] for record in metrics.read(tmp_path)] == [10, 20, 30]


def test_flush_is_enough(tmp_path):
  with metrics.Metrics(tmp_path, 0) as log:
    log.write(1, {'a': 1.0})
    log.flush()
    assert metrics.read(tmp_path) == [{'step': 1, 'a': 1.0}]


def test_writes_events(tmp_path):
  _write(tmp_path, 0, [10])
  (events,) = (tmp_path / 'tensorboard').iterdir()
  assert b'loss' in events.read_bytes()


def test_no_log_no_records(tmp_path):
  assert metrics.read(tmp_path / 'nothing') == []
