"""What some tests need and not every machine has."""

import functools
import os

import pytest

from experiments import network

# Set where these tests are to run: there, to skip them is a failure.
REQUIRED = 'REQUIRE_NETWORK_TESTS'


def hosts():
  """Skips the test where there can be no hosts, or fails it if required."""
  reason = _reason()
  if reason and os.environ.get(REQUIRED):
    pytest.fail(f'{REQUIRED} is set. {reason}')
  if reason:
    pytest.skip(reason)


@functools.cache
def _reason():
  return network.missing()
