"""A training loop of your own, tracked as a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from clear_mlflow.tracking.loop_run import LoopRun


def track(
    *,
    buckets: int | Iterable[object],
    num_instances: int | Sequence[int] | Mapping[Any, int] | None = None,
    dataset: str = "own",
    dataset_digest: str | None = None,
    protocol: str = "iid",
    split: Literal["test", "validation"] = "test",
    seed: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    params: Mapping[str, object] | None = None,
    tags: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    test_labels: Sequence[Any] | None = None,
    test_ids: Sequence[Sequence[object]] | None = None,
    score: str = "accuracy",
    lower_is_better: bool = False,
    run_name: str | None = None,
    metrics: str | Sequence[str] = "clear,renate",
) -> LoopRun:
    """Track a training loop of your own, which hands over its rows: ``run.log_counts(i, correct)``.

    Used as ``with clear_mlflow.track(...) as run:``. An active MLflow run is joined and left open;
    without one, a run is opened, and closed with the status that is true. Each row is stored when
    ``log_counts`` or its like returns. After the block, however it ended, the stored rows are
    scored, and ``run.metrics`` and ``run.matrix`` hold what they say; ``clear_mlflow.load`` of
    ``run.run_id`` is the stored run, with frames and JSON. A run that holds rows of the same loop
    already is continued.

    Args:
        buckets: names of all buckets in stream order, whole numbers and dates too, or how many
            there are ("1" to "T").
        num_instances: test images per bucket; one number where all have as many. None where only
            accuracies are known, which leaves out what needs counts.
        dataset: its name, for people.
        dataset_digest: of its content; runs of different digests are not compared. "unknown", or
            that of the evaluation set, when not given.
        protocol: ``iid``: a held-out test set per bucket; ``streaming``: tested on its own
            training data.
        split: what the rows are measured on; numbers on validation images are for choosing by,
            and are never set beside those on test images.
        seed: of the run.
        strategy: its name, to group runs by.
        model: likewise.
        params: logged as MLflow params, where the run has none of that name.
        tags: logged as MLflow tags.
        class_names: the index is the label.
        test_labels: for each bucket, the true class of each test image, for
            ``run.log_predictions(i, ...)``, which takes it, too; ``num_instances`` follows.
        test_ids: for each bucket, the name of each test image.
        score: what the rows are of, where that is no accuracy, as "rmse" or "perplexity": rows are
            then given as ``run.log_values(i, [...])``, of any finite numbers.
        lower_is_better: whether less of this score is better.
        run_name: of a run that is opened.
        metrics: families of metrics to log, for example ["clear", "gem"]; docs/metrics.md lists
            them.

    Returns:
        A context manager; entering it gives itself.

    Raises:
        ConfigError: something has a value that it cannot have, or two things contradict each other.
        RecordError: a key, a count or a name is not one that the record holds.
        TrackingError: on entering, when MLflow cannot keep the run or it holds another loop's rows.
    """
    given = locals()
    del given["run_name"], given["metrics"]
    from clear_mlflow.core.loop_metadata import describe_loop
    from clear_mlflow.tracking.loop_run import LoopRun

    return LoopRun(describe_loop(**given), run_name, metrics)
