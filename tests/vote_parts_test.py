"""The parts of a vote that are timed do what they are said to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import vote_parts
from signmomentum import bits, signs

ROWS = 2
PARTS = vote_parts.parts(ROWS * vote_parts.ROW, voters=8)


def _outputs(name):
  part = PARTS[name]
  arguments = part.make(jax.random.key(0))
  return arguments, part.run(*arguments)


def test_both_ways_to_pack_agree():
  (values,), packed = _outputs('pack')
  assert values.size == ROWS * vote_parts.ROW
  by_slices = PARTS['pack_by_slices'].run(values.at[:7].set(0.0))
  expected = bits.pack_signs(values.at[:7].set(0.0), ROWS)
  jax.tree.map(np.testing.assert_array_equal, by_slices, expected)
  with pytest.raises(AssertionError):  # zeros were seen
    np.testing.assert_array_equal(by_slices[1], packed[1])


def test_unpack_gives_signs_and_zeros():
  _, numbers = _outputs('unpack')
  assert numbers.size == ROWS * vote_parts.ROW
  assert set(np.unique(numbers)) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(
  'name, ties', [('vote', True), ('vote_decided', False)]
)
def test_voters_tie_where_it_is_said(name, ties):
  (votes, _), _ = _outputs(name)
  voters, plus = signs._count(votes)
  twice = (jnp.zeros_like(plus[0]), *plus)
  _, tie = bits.compare(twice, voters)
  assert bool(jnp.any(tie & signs._any(voters))) == ties


def test_the_check_notices_a_wrong_vote(monkeypatch):
  vote_parts.check(seed=0)
  majority = signs.majority

  def wrong(votes, key):
    result = majority(votes, key)
    flipped = result.elements[0].at[1, 2].add(jnp.uint32(1))
    return result._replace(elements=(flipped,))

  monkeypatch.setattr(signs, 'majority', wrong)
  with pytest.raises(RuntimeError, match='differs from the sum of signs'):
    vote_parts.check(seed=0)
