"""Public names: each says what it is, with an example that runs."""

import doctest
import inspect

import pytest

import signmomentum as sm

NAMES = [name for name in sm.__all__ if name != 'wire']


@pytest.mark.parametrize('name', NAMES)
def test_has_a_docstring_with_an_example(name):
  text = inspect.getdoc(getattr(sm, name))
  assert 'Example:' in text
  examples = doctest.DocTestParser().get_examples(text)
  # it is about this name: a state, or what makes it, is of this library
  assert any('import signmomentum as sm' in e.source for e in examples)
  assert any('sm.' in e.source for e in examples)


def test_names_are_sorted_and_there():
  assert list(sm.__all__) == sorted(sm.__all__)
  assert all(hasattr(sm, name) for name in sm.__all__)
