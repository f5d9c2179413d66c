"""What entry points do first, before any device is used."""

from collections.abc import Callable, Sequence
import sys
from typing import Any

from absl import app, flags, logging
import jax

from experiments import errors


def run(main: Callable[[Any], None], flags_parser: Callable | None = None):
  """Runs an entry point; a user's mistake ends it with one line, not a trace.

  Args:
    main: takes what the parser leaves of the command line.
    flags_parser: of the command line, as in `absl.app.run`.
  """
  parser = {'flags_parser': flags_parser} if flags_parser else {}
  try:
    app.run(main, **parser)
  except errors.UserError as error:
    sys.exit(f'error: {error}')


def require_flags_only(argv: Sequence[str]) -> None:
  """Refuses what is left of a command line after its flags.

  Raises:
    UserError: if there is anything.
  """
  if argv[1:]:
    raise errors.UserError(
      f'Not a flag: {" ".join(argv[1:])}. See --help for those there are.'
    )


def quiet() -> None:
  """Hides what libraries log of their doings, unless --verbosity is set."""
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)


def set_cpu_devices(
  executor: str, workers: int, cpu_devices: int | None = None
) -> None:
  """Sets how many virtual devices the CPU is.

  Simulated workers need them too: to see what a method sends, its program is
  compiled (not run) for one CPU device per worker. Real workers have the
  devices that there are, unless told otherwise.

  Args:
    executor: a key of `executors.EXECUTORS`.
    workers: number of workers.
    cpu_devices: what the user asked for, None if nothing.
  """
  if cpu_devices is None and executor == 'simulated':
    # of no worker at all, the check of the config tells better than JAX
    cpu_devices = max(1, workers, jax.config.jax_num_cpu_devices)
  if cpu_devices is not None:
    jax.config.update('jax_num_cpu_devices', cpu_devices)
