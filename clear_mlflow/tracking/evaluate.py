"""Re-score runs from their stored rows: choose them, score each, say what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run, ViewType
from mlflow.exceptions import MlflowException

from clear_mlflow.errors import ClearError, TrackingError
from clear_mlflow.tracking import names
from clear_mlflow.tracking.liveness import is_abandoned, trains_now
from clear_mlflow.tracking.preflight import explained
from clear_mlflow.tracking.scoring import Scores, read_scores, write_scores

_PAGE = 1000  # runs that one request lists


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which runs to score. Conditions add up; ``run_ids`` stand alone."""

    run_ids: tuple[str, ...] = ()
    experiment: str | None = None  # name or id; None: all experiments
    filter: str | None = None  # in MLflow's search syntax
    unscored_only: bool = False


@dataclass(frozen=True)
class Verdict:
    """What became of one run."""

    run_id: str
    run_name: str
    action: str  # "scored", "unchanged", "skipped" or "failed"
    detail: str  # what was written, or why nothing was
    scores: Scores | None = None

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at this run."""
        return self.action == "failed" or bool(self.scores and _gaps(self.scores))


def select(client: MlflowClient, selection: Selection) -> list[Run | Verdict]:
    """The selected runs, in the order asked for or newest first.

    A run asked for by its id that is not there is a verdict already; so is a deleted one.

    Raises:
        TrackingError: the experiment does not exist, MLflow refuses the filter, or the store does
            not answer.
    """
    if selection.run_ids:
        return [_get(client, run_id) for run_id in dict.fromkeys(selection.run_ids)]
    experiments = _experiments(client, selection.experiment)
    found: list[Run | Verdict] = []
    token = None
    while True:
        with explained("list the runs"):
            page = client.search_runs(
                experiments,
                filter_string=selection.filter or "",
                run_view_type=ViewType.ACTIVE_ONLY,
                max_results=_PAGE,
                page_token=token,
            )
        found += [run for run in page if _is_wanted(run, selection)]
        token = page.token
        if not token:
            return found


def evaluate(
    client: MlflowClient,
    runs: Sequence[Run | Verdict],
    *,
    named: bool,
    dry_run: bool,
    on_run: Callable[[Verdict], None] = lambda _: None,
) -> list[Verdict]:
    """Score each run from its stored rows; a run that cannot be scored does not stop the rest.

    Args:
        client: the store.
        runs: what :func:`select` gave.
        named: the runs were asked for one by one, so one without rows is a problem; found by a
            search, a run that is none of ours is only passed over.
        dry_run: write nothing.
        on_run: called with each verdict as it is reached.
    """
    verdicts = []
    for run in runs:
        verdict = run if isinstance(run, Verdict) else _evaluate_one(client, run, named, dry_run)
        verdicts.append(verdict)
        on_run(verdict)
    return verdicts


def _evaluate_one(client: MlflowClient, run: Run, named: bool, dry_run: bool) -> Verdict:
    run_id, name = run.info.run_id, run.info.run_name or run.info.run_id
    abandoned = is_abandoned(run)
    if trains_now(run):
        return Verdict(run_id, name, "skipped", "is training now; it scores itself at its end")
    ours = run.data.tags.get(names.KIND_TAG) == names.KIND_TRAIN
    try:
        # A run that was asked for by its id is looked at in full; a search takes the short look.
        scores = read_scores(client, run, thorough=named)
        notes = list(_describe(scores))
        if not dry_run:
            if not scores.is_stored:
                write_scores(client, run, scores)
            if abandoned:
                _close(client, run)
    except ClearError as error:
        detail = str(error)
        if abandoned and not dry_run:
            detail += f"; {_try_to_close(client, run)}"
        return Verdict(run_id, name, "failed" if named or ours else "skipped", detail)
    if scores.record is None and not abandoned:
        action = "failed" if named or ours else "skipped"
        return Verdict(run_id, name, action, "holds no rows of an accuracy matrix", scores)
    if abandoned:
        closed = "would be closed" if dry_run else "run closed"
        notes.append(f"its process is gone: {closed} as KILLED")
    changed = abandoned or not scores.is_stored
    return Verdict(run_id, name, "scored" if changed else "unchanged", "; ".join(notes), scores)


def _describe(scores: Scores) -> Iterator[str]:
    if scores.record is None:
        yield "no rows"
        return
    matrix = scores.record.matrix
    yield f"{matrix.num_rows} of {matrix.num_buckets} rows"
    if gaps := _gaps(scores):
        yield f"missing {', '.join(f'row {row}' for row in gaps)}"
    if scores.lacking:
        yield f"{len(scores.lacking)} metric values logged"


def _gaps(scores: Scores) -> tuple[int, ...]:
    """Rows that are missing below one that is there; a run that just ended early has none."""
    return scores.record.missing if scores.record else ()


def _try_to_close(client: MlflowClient, run: Run) -> str:
    """Close an abandoned run whose rows cannot be scored; gives what to say of it."""
    try:
        _close(client, run)
    except ClearError as error:
        return str(error)
    return "its process is gone: run closed as KILLED"


def _close(client: MlflowClient, run: Run) -> None:
    with explained(f"close run {run.info.run_id}"):
        client.set_tag(run.info.run_id, names.ERROR_TAG, "the process that trained it is gone")
        client.set_terminated(run.info.run_id, "KILLED")
        client.delete_tag(run.info.run_id, names.PROCESS_TAG)


def _get(client: MlflowClient, run_id: str) -> Run | Verdict:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise TrackingError(f"cannot read run {run_id}: {error}") from error
        return Verdict(
            run_id, run_id, "failed", f"no such run in the tracking store {client.tracking_uri}"
        )
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        name = run.info.run_name or run_id
        return Verdict(run_id, name, "failed", "is deleted; restore it to score it")
    return run


def _experiments(client: MlflowClient, wanted: str | None) -> list[str]:
    with explained("list the experiments"):
        listed = []
        token = None
        while True:
            page = client.search_experiments(max_results=_PAGE, page_token=token)
            listed += list(page)
            token = page.token
            if not token:
                break
    if wanted is None:
        return [e.experiment_id for e in listed]
    # A name goes before an id: an experiment may be called "3".
    found = [e.experiment_id for e in listed if e.name == wanted]
    found = found or [e.experiment_id for e in listed if e.experiment_id == wanted]
    if found:
        return found
    known = ", ".join(repr(e.name) for e in listed[:20])
    raise TrackingError(
        f"no experiment has the name or id {wanted!r} in {client.tracking_uri}; there are {known}"
    )


def _is_wanted(run: Run, selection: Selection) -> bool:
    if run.data.tags.get(names.KIND_TAG) == names.KIND_EVALUATE:
        return False
    return not (selection.unscored_only and names.SCORED_TAG in run.data.tags)
