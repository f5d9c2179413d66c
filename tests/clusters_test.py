"""Scripts for clusters: they are shell, and the command in them exists."""

import pathlib
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / 'experiments' / 'clusters').glob('*.sh'))
ARGUMENTS = [
  '--config=configs/gpt2_nano.py:smoke,method=slomo',
  '--workdir=a b',
]
# Stands in for srun and gcloud: shows what it is called with.
SHOW = '#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n'


def _command(script, folder):
  """The arguments that srun or gcloud gets."""
  for name in ('srun', 'gcloud'):
    (folder / name).write_text(SHOW)
    (folder / name).chmod(0o755)
  environment = {
    'PATH': f'{folder}:/usr/bin:/bin',
    'PYTHON': sys.executable,
    'TPU': 'slice',
    'ZONE': 'zone',
  }
  done = subprocess.run(
    ['bash', script, *ARGUMENTS],
    env=environment,
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  return done.stdout.splitlines()


def test_there_are_scripts():
  assert [script.name for script in SCRIPTS] == ['slurm.sh', 'tpu_pod.sh']


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.name)
def test_the_command_parses(script, tmp_path):
  subprocess.run(['bash', '-n', script], check=True, timeout=60)
  assert script.stat().st_mode & 0o111
  arguments = _command(script, tmp_path)
  if script.name == 'tpu_pod.sh':
    arguments = shlex.split(arguments[-1].removeprefix('--command='))
  start = arguments.index('-m')
  assert arguments[-2:] == ARGUMENTS
  assert {'--workers=devices', '--distributed'} <= set(arguments[start:])
  # All flags are known: the mistake in the config is what is complained of.
  done = subprocess.run(
    [sys.executable, *arguments[start:]],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 1
  assert "The nearest is 'slowmo'" in done.stderr
