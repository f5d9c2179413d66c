"""The compiled program says what the interfaces send: on real processes."""

import needs
import pytest

from experiments import exchanges, network, wire_runs, wire_worker

# Start-up of the processes is most of it, on however busy a machine.
pytestmark = pytest.mark.timeout(240)

TASK = wire_worker.Task(
  names=list(exchanges.EXCHANGES),
  leaves=[1],
  parameters=2**20,
  rate=None,
  latency=0.0,
  local_steps=[1],
  step_seconds=0.01,
  seconds=0.05,
  seed=0,
)


@pytest.fixture(scope='module')
def rows():
  needs.hosts()
  return {row.name: row for row in wire_runs.measure(4, '1gbit', TASK)}


@pytest.mark.parametrize('name', exchanges.EXCHANGES)
def test_the_compiled_program_is_what_the_interfaces_send(rows, name):
  row = rows[name]
  assert row.processes == 4
  # Long messages are filled up to whole rows of words.
  formula = exchanges.EXCHANGES[name].bits(4)
  assert formula <= row.compiled_bits < 1.02 * formula
  # Without frames, what remains is what the processes say to each other before
  # they begin and when they have ended.
  assert row.compiled_bits < row.payload_bits < 1.05 * row.compiled_bits
  # With them: one header for each 1448 bytes, and acknowledgements.
  framed = network.FRAMING * row.compiled_bits
  assert 0.95 * framed < row.wire_bits < 1.05 * framed


@pytest.mark.parametrize('name', exchanges.EXCHANGES)
def test_no_exchange_is_faster_than_the_link(rows, name):
  row = rows[name]
  assert row.transmission == pytest.approx(
    row.compiled_bits * TASK.parameters / 1e9
  )
  assert row.seconds > row.transmission
  assert 0 < row.steps[1] < row.ceiling[1] <= 100
