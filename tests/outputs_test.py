"""Commands refuse what cannot be written to, before they work."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from experiments import config, errors, outputs, provenance
from tests import tiny

ROOT = pathlib.Path(outputs.__file__).parent.parent
CONFIG = ' '.join([f'--config={tiny.SPEC}', *tiny.flags()])
# Flags that say where to write, and what would come next.
COMMANDS = {
  'train': (f'{CONFIG} --workdir=WHERE', 'assembly.build'),
  'compare': (f'{CONFIG} --methods=adamw --workdir=WHERE', 'sweep.run'),
  'theory': ('--workdir=WHERE', 'studies.measure'),
  'profile_rounds': (f'{CONFIG} --workdir=WHERE', 'assembly.build'),
  'fits': (f'{CONFIG} --json=WHERE', 'at_size.lower'),
  'bench_gpu': ('--platform=cpu --json=WHERE', 'vote_parts.check'),
  'bench_tpu': ('--json=WHERE', 'chips.prepare'),
  'bench_vote': ('--json=WHERE', 'vote_costs.counting'),
  'bench_wire': ('--workdir=WHERE', 'network.missing'),
  'choose': (
    '--workdir=RUN --task=piqa:x --output=WHERE',
    'finetuning.choices.of_run',
  ),
  'export_weights': (
    '--workdir=RUN --output=WHERE',
    'finetuning.trained.load',
  ),
  'make_token_files': (
    '--from=TEXT --tokenizer=bytes --out=WHERE',
    'data.token_writer._write',
  ),
  'prepare_tfds': (
    '--name=tiny_images --data_dir=WHERE',
    'data.tfds_sources._lacks',
  ),
}
# Runs all of them in one process: most of the time goes into imports.
_SCRIPT = """
import importlib, json, sys, traceback
from absl import flags
from experiments import config, errors
import tests.tiny_tfds

def stop(*_):
  raise AssertionError('the work began')

tests.tiny_tfds.TinyImages.download_and_prepare = stop
found = {}
for name, (words, work) in json.loads(sys.argv[1]).items():
  command = importlib.import_module(f'experiments.{name}')
  module, _, function = f'experiments.{work}'.rpartition('.')
  before = getattr(importlib.import_module(module), function)
  setattr(sys.modules[module], function, stop)
  try:
    argv = [name, *words.split()]
    if '--config=' in words:
      argv = config.parse_flags(argv)
    else:
      argv = flags.FLAGS(argv)
    command.main(argv)
    found[name] = 'nothing is refused'
  except errors.UserError as error:
    found[name] = f'error: {error}'
  except Exception:
    found[name] = traceback.format_exc()
  setattr(sys.modules[module], function, before)
  for flag in list(flags.FLAGS.flags_by_module_dict()[command.__name__]):
    delattr(flags.FLAGS, flag.name)
print(json.dumps(found))
"""


@pytest.fixture(scope='module')
def answers(tmp_path_factory):
  """What the commands say of a place below a file."""
  folder = tmp_path_factory.mktemp('outputs')
  text, run = folder / 'text.txt', folder / 'run'
  text.write_text('Some text.\n')
  run.mkdir()
  config.save(tiny.load(), run / provenance.CONFIG)
  places = {'WHERE': text / 'below' / 'it', 'RUN': run, 'TEXT': text}

  def placed(words):
    for name, path in places.items():
      words = words.replace(name, str(path))
    return words

  commands = {
    name: (placed(words), work) for name, (words, work) in COMMANDS.items()
  }
  done = subprocess.run(
    [sys.executable, '-c', _SCRIPT, json.dumps(commands)],
    cwd=ROOT,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('command', COMMANDS)
def test_what_is_in_the_way_is_told_before_the_work(command, answers):
  words, _ = COMMANDS[command]
  (flag,) = re.findall(r'(--\w+)=WHERE', words)
  message = f'error: Cannot make the directory .*text.txt.*{flag}'
  assert re.match(message, answers[command]), answers[command]


def test_all_commands_that_write_are_among_them():
  writes = re.compile(r"DEFINE_\w+\(\s*'(workdir|out|output|json)'")
  found = {
    path.stem
    for path in (ROOT / 'experiments').glob('*.py')
    if writes.search(path.read_text(encoding='utf-8'))
  }
  reads = {'generate'}
  assert found - reads == set(COMMANDS) - {'prepare_tfds'}


def test_a_directory(tmp_path):
  made = outputs.directory(tmp_path / 'a' / 'b')
  assert made.is_dir()
  assert outputs.directory(str(made)) == made
  (tmp_path / 'file').write_text('')
  for path in (tmp_path / 'file', tmp_path / 'file' / 'below'):
    with pytest.raises(errors.UserError, match=f'{path}: .*--workdir'):
      outputs.directory(path)


def test_a_file(tmp_path):
  path = tmp_path / 'a' / 'b.json'
  assert outputs.file(str(path), '--json') == path
  assert path.parent.is_dir()
  path.write_text('')
  assert outputs.file(path, '--json') == path
  assert outputs.file(None, '--json') is None
  with pytest.raises(errors.UserError, match=f'file {tmp_path}.*--json'):
    outputs.file(tmp_path, '--json')


def test_without_permission(tmp_path, monkeypatch):
  path = tmp_path / 'file'
  path.write_text('')
  # Tests may be run by root, who may do everything.
  denied = set()
  monkeypatch.setattr(os, 'access', lambda path, _: str(path) not in denied)
  outputs.file(path, '--json')
  denied.add(str(path))
  with pytest.raises(errors.UserError, match=f'file {path}.*--json'):
    outputs.file(path, '--json')
  denied.add(str(tmp_path))
  with pytest.raises(errors.UserError, match=f'to {tmp_path}. .*--workdir'):
    outputs.directory(tmp_path)


def test_a_file_is_written_whole_or_stays(tmp_path):
  path = tmp_path / 'results.md'
  outputs.write(path, 'ä')
  assert path.read_bytes() == 'ä'.encode()
  with pytest.raises(UnicodeEncodeError):
    outputs.write(path, '\ud800')
  assert path.read_bytes() == 'ä'.encode()
