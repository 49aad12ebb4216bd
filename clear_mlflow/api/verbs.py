"""compare, evaluate, export and sweep: their parameters and documentation. Imports no MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.api._arguments import list_results, validate_arguments
from clear_mlflow.core.disk import set_offline
from clear_mlflow.core.errors import (
    ClearError,
    ConfigError,
    RecordError,
    check_unused,
    require_package,
)
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import safe_repr

if TYPE_CHECKING:
    from clear_mlflow.api.compared import ComparedRuns
    from clear_mlflow.api.load import Runs
    from clear_mlflow.api.sweep import SweepResult
    from clear_mlflow.scoring import ActionResult


@validate_arguments
def compare(
    runs: Runs = None,
    *,
    filter: str | None = None,  # noqa: A002
    group_by: str | Sequence[str] = "auto",
    rank_by: str = "auto",
    metrics: str | Sequence[Any] = (),
    baseline: str | None = None,
    margin: float | None = None,
    at_equal: Literal["training_flops", "images", "stored_bytes", "seconds"] | None = None,
    oracle: str | None = None,
    across: str | None = None,
    published: bool = False,
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
        metrics: further families of metrics, for example gem or wild_time, and your own metrics as
            ``package.module:function`` or as functions (docs/metrics.md).
        baseline: group that all others are tested against, by its name or a label, for example
            naive. Choose it before you see results: fewer comparisons are adjusted for.
        margin: largest difference that does not matter to you, in percentage points, or in the
            score's own unit. It is then also tested which methods are equivalent.
        at_equal: cost that compared runs must share within 1 % (docs/cost.md).
        oracle: strategy, or another label, of runs that were trained from scratch. All runs are
            measured against them: did a method not adapt, or did the data become harder
            (docs/metrics.md)?
        across: parameter or tag, for example dataset_args or dataset: are verdicts the same for
            all its values (docs/compare.md)?
        published: show published results for the same stream and protocol below the leaderboard
            (docs/compare.md). They are never tested against.
        log: store the result in a run.

    Raises:
        ConfigError: no chosen run can be compared, or an argument has an invalid value.
        RecordError: a bundle was changed.
        TrackingError: the store cannot be reached, or lacks a run.
    """
    from clear_mlflow.api import compared
    from clear_mlflow.api.load import Run, choose_runs
    from clear_mlflow.store.client import open_store
    from clear_mlflow.store.search import tag_project_run

    metrics = metrics.split(",") if isinstance(metrics, str) else metrics
    matrix_metrics = compared.load_matrix_metrics(metrics)
    client = open_store()
    project_run_id = tag_project_run(client, "compare") if log else None
    selected, are_named = choose_runs(client, runs, filter=filter)
    selected_runs = list(selected)
    result = compared.compare_stored_runs(
        client,
        selected_runs,
        group_by=compared.split_group_by(group_by),
        rank_by=None if rank_by == "auto" else rank_by,
        metrics=matrix_metrics,
        baseline=baseline,
        margin=margin,
        at_equal=at_equal,
        oracle=oracle,
        across=across,
        explicit=are_named,
    )
    if published:
        result = compared.add_published(result)
    if not log:
        return result
    experiments = [runs] if isinstance(runs, (str, Path, Run)) else (runs or ())
    params = {
        "group_by": ",".join(result.comparison.group_by) or "none",
        "rank_by": rank_by,
        "runs": None if are_named else ",".join(map(str, experiments)),
        "filter": filter,
        "metrics": ",".join(name if isinstance(name, str) else "own" for name in metrics),
        "baseline": baseline,
        "margin": None if margin is None else f"{margin:.15g}",
        "at_equal": at_equal,
        "oracle": oracle,
        "across": across,
        "published": "true" if published else None,
    }
    from clear_mlflow.api.comparison_run import log_comparison

    return log_comparison(client, result, selected_runs, run_id=project_run_id, params=params)


@validate_arguments
@list_results
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
) -> Iterable[ActionResult]:
    """Rebuild stored runs' matrices, and log what MLflow lacks.

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
        ConfigError: no runs are chosen, or an argument has an invalid value.
        RecordError: rows_score is not a valid name, or a bundle was changed.
        TrackingError: the store cannot be reached, or lacks an experiment.
    """
    from clear_mlflow.api.load import choose_runs
    from clear_mlflow.api.rescore import rescore_runs
    from clear_mlflow.metrics import load_metrics
    from clear_mlflow.store.client import open_store
    from clear_mlflow.store.search import tag_project_run

    if jobs != "auto" and jobs < 1:
        raise ConfigError(
            f"jobs is {jobs}; expected a whole number of at least 1, or auto", parameter="jobs"
        )
    if rows is not None and dry_run:
        raise ConfigError(
            "rows are named in a dry run, but rows must be written before they can be scored; "
            "leave dry_run out",
            parameter="dry_run",
        )
    added_metrics = load_metrics(metrics)
    prepare = None
    if rows is None:
        check_unused(
            {
                "rows_scale": (rows_scale, "auto"),
                "rows_future": (rows_future, "auto"),
                "rows_orientation": (rows_orientation, "auto"),
                "rows_score": (rows_score, "accuracy"),
                "rows_lower_is_better": (rows_lower_is_better, False),
            },
            ", but no rows of another program are named; pass rows=PATH as well, or leave it out",
        )
    else:
        from clear_mlflow.api.foreign_rows import copy_foreign_rows
        from clear_mlflow.importers import ReadOptions, RowPattern

        score = Score(rows_score, higher_is_better=not rows_lower_is_better)
        options = ReadOptions(
            scale=rows_scale, future=rows_future, orientation=rows_orientation, score=score
        )
        prepare = partial(copy_foreign_rows, pattern=RowPattern(rows), options=options)
    client = open_store()
    selected_runs, are_named = choose_runs(client, runs, filter=filter, unscored_only=unscored_only)
    tag_project_run(client, "evaluate")
    yield from rescore_runs(
        client,
        selected_runs,
        explicit=are_named,
        dry_run=dry_run,
        metrics=added_metrics,
        jobs=None if jobs == "auto" else jobs,
        prepare=prepare,
    )


