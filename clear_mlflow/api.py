"""Training from Python: the command line's work in one call, inside the caller's own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.distributed import place_of_environment
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.learning.config import NONE, TrainConfig

if TYPE_CHECKING:
    from clear_mlflow.core.predictions import EvaluationSet
    from clear_mlflow.runs.loop_run import OwnRun
    from clear_mlflow.scoring.scores import Scores


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
    from clear_mlflow.learning.session import check
    from clear_mlflow.runs.in_process import train_in_process
    from clear_mlflow.store.client import bound_retries, preflight

    _refuse_several_processes()
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
        **parameters: as of :func:`train`, and ``seeds="0,1,2"``.

    Returns:
        Seed to matrix, rebuilt from the rows that each run's artifact store holds.

    Raises:
        ConfigError: a parameter is unknown or has a value that it cannot have, or there are
            no ``seeds``.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: MLflow cannot keep the runs.
        TrainingError: training cannot go on; the rows so far are stored and scored.
    """
    from clear_mlflow.learning.prepare import prepare
    from clear_mlflow.learning.progress import progress_for
    from clear_mlflow.learning.session import check
    from clear_mlflow.runs.in_process import train_ensemble_in_process
    from clear_mlflow.store.client import bound_retries, preflight

    _refuse_several_processes()
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


def track(
    *,
    buckets: int | Sequence[object],
    num_instances: int | Sequence[int] | Mapping[str, int] | None = None,
    dataset: str = "own",
    dataset_digest: str | None = None,
    protocol: str = "iid",
    seed: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    params: Mapping[str, object] | None = None,
    tags: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    test_labels: Sequence[Any] | None = None,
    test_ids: Sequence[Sequence[object]] | None = None,
    evaluation_set: EvaluationSet | None = None,
    run_name: str | None = None,
) -> OwnRun:
    """Track a training loop of your own, which hands over its rows: ``run.log_row(i, correct)``.

    Used as ``with clear_mlflow.track(...) as run:``. An active MLflow run is joined and left open;
    without one, a run is opened, and closed with the status that is true. Each row is stored when
    ``log_row`` returns. After the block, however it ended, the stored rows are scored, and
    ``run.scores`` and ``run.matrix`` hold what they say. A run that holds rows of the same loop
    already is continued.

    Args:
        buckets: keys of all buckets in stream order, or how many there are ("1" to "T").
        num_instances: test images per bucket; one number where all have as many. None where only
            accuracies are known, which leaves out what needs counts.
        dataset: its name, for people.
        dataset_digest: of its content; runs of different digests are not compared. "unknown", or
            that of the evaluation set, when not given.
        protocol: ``iid``: a held-out test set per bucket; ``streaming``: tested on its own
            training data.
        seed: of the run.
        strategy: its name, to group runs by.
        model: likewise.
        params: logged as MLflow params, where the run has none of that name.
        tags: logged as MLflow tags.
        class_names: the index is the label.
        test_labels: for each bucket, the true class of each test image: predictions can then be
            given per row, and ``num_instances`` follows.
        test_ids: for each bucket, the name of each test image.
        evaluation_set: in place of both, a :class:`~clear_mlflow.core.predictions.EvaluationSet`.
        run_name: of a run that is opened.

    Returns:
        A context manager; entering it gives itself.

    Raises:
        ConfigError: something has a value that it cannot have, or two things contradict each other.
        RecordError: a key, a count or a name is not one that the record holds.
        TrackingError: on entering, when MLflow cannot keep the run or it holds another loop's rows.
    """
    from clear_mlflow.core.loop_metadata import loop_facts
    from clear_mlflow.runs.loop_run import OwnRun

    facts = loop_facts(
        buckets=buckets,
        num_instances=num_instances,
        dataset=dataset,
        dataset_digest=dataset_digest,
        protocol=protocol,
        seed=seed,
        strategy=strategy,
        model=model,
        params=params,
        tags=tags,
        class_names=class_names,
        test_labels=test_labels,
        test_ids=test_ids,
        evaluation_set=evaluation_set,
    )
    return OwnRun(facts, run_name)


def _matrix_of(scores: Scores) -> AccuracyMatrix:
    if scores.record is None:
        raise RuntimeError("training ended well, but its run holds no row")
    return scores.record.matrix


def _refuse_several_processes() -> None:
    place = place_of_environment()
    if place.size > 1:
        raise ConfigError(
            f"this is one of {place.size} processes, each of which would train alone and open a "
            "run; start 'torchrun ... -m clear_mlflow train', or call this in one process"
        )
