#!/bin/sh
# On one machine: ./launch.sh train.py, or ./launch.sh train.py:small; further words are settings.
# NUM_GPUS (or the number of processes, without GPUs) is 1 unless it is set.
set -eu
recipe=${1:-train.py}
[ $# -eq 0 ] || shift
exec torchrun --standalone --nproc-per-node "${NUM_GPUS:-1}" -m windlass train "$recipe" "$@"
