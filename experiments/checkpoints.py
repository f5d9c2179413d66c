"""Checkpoints: everything that a run needs to go on as if it had not stopped.

    state     parameters and optimizer state; shared leaves once, per-worker
              leaves as [workers, ...]
    position  the step, and what the next log point has summed up so far

The rest follows from the step and the config: the place in the round, the data
and the keys of dropout. Orbax writes a folder under another name and renames
it when it is whole, so what has a number for a name is complete.
"""

import os
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from experiments import errors
import signmomentum as sm

_FOLDER = 'checkpoints'


class Checkpoints:
  """The checkpoints of one run, to be used in a `with` statement.

  Args:
    workdir: the run's directory.
    keep: how many to keep, the newest.
  """

  def __init__(self, workdir: str | os.PathLike, keep: int = 2):
    self._folder = pathlib.Path(workdir).absolute() / _FOLDER
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        # The next step reuses the buffers of the state: write them first.
        enable_async_checkpointing=False,
      ),
    )

  def __enter__(self) -> 'Checkpoints':
    """Returns itself."""
    return self

  def __exit__(self, *_: Any) -> None:
    """Frees what orbax holds."""
    self._manager.close()

  def latest(self) -> int | None:
    """The step of the newest checkpoint, None without any."""
    return self._manager.latest_step()

  def save(
    self, step: int, state: sm.WorkerState, position: dict[str, Any]
  ) -> None:
    """Writes a checkpoint, unless this step has one.

    Args:
      step: number of steps made.
      state: of all workers.
      position: what else is needed to go on, as JSON.
    """
    if self.latest() == step:
      return
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(_tree(state)),
        position=ocp.args.JsonSave(position),
      ),
    )

  def restore(
    self, state: sm.WorkerState
  ) -> tuple[int, sm.WorkerState, dict[str, Any]]:
    """Reads the newest checkpoint.

    Args:
      state: a state of the same run, for structure, shapes and devices.

    Returns:
      the step, the state in the place of the one given, and the position.

    Raises:
      UserError: if there is none, or it cannot be read.
    """
    step = self.latest()
    if step is None:
      raise errors.UserError(
        f'There is no checkpoint in {self._folder}. Train first, or see whether'
        ' the directory is right.'
      )
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, _tree(state))
    try:
      read = self._manager.restore(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardRestore(target),
          position=ocp.args.JsonRestore(),
        ),
      )
    except Exception as error:  # orbax raises a dozen kinds
      folder = self._folder / str(step)
      others = [other for other in self._manager.all_steps() if other != step]
      before = f'step {max(others)}' if others else 'the beginning'
      raise errors.UserError(
        f'The checkpoint {folder} cannot be read'
        f' ({type(error).__name__}: {str(error).splitlines()[0]}). Delete this'
        f' folder to go on from {before}.'
      ) from error
    return step, state.replace(**read['state']), read['position']


def _tree(state: sm.WorkerState) -> dict[str, Any]:
  return {'params': state.params, 'opt_state': state.opt_state}
