"""The example of the README runs and learns."""

import pathlib
import re

README = pathlib.Path(__file__).parent.parent / 'README.md'


def test_the_example_learns():
  text = README.read_text(encoding='utf-8')
  (example,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  variables = {}
  exec(compile(example, 'README.md', 'exec'), variables)
  assert variables['losses'].mean() < 0.01
