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


def test_the_comparison_is_that_of_the_results():
  text = README.read_text(encoding='utf-8')
  table = text.split('<!-- methods -->')[1].split('<!-- /methods -->')[0]
  said = {row[0]: tuple(row[1:3]) for row in _rows(table)[1:]}
  results = README.parent / 'experiments/results/gpt2_nano/results.md'
  study = results.read_text(encoding='utf-8').split('\n### ')[0]
  found = {row[0]: (row[2], row[1]) for row in _rows(study)[1:]}
  assert len(said) == 19
  assert said == found


def test_the_images_are_those_of_the_results():
  text = README.read_text(encoding='utf-8')
  table = text.split('<!-- images -->')[1].split('<!-- /images -->')[0]
  said = {row[0]: row[1:] for row in _rows(table)[1:]}
  results = README.parent / 'experiments/results/vit_mnist/results.md'
  found = {}
  studies = results.read_text(encoding='utf-8').split('### workers_')[1:]
  for study in studies:
    workers = int(study.splitlines()[0])
    for method, _, _, top_1, _, rate, bits, *_ in _rows(study.split('### ')[0])[
      1:
    ]:
      found.setdefault(method, {'rate': rate})[workers] = top_1
      found[method][f'bits_{workers}'] = bits
  columns = ('rate', 4, 8, 16, 32, 'bits_32')
  assert len(said) == 9
  assert said == {m: [row[c] for c in columns] for m, row in found.items()}


def _rows(table):
  """The cells of a Markdown table, without the line below its head."""
  lines = [line for line in table.splitlines() if line.startswith('| ')]
  rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  return [row for row in rows if set(row[0]) != {'-'}]
