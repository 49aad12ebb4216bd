"""Linear probe with an ensemble of seeds: one head per seed, trained one after another.

``python examples/linear_ensemble.py`` (seconds) trains three linear heads on the features that
every dataset has, its own small pixels. Each head has its own MLflow run, and their parent run has
the means. A head starts at zero, so seeds differ only in their mini-batches: with a complete bucket
in one batch, all seeds would give the same matrix, and no interval. On CLEAR:
``train_ensemble(dataset="clear10", data_root=DIR, features="moco_b0", seeds=[0, 1, 2])``.
"""

import clear_mlflow
from clear_mlflow.statistics import seed_summary

runs = clear_mlflow.train_ensemble(features="pixels", seeds=[0, 1, 2], epochs=3, batch_size=64)

for name in clear_mlflow.scores(runs[0].matrix):
    over_seeds = seed_summary([run.metrics[name].value for run in runs.values()])
    if over_seeds.interval is not None:  # what training cost is the same for every seed
        low, high = over_seeds.interval
        mean, std = over_seeds.mean, over_seeds.std
        print(f"{name:32} {mean:.3f} ± {std:.3f}, 95 % {low:.3f} to {high:.3f}")
