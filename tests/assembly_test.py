"""What a config asks for is checked before anything is built."""

import pytest

from experiments import assembly, errors
from tests import tiny


@pytest.mark.parametrize(
  'field, value',
  [
    ('workers', 0),
    ('batch_size', 0),
    ('micro_batches', 0),
    ('sync_every', 0),
    ('eval_limit', 0),
    ('seed', -1),
  ],
)
def test_numbers_that_are_too_small(field, value):
  with pytest.raises(errors.UserError, match=f'{field}={value} must be at le'):
    assembly.check(tiny.load({field: value}))


def test_a_batch_has_equal_parts():
  with pytest.raises(errors.UserError, match='batch_size=2 cannot be cut into'):
    assembly.check(tiny.load({'micro_batches': 3}))
