"""The examples of the README run, and the first one learns."""

import pathlib
import re

README = pathlib.Path(__file__).parent.parent / 'README.md'


def test_the_examples():
  text = README.read_text(encoding='utf-8')
  first, *others = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  variables = {}
  exec(compile(first, 'README.md', 'exec'), variables)
  assert variables['losses'].mean() < 0.01
  for example in others:  # which go on from it
    exec(compile(example, 'README.md', 'exec'), variables)
