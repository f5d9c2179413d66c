"""Configs: files, arguments, overrides, and what happens when one is wrong."""

import subprocess
import sys
import textwrap

import pytest

from configs import gpt2_nano
from experiments import config, errors

NANO = 'configs/gpt2_nano.py'


@pytest.fixture
def family(tmp_path):
  path = tmp_path / 'family.py'
  path.write_text(
    textwrap.dedent("""
      import ml_collections
      from experiments import config

      def get_config(arg=''):
        args = config.parse_arg(arg, size=3, name='a', small=False)
        return ml_collections.ConfigDict({
          'size': args.size, 'name': args.name, 'small': args.small,
          'rate': 0.5, 'anything': None, 'layers': (1, 2),
          'model': {'width': 8, 'deep': {'depth': 2}},
        })
      """)
  )
  return str(path)


def test_defaults_and_arguments(family):
  assert config.load(family).size == 3
  loaded = config.load(f'{family}:size=4, name=b=c,small')
  assert (loaded.size, loaded.name, loaded.small) == (4, 'b=c', True)


def test_parsed_arguments_are_locked():
  args = config.parse_arg('', size=3)
  with pytest.raises(AttributeError):
    args.sise = 3


def test_keyword_arguments_win(family):
  loaded = config.load(f'{family}:size=4,name=b', size=5)
  assert (loaded.size, loaded.name) == (5, 'b')
  assert config.load(family, small=True).small is True


@pytest.mark.parametrize(
  'field, text, value',
  [
    ('size', '7', 7),
    ('rate', '1e-3', 1e-3),
    ('rate', '2', 2.0),
    ('name', '3', '3'),
    ('name', 'a=b', 'a=b'),
    ('small', 'True', True),
    ('small', 'false', False),
    ('model.width', '16', 16),
    ('model.deep.depth', '4', 4),
    ('layers', '(3, 4, 5)', (3, 4, 5)),
    ('anything', '[1]', [1]),
  ],
)
def test_overrides(family, field, text, value):
  by_mapping = config.load(family, {field: text})
  by_words = config.load(family, [f'{field}={text}'])
  assert by_mapping == by_words
  found = by_mapping
  for key in field.split('.'):
    found = found[key]
  assert found == value
  assert type(found) is type(value)


@pytest.mark.parametrize(
  'field, value',
  [
    ('size', '1.5'),
    ('size', '1e3'),
    ('size', 2.0),
    ('size', True),
    ('size', 'x'),
    ('rate', 'fast'),
    ('rate', '[1.0]'),
    ('small', 'maybe'),
    ('small', '1'),
    ('name', 3),
    ('layers', '3'),
    ('model.width', None),
  ],
)
def test_values_of_another_type_are_refused(family, field, value):
  with pytest.raises(errors.UserError, match=f"'{field}' is of type"):
    config.load(family, {field: value})


@pytest.mark.parametrize(
  'field, nearest',
  [
    ('sise', 'size'),
    ('model.with', 'model.width'),
    ('model.deep.dept', 'model.deep.depth'),
    ('modle.width', 'model'),
  ],
)
def test_unknown_field_names_the_nearest(family, field, nearest):
  with pytest.raises(errors.UserError, match=f"nearest is '{nearest}'"):
    config.load(family, {field: '1'})


def test_groups_and_values_are_told_apart(family):
  with pytest.raises(errors.UserError, match='group; set one of.*deep, width'):
    config.load(family, {'model': '3'})
  with pytest.raises(errors.UserError, match="'size' is a value"):
    config.load(family, {'size.x': '3'})
  with pytest.raises(errors.UserError, match='not of the form field=value'):
    config.load(family, ['size'])


@pytest.mark.parametrize(
  'arg, message',
  [
    ('siz=3', "Unknown config argument 'siz'. The nearest is 'size'"),
    ('size=3,size=4', 'given twice'),
    ('size=1.5', "'size' is of type int"),
    ('size', "'size' is of type int"),
  ],
)
def test_wrong_arguments(family, arg, message):
  with pytest.raises(errors.UserError, match=message):
    config.load(f'{family}:{arg}')


