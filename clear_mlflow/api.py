"""Training from Python: the command line's work in one call, inside the caller's own process."""

from __future__ import annotations

import sys

from clear_mlflow.config import TrainConfig
from clear_mlflow.matrix import AccuracyMatrix


def train(**parameters: object) -> AccuracyMatrix:
    """Train on a stream of buckets, tracked in MLflow, and give the matrix as it was stored.

    An active MLflow run is joined and left open; without one, a run is opened and closed. The
    parameters are those of ``clear-mlflow train``; what is not given has its default.

    Args:
        **parameters: numbers or texts, as ``strategy="replay", epochs=5``.

    Returns:
        The matrix, rebuilt from the rows that the run's artifact store holds.

    Raises:
        ConfigError: a parameter is unknown, or has a value that it cannot have.
        DataError: the dataset is missing or damaged.
        TrackingError: MLflow cannot keep the run.
        TrainingError: training cannot go on; the rows so far are stored and scored.
    """
    # Imported here: the pure core loads neither torch nor mlflow.
    from clear_mlflow.learning.prepare import prepare
    from clear_mlflow.learning.progress import progress_for
    from clear_mlflow.learning.training import check
    from clear_mlflow.tracking.preflight import bound_retries, preflight
    from clear_mlflow.tracking.session import train_in_process

    asked = {name: str(value) for name, value in parameters.items()}
    config = check(TrainConfig.resolve(asked))
    bound_retries()
    client = preflight()  # before the data, which may take minutes to read
    training = prepare(config, progress_for(sys.stderr))
    scores = train_in_process(client, training, asked)
    if scores.record is None:
        raise RuntimeError("training ended well, but its run holds no row")
    return scores.record.matrix
