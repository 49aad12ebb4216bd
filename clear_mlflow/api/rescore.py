"""Compute and log the metrics of stored runs from their rows, and report what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.text import format_count
from clear_mlflow.metrics import BUILT_IN_FAMILIES, Metric, MetricResult
from clear_mlflow.scoring import ActionResult, Scores
from clear_mlflow.scoring.run_log import log_results, read_scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import is_local
from clear_mlflow.store.client import (
    get_run,
    is_server,
    map_in_threads,
)
from clear_mlflow.store.lease import detect_dead_trainer, detect_live_trainer
from clear_mlflow.store.offline import is_bundle
from clear_mlflow.store.rows import NO_ROWS
from clear_mlflow.store.search import MissingRun
from clear_mlflow.store.sqlite import lock_store_writes
from clear_mlflow.tracking.lifecycle import end_expired_run
from clear_mlflow.tracking.logged_models import log_models

# Runs scored at a time. A server delays each request by about 50 ms and answers many at a time; an
# object store behind a database is slow, too. Local files are read faster than threads take turns.
_JOBS_SERVER, _JOBS_REMOTE, _JOBS_LOCAL = 16, 8, 1


def rescore_runs(
    client: MlflowClient,
    runs: Iterable[Run | MissingRun],
    *,
    explicit: bool = False,
    dry_run: bool = False,
    metrics: Sequence[Metric] = (),
    jobs: int | None = None,
    prepare: Callable[[MlflowClient, Run], str | None] | None = None,
) -> Iterator[ActionResult]:
    """Compute runs' metrics from stored rows, and yield results in order.

    Logs metrics, tags and artifacts that the store lacks. Closes runs whose process is dead as
    KILLED. An error of one run is in its result and does not stop the others.

    Args:
        client: client of the store.
        runs: stored runs; a MissingRun has the id of a run that the store lacks.
        explicit: True if the user named the runs one by one: all artifacts are read again, and a
            run without rows is a problem instead of being skipped.
        dry_run: report what would be done, and write nothing.
        metrics: metrics to compute in addition to the families that a run logs.
        jobs: number of runs scored at a time; None to choose it for the store.
        prepare: called with each run before its rows are read, but not in a dry run. Returns a
            sentence for its result, or None.
    """
    remaining = iter(runs)
    first = next(remaining, None)
    if first is None:
        return
    score = partial(
        _rescore_run, client, metrics=metrics, dry_run=dry_run, explicit=explicit, prepare=prepare
    )
    yield from map_in_threads(score, chain([first], remaining), jobs or _choose_jobs(client, first))


def _rescore_run(
    client: MlflowClient,
    run: Run | MissingRun,
    *,
    metrics: Sequence[Metric],
    explicit: bool,
    dry_run: bool,
    prepare: Callable[[MlflowClient, Run], str | None] | None,
) -> ActionResult:
    """Score one run, log its metrics and models, and return the result.

    May wait three minutes to find out whether the run's process is alive. Unless *explicit*, a run
    that another program may have logged is "skipped" instead of "failed".
    """
    if isinstance(run, MissingRun):
        return ActionResult(run.run_id, run.run_name, "failed", run.problem, is_problem=True)
    run_id, name = run.info.run_id, run.info.run_name or run.info.run_id
    failed = partial(ActionResult, run_id, name, "failed", is_problem=True)
    skipped = partial(ActionResult, run_id, name, "skipped")
    if is_bundle(run):
        return failed("is a bundle, which cannot be written to; import or load it instead")
    if run.info.status == "RUNNING":
        # The search result may be hours old. A process sets the status before it ends, so a run
        # that is still RUNNING after its process was seen dead stays RUNNING.
        try:
            run = get_run(client, run_id)
        except ClearError as error:
            return failed(str(error))
    if detect_live_trainer(client, run):
        return skipped("is training now; it scores itself at its end")
    must_have_rows = explicit or run.data.tags.get(names.KIND_TAG) == names.KIND_TRAIN
    is_abandoned = detect_dead_trainer(client, run)
    closed = "its process is dead: run would be closed as KILLED" if is_abandoned else None
    scores, problem, prepared = None, None, None
    try:
        if prepare is not None and not dry_run:
            prepared = prepare(client, run)
        scores = read_scores(client, run, metrics, reread=explicit)
        if not dry_run:
            log_results(client, scores)
            log_models(client, run, scores)
    except ClearError as error:
        problem = error
    if is_abandoned and not dry_run:
        try:
            with lock_store_writes(client.tracking_uri):
                end_expired_run(client, run)
            closed = "its process is dead: run closed as KILLED"
        except ClearError as error:
            problem, closed = problem or error, None
    if scores is None or problem is not None:
        detail = "; ".join(filter(None, (str(problem), closed)))
        # Rows, also a damaged one, prove that the run was one of ours; other errors do not.
        has_rows = scores is not None and scores.record is not None
        is_ours = must_have_rows or has_rows or isinstance(problem, RecordError)
        parameter = problem.parameter if problem is not None else None
        return (failed if is_ours else skipped)(detail, parameter=parameter)
    if scores.record is None and not is_abandoned:
        detail = "; ".join(filter(None, (NO_ROWS, prepared)))
        return failed(detail) if must_have_rows else skipped(detail, scores=scores)
    missing_rows = scores.record.missing if scores.record else ()
    undefined = [
        result
        for name, result in scores.results.items()
        if result.reason and name.partition("/")[0] not in BUILT_IN_FAMILIES
    ]
    notes = [*_describe_scores(scores, missing_rows, undefined, dry_run), prepared, closed]
    return ActionResult(
        run_id,
        name,
        "scored" if is_abandoned or not scores.changes.is_empty else "unchanged",
        "; ".join(filter(None, notes)),
        scores=scores,
        is_problem=bool(missing_rows or scores.stored.problem is not None)
        or any(result.is_failed for result in scores.results.values()),
        is_partial=scores.stored.rows_state != "complete",
        undefined=tuple(result.name for result in undefined if not result.is_failed),
    )


def _describe_scores(
    scores: Scores, missing_rows: Sequence[int], undefined: Sequence[MetricResult], dry_run: bool
) -> Iterator[str]:
    """Yield the parts of ActionResult.detail: numbers of rows and values, and problems."""
    if scores.record is None:
        yield "no rows"
        return
    yield f"{scores.record.num_stored} of {format_count(scores.record.matrix.num_buckets, 'row')}"
    if missing_rows:
        yield f"missing {', '.join(f'row {row}' for row in missing_rows)}"
    if dry_run and not scores.changes.is_empty:
        yield f"would write {scores.changes}"
    elif scores.changes.metric_values:
        yield f"{format_count(len(scores.changes.metric_values), 'metric value')} logged"
    if scores.changes.changed:
        yield f"values changed: {', '.join(scores.changes.changed)}"
    if scores.stored.problem is not None:
        yield scores.stored.problem
    for result in undefined:
        yield f"{result.name} left out: {result.reason}"


def _choose_jobs(client: MlflowClient, first: Run | MissingRun) -> int:
    if is_server(client.tracking_uri):
        return _JOBS_SERVER
    if isinstance(first, MissingRun) or is_local(first.info.artifact_uri):
        return _JOBS_LOCAL
    return _JOBS_REMOTE
