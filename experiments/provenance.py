"""What a run was: config and versions, kept beside what came out of it."""

from importlib import metadata
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax
import ml_collections

from experiments import config as config_lib
from experiments import errors, outputs

CONFIG = 'config.json'
VERSIONS = 'versions.json'
_PACKAGES = ('jax', 'jaxlib', 'optax', 'flax', 'orbax-checkpoint', 'numpy')


def versions() -> dict[str, Any]:
  """Versions, devices and commit of this process."""
  device = jax.devices()[0]
  return {
    'python': platform.python_version(),
    **{package: metadata.version(package) for package in _PACKAGES},
    'platform': f'{platform.system()} {platform.machine()}',
    'backend': device.platform,
    'device': device.device_kind,
    'processes': jax.process_count(),
    'cpus': os.cpu_count(),
    'commit': _commit(),
  }


def record(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Writes the config and the versions, or sees that the config is the same.

  Each call of the same command adds its versions to the list.

  Args:
    config: of the run.
    workdir: the run's directory, which is made if there is none.

  Raises:
    UserError: if the directory cannot be made, or has a run with another
      config; the message names the fields that differ.
  """
  outputs.directory(workdir)
  path = workdir / CONFIG
  if path.exists():
    _require_equal(config, config_lib.read(path), workdir)
  else:
    config_lib.save(config, path)
  calls = recorded(workdir)
  this = versions() | {'seed': config.seed}
  if this not in calls:
    text = json.dumps([*calls, this], indent=2) + '\n'
    outputs.write(workdir / VERSIONS, text)


def recorded(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """What made a run: the versions, device and seed of each call."""
  path = workdir / VERSIONS
  return json.loads(path.read_text()) if path.exists() else []


def _require_equal(
  new: ml_collections.ConfigDict,
  old: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> None:
  # Through JSON, so that a tuple equals the list it has become.
  new, old = _flat(json.loads(new.to_json())), _flat(json.loads(old.to_json()))
  differences = [
    f'{field} is {_show(new, field)}, was {_show(old, field)}'
    for field in {**old, **new}
    if field not in new or field not in old or new[field] != old[field]
  ]
  if differences:
    raise errors.UserError(
      f'{workdir} has a run with another config: {"; ".join(differences)}. Use'
      ' another --workdir, or the same config to go on.'
    )


def _flat(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def _show(flat: dict[str, Any], field: str) -> str:
  return repr(flat[field]) if field in flat else 'absent'


def _commit() -> str | None:
  """The commit of the checkout that this file is in, if it is in one."""
  try:
    done = subprocess.run(
      ['git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*'],
      cwd=pathlib.Path(__file__).parent,
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()
