"""Sums between log points, and the search for what is not finite."""

import numpy as np
import pytest

from experiments import losses

ONES = np.ones((2, 3), np.float32)


def test_means_over_steps_and_workers():
  sums = losses.Losses()
  sums.add(0, 3 * ONES, ONES)
  sums.add(3, np.array([[1.0], [5.0]]), ONES[:, :1])
  assert sums.last == 3.0
  assert sums.pop() == {'train_loss': 3.0, 'gradient_norm': 1.0}
  sums.add(4, 7 * ONES, ONES)
  assert sums.pop()['train_loss'] == 7.0


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('which', ['loss', 'norm of the gradient'])
def test_names_the_first_step_then_the_worker(value, which):
  bad = np.ones((3, 4), np.float32)
  bad[0, 3] = bad[2, 1] = bad[1, 2] = value
  good = np.ones_like(bad)
  pair = (bad, good) if which == 'loss' else (good, bad)
  sums = losses.Losses()
  with pytest.raises(
    FloatingPointError, match=f'{which} of worker 2 at step 11 is {value}'
  ):
    sums.add(10, *pair)
  assert sums == losses.Losses()
