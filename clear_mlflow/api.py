"""Training from Python: the command line's work in one call, inside the caller's own process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clear_mlflow.config import NONE, TrainConfig
from clear_mlflow.errors import ConfigError
from clear_mlflow.matrix import AccuracyMatrix

if TYPE_CHECKING:
    from clear_mlflow.tracking.scoring import Scores


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
    config = TrainConfig.resolve(asked)
    if config.seeds != NONE:
        raise ConfigError(
            f"seeds is {config.seeds}, which trains an ensemble and gives a matrix for each seed; "
            "call train_ensemble, or pass seed=N"
        )
    config = check(config)
    bound_retries()
    client = preflight()  # before the data, which may take minutes to read
    training = prepare(config, progress_for(sys.stderr))
    return _matrix_of(train_in_process(client, training, asked))


def train_ensemble(**parameters: object) -> dict[int, AccuracyMatrix]:
    """Train runs that differ in their seed alone together, each tracked as a run of its own.

    They stand below one run in MLflow, which holds the means of their metrics: the active run,
    which is left open, or one that is opened and closed.

    Args:
        **parameters: as of :func:`train`, and ``seeds="0,1,2"``; ``features`` is needed.

    Returns:
        Seed to matrix, rebuilt from the rows that each run's artifact store holds.

    Raises:
        ConfigError: a parameter is unknown or has a value that it cannot have, there are no
            ``seeds``, or these runs cannot train together.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: MLflow cannot keep the runs.
        TrainingError: training cannot go on; the rows so far are stored and scored.
    """
    from clear_mlflow.learning.prepare import prepare
    from clear_mlflow.learning.progress import progress_for
    from clear_mlflow.learning.training import check
    from clear_mlflow.tracking.preflight import bound_retries, preflight
    from clear_mlflow.tracking.session import train_ensemble_in_process

    asked = {name: str(value) for name, value in parameters.items()}
    config = TrainConfig.resolve(asked)
    if config.seeds == NONE:
        raise ConfigError("seeds is none; an ensemble needs some: pass seeds=0,1,2, or call train")
    config = check(config)
    bound_retries()
    client = preflight()
    training = prepare(config, progress_for(sys.stderr))
    scores = train_ensemble_in_process(client, training, asked)
    return {seed: _matrix_of(of_member) for seed, of_member in scores.items()}


def _matrix_of(scores: Scores) -> AccuracyMatrix:
    if scores.record is None:
        raise RuntimeError("training ended well, but its run holds no row")
    return scores.record.matrix
