#!/bin/sh
# One process, then two ranks on a Dask cluster of this machine, on the handwritten digits.
#
#   sh examples/on_a_laptop.sh [FOLDER]        FOLDER (runs/laptop) gets two runs: one/ and two/
#
# What to expect: both runs end with a table, and losses and accuracies agree to all digits that it prints (test accuracy about 0.95),
# because train.minibatches_per_step is set: a step is then the same two minibatches, whoever trains them. The second run prints the
# address of the Dask dashboard. Little of the time is training: the first run on a machine compiles kernels, the second starts processes.
# `make test` runs this script.
set -eu
out=${1:-runs/laptop}
set -- --dataset digits --model sage --hidden 64 --fanout 10,5 --batch-size 64 --epochs 8 --lr 0.01 \
    --set train.minibatches_per_step=2 --set threads=1

millrace run "$@" --out "$out/one"
millrace run "$@" --ranks 2 --set cluster.dashboard_port=0 --out "$out/two"
