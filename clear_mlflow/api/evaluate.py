"""Re-score runs from their stored rows: score each, say what became of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from clear_mlflow.api.bundle import is_bundle
from clear_mlflow.api.load import Runs, chosen, open_store
from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.learning.parameters.logged import is_of_a_training
from clear_mlflow.metrics import BUILT_IN_FAMILIES, Metric, MetricResult, load_metrics
from clear_mlflow.scoring import Scores, log_results, read_scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import is_local
from clear_mlflow.store.client import is_server, log_tags, mlflow_errors
from clear_mlflow.store.conflicts import one_writer
from clear_mlflow.store.heartbeat import is_abandoned, seems_abandoned, trains_now
from clear_mlflow.store.matrices import NO_ROWS
from clear_mlflow.store.pool import mapped
from clear_mlflow.store.search import MissingRun, mark_run_of_project
from clear_mlflow.tracking.lifecycle import close_abandoned
from clear_mlflow.tracking.logged_models import log_models

# Runs under way at once. A server keeps each request waiting some 50 ms and answers many at a time;
# an object store behind a database is slow in another way. Files on this machine are read faster
# than threads take turns.
_JOBS_SERVER, _JOBS_REMOTE, _JOBS_LOCAL = 16, 8, 1


def evaluate(
    runs: Runs = None,
    *,
    filter: str | None = None,  # noqa: A002
    unscored_only: bool = False,
    metrics: str | Sequence[Any] = (),
    jobs: int | None = None,
    dry_run: bool = False,
) -> list[ScoringResult]:
    """Rebuild the accuracy matrix of stored runs from their rows, and log what MLflow lacks.

    Scores are written into the scored runs. A second call changes nothing. A run that cannot be
    scored stops no other.

    Args:
        runs: an experiment's name, or runs: objects or ids. None: of all experiments, those that
            *filter* or *unscored_only* finds.
        filter: of an experiment's runs, in MLflow's search syntax.
        unscored_only: leave out runs that have scores.
        metrics: further families by name, and metrics of your own: functions, or
            ``"package.module:function"``.
        jobs: runs under way at once; as suits the store when not given.
        dry_run: say what would be done, and write nothing.

    Returns:
        What became of each run.

    Raises:
        ConfigError: no runs are chosen, or there is no such family or metric.
        TrackingError: the store does not answer.
    """
    return list(evaluate_each(**locals()))


def evaluate_each(
    runs: Runs,
    *,
    filter: str | None,  # noqa: A002
    unscored_only: bool,
    metrics: str | Sequence[Any],
    jobs: int | None,
    dry_run: bool,
    prepare: Callable[[MlflowClient, Run], object] | None = None,
) -> Iterator[ScoringResult]:
    """As :func:`evaluate`, run by run; *prepare* is called with each before its rows are read."""
    requested = load_metrics(metrics)
    client = open_store()
    found, named = chosen(client, runs, filter=filter, unscored_only=unscored_only)
    evaluation = Evaluation(
        named=named,
        dry_run=dry_run,
        metrics=requested,
        jobs=jobs,
        prepare=prepare,
    )
    own_run = mark_run_of_project(client, names.KIND_EVALUATE)
    entries: list[dict[str, object]] = []
    for result in evaluation.over(client, found):
        if own_run:
            entries.append(result.to_dict())
        yield result
    if own_run and not dry_run:
        log_outcomes(client, own_run, entries)


@dataclass(frozen=True)
class ScoringResult:
    """What became of one run."""

    run_id: str
    run_name: str
    action: str  # "scored", "unchanged", "skipped" or "failed"
    detail: str  # what was written, or why nothing was
    scores: Scores | None = field(default=None, repr=False)
    is_problem: bool = False  # you should look at this run
    is_partial: bool = False  # rows are missing, at the end or in between
    undefined: tuple[str, ...] = ()  # a user's own metrics that have no value, and did not fail

    def without_scores(self) -> ScoringResult:
        """The same in a few hundred bytes, to be kept of many runs."""
        return replace(self, scores=None)

    def to_dict(self) -> dict[str, object]:
        """What became of the run, with the values of its metrics, and why some have none."""
        results = self.scores.results if self.scores is not None else {}
        return {
            "run_id": self.run_id,
            "run_name": self.run_name,
            "action": self.action,
            "detail": self.detail,
            "metrics": {name: result.value for name, result in results.items()},
            "reasons": {n: result.reason for n, result in results.items() if result.reason},
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How runs are scored."""

    metrics: Sequence[Metric] = ()  # in addition to those of the families that a run logs
    # The runs were asked for one by one: each is read from its artifacts, and one without rows is
    # a problem. Found by a search, one of another program is only passed over.
    named: bool = False
    dry_run: bool = False  # write nothing
    jobs: int | None = None  # runs under way at once; None: as many as suits the store
    # Called with each run before its rows are read; not in a dry run.
    prepare: Callable[[MlflowClient, Run], object] | None = None

    def over(
        self, client: MlflowClient, runs: Iterable[Run | MissingRun]
    ) -> Iterator[ScoringResult]:
        """Score each run from its stored rows; one that cannot be scored does not stop the rest."""
        waiting = iter(runs)
        for first in waiting:
            jobs = self.jobs or _suitable_jobs(client, first)
            yield from mapped(partial(self._verdict, client), chain([first], waiting), jobs)

    def _verdict(self, client: MlflowClient, run: Run | MissingRun) -> ScoringResult:
        if isinstance(run, MissingRun):
            return _failed(run.run_id, run.run_name, run.problem)
        run_id, name = run.info.run_id, run.info.run_name or run.info.run_id
        if is_bundle(run):
            return _failed(run_id, name, "is a bundle, which nothing is written into; load it")
        if seems_abandoned(run):
            # The listing may be hours old. A process sets the status before it ends: a run that is
            # RUNNING still, after its process was seen to be gone, stays so.
            try:
                with mlflow_errors(f"read run {run_id}"):
                    run = client.get_run(run_id)
            except ClearError as error:
                return _failed(run_id, name, str(error))
        if trains_now(client, run):
            return ScoringResult(
                run_id, name, "skipped", "is training now; it scores itself at its end"
            )
        abandoned = is_abandoned(client, run)
        ours = run.data.tags.get(names.KIND_TAG) == names.KIND_TRAIN
        try:
            scores = self._scored(client, run)
            if abandoned and not self.dry_run:
                with one_writer(client.tracking_uri):
                    close_abandoned(client, run)
        except ClearError as error:
            detail = str(error)
            if abandoned and not self.dry_run:
                try:
                    close_abandoned(client, run)
                    detail += "; its process is gone: run closed as KILLED"
                except ClearError as refusal:
                    detail += f"; {refusal}"
            # A row that is damaged is a row: it is looked for in no other program's run.
            if self.named or ours or isinstance(error, RecordError):
                return _failed(run_id, name, detail)
            return ScoringResult(run_id, name, "skipped", detail)
        if scores.record is None and not abandoned:
            if self.named or ours:
                return _failed(run_id, name, NO_ROWS)
            return ScoringResult(run_id, name, "skipped", NO_ROWS, scores)
        gaps = scores.record.missing if scores.record else ()
        if not is_of_a_training(run.data.params):  # a loop need not test its untrained model
            gaps = tuple(row for row in gaps if row)
        notes = list(_describe(scores, gaps, self.dry_run))
        if abandoned:
            closed = "would be closed" if self.dry_run else "run closed"
            notes.append(f"its process is gone: {closed} as KILLED")
        changed = abandoned or not scores.changes.is_empty
        return ScoringResult(
            run_id,
            name,
            "scored" if changed else "unchanged",
            "; ".join(notes),
            scores,
            is_problem=bool(gaps or scores.stored.problem is not None)
            or any(result.is_failed for result in scores.results.values()),
            is_partial=scores.stored.rows_state != "complete",
            undefined=tuple(
                result.name for result in _own_without_value(scores) if not result.is_failed
            ),
        )

    def _scored(self, client: MlflowClient, run: Run) -> Scores:
        if self.prepare is not None and not self.dry_run:
            self.prepare(client, run)
        scores = read_scores(client, run, self.metrics, reread=self.named)
        if self.dry_run:
            return scores
        log_results(client, scores.stored, scores.results, scores.changes)
        log_models(client, run, scores)
        return scores