def test_file_errors(family, tmp_path):
  with pytest.raises(errors.UserError, match='nearest is .*family.py'):
    config.load(family.replace('family', 'familly'))
  with pytest.raises(errors.UserError, match='nor any other in .*nowhere'):
    config.load(str(tmp_path / 'nowhere' / 'config.py'))
  (tmp_path / 'empty.py').write_text('')
  with pytest.raises(errors.UserError, match='no function get_config'):
    config.load(str(tmp_path / 'empty.py'))
  (tmp_path / 'config.txt').write_text('')
  with pytest.raises(errors.UserError, match='not a Python file'):
    config.load(str(tmp_path / 'config.txt'))


def test_result_is_locked(family):
  loaded = config.load(family)
  with pytest.raises(AttributeError):
    loaded.sise = 3
  with pytest.raises(AttributeError):
    loaded.model.deep.with_typo = 3


def test_save_and_read(tmp_path):
  saved = config.load(NANO, method='slowmo')
  path = tmp_path / 'config.json'
  config.save(saved, path)
  assert config.read(path) == saved
  assert config.read(path).is_locked
  assert [file.name for file in tmp_path.iterdir()] == ['config.json']
  with pytest.raises(errors.UserError, match='No config at'):
    config.read(tmp_path / 'other.json')


def _command_line(family, *flags):
  script = textwrap.dedent("""
    from absl import flags
    from experiments import config, entry

    _CONFIG = flags.DEFINE_string('config', None, 'Config.', required=True)

    def main(overrides):
      print(config.load(_CONFIG.value, overrides).to_json())

    entry.run(main, flags_parser=config.parse_flags)
    """)
  return subprocess.run(
    [sys.executable, '-c', script, f'--config={family}:size=5', *flags],
    capture_output=True,
    text=True,
    check=False,
  )


def test_command_line(family):
  result = _command_line(
    family, '--config.model.width=16', '--config.small', '--config.name=a b'
  )
  assert result.returncode == 0, result.stderr
  loaded = config.ml_collections.ConfigDict(config.json.loads(result.stdout))
  assert (loaded.size, loaded.model.width) == (5, 16)
  assert (loaded.small, loaded.name) == (True, 'a b')


@pytest.mark.parametrize(
  'flag, message',
  [
    ('--config.model.with=16', "The nearest is 'model.width'"),
    ('--cnofig.size=3', 'cnofig'),
    ('stray', 'Not a flag: stray'),
  ],
)
def test_command_line_errors_have_no_traceback(family, flag, message):
  result = _command_line(family, flag)
  output = result.stdout + result.stderr
  assert result.returncode == 1
  assert message in output
  assert 'Traceback' not in output


@pytest.mark.parametrize('method', gpt2_nano.PRESETS)
def test_nano_knows_every_method(method):
  loaded = config.load(NANO, method=method)
  assert loaded.method == method
  assert loaded.optimizer.to_dict() == gpt2_nano.PRESETS[method]


def test_nano_counts_whole_rounds():
  default = config.load(NANO)
  assert (default.workers, default.sync_every) == (4, 12)
  assert default.num_steps == 3000 * 12
  other = config.load(NANO, sync_every=7)
  for field in ('num_steps', 'log_every', 'eval_every', 'checkpoint_every'):
    assert other[field] % 7 == 0
    assert other[field] > 0


def test_nano_smoke_is_short():
  smoke = config.load(f'{NANO}:smoke')
  assert smoke.num_steps < 100
  assert smoke.optimizer.warmup_steps < smoke.num_steps


def test_nano_refuses():
  with pytest.raises(errors.UserError, match="nearest is 'slowmo'"):
    config.load(NANO, method='slomo')
  with pytest.raises(errors.UserError, match='sync_every must be at least 1'):
    config.load(NANO, sync_every=0)
