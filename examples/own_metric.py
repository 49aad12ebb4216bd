"""Score old runs with a number that did not exist when they were trained.

The rows of a run are its record: anything that is a function of them can be computed today. This
reads the matrices of all finished runs and prints the worst accuracy on a bucket already learned.
Run it after a training: ``python examples/own_metric.py``.
"""

import mlflow
import numpy as np

from clear_mlflow.record import assemble
from clear_mlflow.tracking.rows import read_rows

client = mlflow.MlflowClient()
experiments = [experiment.experiment_id for experiment in client.search_experiments()]
for run in client.search_runs(experiments, "tags.`clear_mlflow.rows` = 'complete'"):
    matrix = assemble(read_rows(client, run)).matrix
    learned = np.tri(matrix.num_rows, dtype=bool)
    print(f"{run.info.run_name:40} worst learned bucket {matrix.values[learned].min():.3f}")
