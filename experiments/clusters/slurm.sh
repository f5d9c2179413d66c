#!/usr/bin/env bash
# Trains on GPUs under SLURM, one process (and worker) for each GPU:
#
#   sbatch --nodes=4 --gpus-per-node=8 --ntasks-per-node=8 \
#     experiments/clusters/slurm.sh \
#     --config=configs/gpt2_nano.py:workers=32 --workdir=/shared/runs/nano
#
# One for each GPU, because that is what jax.distributed.initialize() makes of
# SLURM's tasks: each takes the GPU of its number on the node, so all must see
# all GPUs of the node (not --gpus-per-task). The arguments are those of
# experiments.train. --workdir must be on a file system that all nodes share.
# The same command again goes on from the last checkpoint.

#SBATCH --job-name=signmomentum
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
# Five minutes before the end, training stops with a checkpoint.
#SBATCH --signal=TERM@300

set -euo pipefail

# sbatch runs a copy of this file: the checkout is where it was called.
cd "${SLURM_SUBMIT_DIR:-.}"

# A .venv that `make` has set up, on a file system that all nodes share; for the
# GPUs it needs `pip install 'jax[cuda12]'` of the same version.
PYTHON=${PYTHON:-.venv/bin/python}

# Its processes talk to each other directly.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY

# Without --kill-on-bad-exit the others would wait for one that has failed.
exec srun --kill-on-bad-exit=1 \
  "$PYTHON" -m experiments.train --workers=devices --distributed "$@"
