#!/usr/bin/env bash
# CLEAR-10 on a GPU, as its authors train it: ResNet-18 from scratch at 224 pixels, SGD with a rate of
# 0.01 that falls every 30 epochs, batches of 256, 100 epochs on each of ten buckets, the released test
# set. That is what `auto` stands for; nothing of it has to be said.
#
#     clear-mlflow data download clear10 DIR      # once
#     bash examples/clear10.sh DIR
#
# checks the dataset, trains a learner that does nothing against forgetting and one that replays, each
# with three seeds, and compares them. What follows DIR goes to every training: a first look is
# `bash examples/clear10.sh DIR --epochs 1`. SEEDS="0" trains one of each.
set -euo pipefail

root=${1:?pass the folder that CLEAR-10 was unpacked to}
shift
export MLFLOW_EXPERIMENT_NAME=${MLFLOW_EXPERIMENT_NAME:-clear10}

clear-mlflow data check "$root"
for strategy in naive replay; do
    for seed in ${SEEDS:-0 1 2}; do
        clear-mlflow train --dataset clear10 --data-root "$root" \
            --strategy "$strategy" --seed "$seed" "$@"
    done
done
clear-mlflow compare "$MLFLOW_EXPERIMENT_NAME" --filter "tags.dataset = 'clear10'"