@validate_arguments
def export(
    runs: Runs,
    to: str | Path,
    *,
    filter: str | None = None,  # noqa: A002
    licence: str = "not stated",
) -> Path:
    """Write runs with all their measurements as bundles.

    load, show and compare read bundles like a store, and reject a bundle that was changed. The
    command ``clear-mlflow import`` makes runs of them.

    Args:
        runs: ids of runs, or at least their first six digits, or the name of an experiment: all
            its runs that have rows; in Python, run objects as well.
        to: new folder, or new file whose name ends with ``.tar.xz``.
        filter: condition in MLflow's search syntax, for example ``"params.strategy = 'replay'"``.
        licence: what others may do with the bundles, for example CC-BY-4.0.

    Returns:
        The path of what was written.

    Raises:
        ConfigError: no run is chosen, the path exists already, or it cannot be written.
        RecordError: a run that was named lacks rows, or a row is damaged.
        TrackingError: a run does not exist, or the store cannot be reached.
    """
    from clear_mlflow.api.bundle import write_bundles
    from clear_mlflow.api.load import choose_runs, list_existing
    from clear_mlflow.store.client import open_store
    from clear_mlflow.store.offline import ARCHIVE, is_bundle
    from clear_mlflow.store.rows import read_records

    if Path(to).suffix in {".gz", ".tar", ".tgz", ".zip"}:
        raise ConfigError(f"to is {safe_repr(str(to), 200)}; name a folder, or a file in {ARCHIVE}")
    client = open_store()
    selected, are_named = choose_runs(client, runs, filter=filter)
    stored_runs = list_existing(selected, "export")
    chosen_runs = []
    for run, record in zip(stored_runs, read_records(client, stored_runs), strict=True):
        if isinstance(record, ClearError):
            raise RecordError(
                f"run {run.info.run_id} cannot be read: {record}; its bundle could not be either: "
                "leave it out"
            )
        # Sweeps and comparisons of an experiment, and trainings in an offline folder, lack rows.
        if record is not None or (are_named and not is_bundle(run)):
            chosen_runs.append(run)
    if not chosen_runs:
        raise ConfigError("none of the chosen runs has rows of an accuracy matrix")
    write_bundles(client, chosen_runs, Path(to), licence=licence)
    return Path(to)


@validate_arguments
def sweep(
    grid: Mapping[str, Any] | str | Path | None = None,
    *,
    experiment: str | None = None,
    run_name: str | None = None,
    engine: Literal["local", "ray"] = "local",
    jobs: int | Literal["auto"] = "auto",
    address: str = "local",
    cpus: float = 1,
    gpus: float | Literal["auto"] = "auto",
    retries: int = 2,
    group_by: str | Sequence[str] = "auto",
    rank_by: str = "auto",
    regret: bool = False,
    offline: bool | str | Path = False,
) -> SweepResult:
    """Train a grid's unfinished runs as child runs, and compare all.

    Runs that the experiment already contains are skipped, and interrupted ones are resumed, so the
    same call continues where it stopped. A run that fails does not stop the others.

    Args:
        grid: YAML file of strategies, seeds and parameters (docs/sweeps.md); in Python also its
            content, for example ``{"fixed": {...}, "grid": {"strategy": [...]}}``. Required.
        experiment: experiment of the runs, or None for the experiment of
            MLFLOW_EXPERIMENT_NAME, else Default.
        run_name: name of the parent run, or None for strategies and number of runs.
        engine: where to train: local, on this machine, or ray, on a Ray cluster.
        jobs: number of runs at a time. auto: one, and on Ray as many as the cluster has room for.
        address: address of a running Ray cluster, HOST:6379 or auto. local: start Ray on this
            machine.
        cpus: cores per run, on Ray.
        gpus: GPUs per run, on Ray; with 0.5, two runs share one. auto: one if the cluster has any.
        retries: number of times to resume a run that was killed or whose machine went down.
        group_by: parameters or tags that the seeds of one method share. auto: strategy, dataset
            and the parameters that the grid varies, except seeds.
        rank_by: metric that methods are ranked by and tested for differences. auto:
            ``clear/challenge_score`` where it is defined.
        regret: of a study, also train everything that was tried on the test stream, and report how
            much better the best is there than what was chosen.
        offline: record offline; see :func:`clear_mlflow.track`.

    Returns:
        The runs with their states as ``runs``, and their comparison as ``compared``. Of a study,
        it compares the chosen parameters, and the report is ``study``.

    Raises:
        ConfigError: a run of the grid cannot be trained.
        TrackingError: the store cannot be reached, or another process works on the same sweep.
        KeyboardInterrupt: Ctrl-C was pressed; active runs were scored. Another signal that stops
            the sweep raises SystemExit.
    """
    with require_package("torch", "training"):
        from clear_mlflow.api.sweep import run_sweep

    set_offline(offline)
    result, signals = run_sweep(
        grid,
        experiment=experiment,
        run_name=run_name,
        retries=retries,
        group_by=group_by,
        rank_by=rank_by,
        regret=regret,
        engine=engine,
        jobs=jobs,
        address=address,
        cpus=cpus,
        gpus=gpus,
    )
    signals.raise_received()
    return result
