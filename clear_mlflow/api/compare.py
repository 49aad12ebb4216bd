"""Compare stored runs: the declaration of function and command. Imports no MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.api._arguments import check_arguments

if TYPE_CHECKING:
    from clear_mlflow.api.compared import ComparedRuns
    from clear_mlflow.api.load import Runs


def compare(
    runs: Runs = None,
    *,
    filter: str | None = None,  # noqa: A002
    group_by: str | Sequence[str] = "auto",
    rank_by: str = "auto",
    lower_is_better: bool | Literal["auto"] = "auto",
    metrics: str | Sequence[Any] = (),
    baseline: str | None = None,
    margin: float | None = None,
    at_equal: Literal["training_flops", "images", "stored_bytes", "seconds"] | None = None,
    log: bool = True,
) -> ComparedRuns:
    """Compare runs: a leaderboard, matrices, curves, and which differences are real.

    The result is stored as a run in the experiment of the compared runs, with a page, a table and
    pictures. Runs tested on different data or by different protocols are grouped separately and
    never tested against each other.

    Args:
        runs: ids of runs, or at least their first six digits, paths of bundles and of offline
            folders, or the name of an experiment; in Python, run objects as well. None means the
            runs of all experiments that match filter.
        filter: condition in MLflow's search syntax, for example ``"params.strategy = 'replay'"``.
        group_by: parameters or tags that the seeds of one method share. none: each run is its own
            group. auto: strategy, dataset and all parameters that affect results and differ.
        rank_by: metric that methods are ranked by and tested for differences. auto:
            ``clear/challenge_score`` where it is defined.
        lower_is_better: direction of the metric in rank_by if it is your own function. auto:
            declared by the function's attribute lower_is_better.
        metrics: further families of metrics, for example gem or wild_time, and your own metrics as
            ``package.module:function`` or as functions (docs/metrics.md).
        baseline: group that all others are tested against, by its name or a label, for example
            naive. Choose it before you see results: fewer comparisons are adjusted for.
        margin: largest difference that does not matter to you, in percentage points, or in the
            score's own unit. It is then also tested which methods are equivalent.
        at_equal: cost that compared runs must share within 1 % (docs/cost.md).
        log: store the result in a run.

    Raises:
        ConfigError: no chosen run can be compared, or an argument has an invalid value.
        TrackingError: the store cannot be reached, or lacks a run.
    """
    arguments = dict(locals())
    check_arguments(compare, arguments)
    from clear_mlflow.api.compared import compare_chosen_runs

    return compare_chosen_runs(**arguments)
