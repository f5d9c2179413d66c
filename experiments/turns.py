"""Times of functions that take turns, so that all meet the same weather."""

from collections.abc import Callable, Mapping
import statistics
import time
from typing import Any

import jax


def medians(
  ways: Mapping[str, Callable[[], Any]], repeats: int, calls: int = 1
) -> dict[str, float]:
  """Seconds of a call of each function, the median of its turns.

  Args:
    ways: functions by name, each of which returns what is to be waited for. One
      turn of each, which compiles, is not counted.
    repeats: turns of each.
    calls: in a turn, which waits for the last of them only: where starting a
      call takes time, a device starts with the next one while it computes.
  """
  times = {name: [] for name in ways}
  for repeat in range(repeats + 1):
    for name, way in ways.items():
      began = time.perf_counter()
      for _ in range(calls):
        result = way()
      jax.block_until_ready(result)
      if repeat:
        times[name].append((time.perf_counter() - began) / calls)
      del result  # or it would be there while others have their turns
  return {name: statistics.median(taken) for name, taken in times.items()}


class Carried:
  """A state that goes from call to call, each of which reuses its memory.

  Args:
    state: the first one, which is used up.
  """

  def __init__(self, state: Any):
    self.state = state

  def way(
    self, step: Callable[..., tuple[Any, Any]], *inputs: Any
  ) -> Callable[[], Any]:
    """A function for `medians`.

    Args:
      step: takes the state and the inputs, and returns the next state and
        outputs. Several steps may share a state, if they leave it alike.
      *inputs: the same each time.
    """

    def call():
      self.state, outputs = step(self.state, *inputs)
      return self.state, outputs

    return call