def log_outcomes(client: MlflowClient, run_id: str, entries: Sequence[dict[str, object]]) -> None:
    """Store what became of each run in the run that ``mlflow run -e evaluate`` itself opened."""
    counts = Counter(str(entry["action"]) for entry in entries)
    summary = ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))
    note = (
        f"Re-scored runs from their stored rows: {summary}. Each run and what became of it: "
        f"`{names.EVALUATED_JSON}`."
    )
    with mlflow_errors(f"log the results into run {run_id}"):
        client.log_text(run_id, json.dumps(entries, indent=2) + "\n", names.EVALUATED_JSON)
        log_tags(client, run_id, {names.EVALUATED_TAG: str(len(entries)), MLFLOW_RUN_NOTE: note})


def _failed(run_id: str, run_name: str, detail: str) -> ScoringResult:
    return ScoringResult(run_id, run_name, "failed", detail, is_problem=True)


def _suitable_jobs(client: MlflowClient, first: Run | MissingRun) -> int:
    if is_server(client.tracking_uri):
        return _JOBS_SERVER
    if isinstance(first, MissingRun) or is_local(first.info.artifact_uri):
        return _JOBS_LOCAL
    return _JOBS_REMOTE


def _describe(scores: Scores, gaps: Sequence[int], dry_run: bool) -> Iterator[str]:
    if scores.record is None:
        yield "no rows"
        return
    yield f"{scores.record.num_stored} of {scores.record.matrix.num_buckets} rows"
    if gaps:
        yield f"missing {', '.join(f'row {row}' for row in gaps)}"
    if dry_run and not scores.changes.is_empty:
        yield f"would write {scores.changes}"
    elif scores.changes.points:
        yield f"{len(scores.changes.points)} metric values logged"
    if scores.changes.changed:
        yield f"values changed: {', '.join(scores.changes.changed)}"
    if scores.stored.problem is not None:
        yield scores.stored.problem
    # A user's own metric was asked for: where it has no value, they want to know why.
    for result in _own_without_value(scores):
        yield f"{result.name} left out: {result.reason}"


def _own_without_value(scores: Scores) -> list[MetricResult]:
    """Return the results of a user's own metrics that have no value."""
    return [
        result
        for name, result in scores.results.items()
        if result.reason and name.partition("/")[0] not in BUILT_IN_FAMILIES
    ]
