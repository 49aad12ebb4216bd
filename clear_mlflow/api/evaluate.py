"""Re-score stored runs: the declaration of function and command. Imports no MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.errors import ConfigError

if TYPE_CHECKING:
    from clear_mlflow.api.load import Runs
    from clear_mlflow.api.rescore import ScoringResult


def evaluate(
    runs: Runs = None,
    *,
    filter: str | None = None,  # noqa: A002
    unscored_only: bool = False,
    metrics: str | Sequence[Any] = (),
    rows: str | None = None,
    rows_scale: Literal["auto", "fraction", "percent"] = "auto",
    rows_future: Literal["auto", "tested", "not-tested"] = "auto",
    rows_orientation: Literal["auto", "rows", "columns"] = "auto",
    rows_score: str = "accuracy",
    rows_lower_is_better: bool = False,
    jobs: int | Literal["auto"] = "auto",
    dry_run: bool = False,
) -> list[ScoringResult]:
    """Rebuild the accuracy matrix of stored runs from their rows, and log what MLflow lacks.

    Metrics are written into the runs themselves. A second call changes nothing. A call that was
    stopped can be repeated and does the rest. A run with an error does not stop the others.

    Args:
        runs: ids of runs, or at least their first six digits, or the name of an experiment; in
            Python, run objects as well. None means the runs of all experiments that match filter
            or unscored_only.
        filter: condition in MLflow's search syntax, for example ``"params.strategy = 'replay'"``.
        unscored_only: skip runs that already have metrics.
        metrics: further families of metrics, for example gem or wild_time, and your own metrics as
            ``package.module:function`` or as functions (docs/metrics.md).
        rows: path of the rows in runs of another program, for example
            ``results/acc_after_{row}.json``. They are first written as rows (docs/import.md).
        rows_scale: unit of those rows. auto: fractions; a value above 1 is an error.
        rows_future: meaning of zeros above the diagonal of those rows: tested with accuracy 0, or
            not tested. auto: zeros everywhere above the diagonal are an error.
        rows_orientation: whether a row or a column of a complete matrix is one test after
            training. auto: proven by the file; otherwise it is an error.
        rows_score: name of what those rows contain if it is not accuracy, for example rmse.
        rows_lower_is_better: state that smaller values of rows_score are better.
        jobs: number of runs scored at a time. auto: depends on the store.
        dry_run: report what would be done, and write nothing.

    Returns:
        A result for each run, in order: what was done, and its metrics.

    Raises:
        ConfigError: no runs are chosen, or a family or metric does not exist.
        TrackingError: the store cannot be reached.
    """
    arguments = dict(locals())
    check_arguments(evaluate, arguments)
    return list(evaluate_each(**arguments))


def evaluate_each(
    runs: Runs, *, jobs: int | Literal["auto"], **options: Any
) -> Iterator[ScoringResult]:
    """Do the work of :func:`evaluate`, and yield the result of each run as soon as it is known.

    Raises ConfigError if jobs is below 1, or if rows are named in a dry run.
    """
    if jobs != "auto" and jobs < 1:
        raise ConfigError(f"jobs is {jobs}; expected a whole number of at least 1, or auto")
    if options["rows"] and options["dry_run"]:
        raise ConfigError(
            "rows are named in a dry run, but rows must be written before they can be scored; "
            "leave dry_run out"
        )
    from clear_mlflow.api.rescore import rescore_chosen_runs

    return rescore_chosen_runs(runs, jobs=None if jobs == "auto" else jobs, **options)
