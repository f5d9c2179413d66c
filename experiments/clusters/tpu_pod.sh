#!/usr/bin/env bash
# Trains on a slice of a TPU pod, one process for each host, one worker for each
# chip; from your own machine:
#
#   TPU=my-slice ZONE=us-west4-a experiments/clusters/tpu_pod.sh \
#     --config=configs/gpt2_nano.py:workers=16 --workdir=/mnt/shared/runs/nano
#
# Every host must have this checkout in ~/signmomentum, set up with `make` and
# with `.venv/bin/pip install 'jax[tpu]'` of the same version, and --workdir on a
# file system that all share (Filestore, or a bucket mounted by gcsfuse). The
# arguments are those of experiments.train. The same command again goes on from
# the last checkpoint.
set -euo pipefail

: "${TPU:?The name of the slice}" "${ZONE:?Its zone}"
# Chips of one host: the program is compiled for as many CPU devices, too, to
# read off what it sends. In slices of several hosts, each has 4.
CHIPS=${CHIPS:-4}

train=(.venv/bin/python -m experiments.train --workers=devices --distributed
  --cpu_devices="$CHIPS" "$@")

exec gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
  --command="cd signmomentum && $(printf '%q ' "${train[@]}")"
