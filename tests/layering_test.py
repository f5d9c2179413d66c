"""Imports point down, and only one module talks to other devices."""

import ast
import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LIBRARY = sorted((ROOT / 'signmomentum').rglob('*.py'))
EVERYTHING = [
  *LIBRARY,
  *sorted((ROOT / 'experiments').rglob('*.py')),
  *sorted((ROOT / 'configs').rglob('*.py')),
]

# From the bottom up. A module imports from lower rows only.
LAYERS = (
  ('arguments', 'kernels'),
  ('bits', 'draws'),
  ('signs', 'levels'),
  ('trees', 'messages', 'collectives'),
  ('aggregator', 'parts'),
  ('aggregate', 'quantized', 'votes', 'sparse', 'feedback', 'averaging')
  + ('momentum', 'compress', 'outer', 'layout', 'part_signs'),
  ('ternary', 'sharding'),
  ('local_steps', 'workers'),
  ('optimizers', 'compressed_sgd'),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
# Compiled programs are read beside the layers, on top of the bottom one.
LEVEL |= {'hlo': 0, 'links': 0, 'wire': 1}
LEVEL['__init__'] = len(LAYERS)

DEPENDENCIES = {'jax', 'optax', 'numpy', 'signmomentum'}
COLLECTIVES = {
  'all_gather',
  'all_gather_invariant',
  'all_to_all',
  'axis_index',
  'axis_size',
  'pbroadcast',
  'pcast',
  'pmax',
  'pmean',
  'pmin',
  'ppermute',
  'pshuffle',
  'psum',
  'psum_scatter',
  'pswapaxes',
  'pvary',
  'ragged_all_to_all',
}
# Types read as words of the language; everything else shows its module.
MEMBERS_ALLOWED = {'typing', 'collections.abc'}
# The package has this function under the name of its module.
SHADOWING = {'signmomentum.local_steps.local_steps'}


def _imports(tree):
  """Yields (module, member or None) of every import, wherever it stands."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name, None
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, 'relative import'
      for alias in node.names:
        yield node.module, alias.name


def _own_imports(tree):
  """Yields the names of this library's modules that are imported."""
  for module, member in _imports(tree):
    top, _, rest = module.partition('.')
    if top == 'signmomentum':
      yield rest.split('.')[0] or member or '__init__'


def _upward(name, tree):
  """Returns the imports of module `name` that do not point down."""
  assert name in LEVEL, f'{name}.py has no layer: give it one in LAYERS'
  own = list(_own_imports(tree))
  unknown = [other for other in own if other not in LEVEL]
  assert not unknown, f'{unknown} have no layer: give them one in LAYERS'
  return [other for other in own if LEVEL[other] >= LEVEL[name]]


def _foreign(tree):
  """Returns what is neither the standard library nor a dependency."""
  tops = {module.partition('.')[0] for module, _ in _imports(tree)}
  return tops - DEPENDENCIES - sys.stdlib_module_names


def _collectives(tree):
  """Returns the collectives that are named, as lax.psum or as imports."""
  named = {member for module, member in _imports(tree) if 'lax' in module}
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute):
      owner = node.value
      if getattr(owner, 'attr', getattr(owner, 'id', None)) == 'lax':
        named.add(node.attr)
  return named & COLLECTIVES


def _members(tree):
  """Returns imports of something that is not a module."""
  return [
    f'{module}.{member}'
    for module, member in _imports(tree)
    if member and module not in MEMBERS_ALLOWED
    if not _is_module(f'{module}.{member}')
    if f'{module}.{member}' not in SHADOWING
  ]


def _is_module(name):
  try:
    return importlib.util.find_spec(name) is not None
  except ModuleNotFoundError:  # the parent is no package
    return False


def _parse(path):
  return ast.parse(path.read_text(encoding='utf-8'))


def _ids(path):
  return str(path.relative_to(ROOT))


@pytest.mark.parametrize('path', LIBRARY, ids=_ids)
def test_imports_point_down(path):
  assert not _upward(path.stem, _parse(path))


@pytest.mark.parametrize('path', LIBRARY, ids=_ids)
def test_library_needs_jax_and_optax_only(path):
  assert not _foreign(_parse(path))


@pytest.mark.parametrize('path', LIBRARY, ids=_ids)
def test_only_collectives_communicates(path):
  if path.stem != 'collectives':
    assert not _collectives(_parse(path))


@pytest.mark.parametrize('path', EVERYTHING, ids=_ids)
def test_modules_are_imported_not_members(path):
  if path != ROOT / 'signmomentum' / '__init__.py':  # which lists the names
    assert not _members(_parse(path))


@pytest.mark.parametrize('path', EVERYTHING, ids=_ids)
def test_no_private_jax(path):
  assert 'jax._src' not in path.read_text(encoding='utf-8')


@pytest.mark.parametrize('name', ['utils', 'helpers', 'misc'])
def test_no_drawer_for_everything(name):
  assert not [path for path in EVERYTHING if path.stem == name]


@pytest.mark.parametrize('package', ['models', 'data'])
def test_data_and_models_know_nothing_of_what_uses_them(package):
  for path in (ROOT / 'experiments' / package).rglob('*.py'):
    for module, member in _imports(_parse(path)):
      name = f'{module}.{member}' if module == 'experiments' else module
      if name.startswith('experiments.'):
        assert name.split('.')[1] in (package, 'errors', 'outputs'), path


# The tests above are only as good as what they detect.


@pytest.mark.parametrize(
  'name, source',
  [
    ('signs', 'from signmomentum import trees'),
    ('bits', 'import signmomentum.signs'),
    ('outer', 'from signmomentum import aggregate, bits'),
    ('aggregate', 'def f():\n  from signmomentum import optimizers'),
    ('wire', 'from signmomentum import signs'),
    ('workers', 'import signmomentum'),
  ],
)
def test_detects_upward_imports(name, source):
  assert _upward(name, ast.parse(source))


@pytest.mark.parametrize(
  'source',
  ['import flax', 'from experiments import text', 'import absl.logging'],
)
def test_detects_foreign_imports(source):
  assert _foreign(ast.parse(source))


@pytest.mark.parametrize(
  'source',
  ['jax.lax.psum(x, a)', 'lax.pcast(x)', 'from jax.lax import all_gather'],
)
def test_detects_collectives(source):
  assert _collectives(ast.parse(source))


@pytest.mark.parametrize(
  'source', ['from jax import P', 'from os.path import join']
)
def test_detects_members(source):
  assert _members(ast.parse(source))
