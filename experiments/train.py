r"""Trains a model.

    python -m experiments.train --config=configs/gpt2_nano.py \
      --workdir=runs/gpt2_nano
    python -m experiments.train --workdir=runs/slowmo \
      --config=configs/gpt2_nano.py:method=slowmo,workers=8,sync_every=24 \
      --config.num_steps=2400 --config.optimizer.learning_rate=1e-3

The same command again goes on where the run stopped: at a checkpoint, after
SIGTERM or Ctrl-C (then the exit code is 0), or at --stop_at_step. A second
SIGTERM or Ctrl-C ends it at once.

With --workers=devices --distributed it is one of many processes: see
`experiments.launch` for those of one machine, `experiments/clusters` for more.
"""

from collections.abc import Sequence

from absl import flags

from experiments import config, entry, executors, hosts, interrupts, loop

_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Config file, with arguments after a colon. Its fields can be set too:'
  ' --config.seed=1.',
  required=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the run.', required=True
)
_WORKERS = flags.DEFINE_enum(
  'workers',
  'simulated',
  list(executors.EXECUTORS),
  'Whether one device simulates the workers, or each device is one.',
)
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  False,
  'Join other processes by jax.distributed.initialize(), which knows SLURM,'
  ' Open MPI, Kubernetes and TPU pods. Elsewhere, JAX_COORDINATOR_ADDRESS,'
  ' JAX_NUM_PROCESSES and JAX_PROCESS_ID say who they are.',
)
_CPU_DEVICES = flags.DEFINE_integer(
  'cpu_devices',
  None,
  'How many virtual devices to make of the CPU, in each process.',
)
_STOP_AT_STEP = flags.DEFINE_integer(
  'stop_at_step', None, 'Stop there, with a checkpoint.', lower_bound=1
)


def main(overrides: Sequence[str]) -> None:
  """Reads the flags and trains."""
  interrupts.end_commands()
  experiment = config.load(_CONFIG.value, overrides)
  entry.quiet()
  entry.set_cpu_devices(_WORKERS.value, experiment.workers, _CPU_DEVICES.value)
  with hosts.joined(_DISTRIBUTED.value):
    loop.train(experiment, _WORKDIR.value, _WORKERS.value, _STOP_AT_STEP.value)


if __name__ == '__main__':
  entry.run(main, flags_parser=config.parse_flags)
