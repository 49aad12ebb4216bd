"""A run's report as its rows are now, and what a page asks to follow a run in training."""

from __future__ import annotations

import hashlib
import json

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.page.wording import short
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import Record, assemble
from clear_mlflow.metrics.from_predictions import METRICS as PREDICTION_METRICS
from clear_mlflow.report.page import rendered
from clear_mlflow.report.page.run_page import run_page
from clear_mlflow.scoring.beside import (
    Beside,
    read_anytime_scores,
    read_predictions,
    score_predictions,
)
from clear_mlflow.scoring.computed import compute
from clear_mlflow.scoring.run_report import run_report
from clear_mlflow.server.kept_pages import KeptPages
from clear_mlflow.server.mlflow_hooks import without_addresses
from clear_mlflow.server.run_state import has_ended, state_of
from clear_mlflow.store import names
from clear_mlflow.store.rows import load_stored_rows

# Of the predictions of all rows. Labels of CLEAR-100's 55,000 test images take half a megabyte in
# all, probabilities 120.
_MOST_BYTES = 256 * 2**20
_OVER = "clear_mlflow.server.page/run"


def live_run(store: MlflowClient, run: Run, kept: KeptPages, workspace: str) -> str:
    """The page of a run as it is now."""
    state = state_of(store, run)
    return kept.get([workspace, *state], lambda: _drawn(store, run, workspace, _digest(state)))


def following(store: MlflowClient, run: Run) -> dict[str, object]:
    """What a page asks again and again: whether to load itself anew, and whether to keep asking."""
    return {"state": _digest(state_of(store, run)), "status": run.info.status}


def _digest(state: list[object]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def _drawn(store: MlflowClient, run: Run, workspace: str, state: str) -> str:
    name = run.info.run_name or run.info.run_id
    place = {
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "workspace": workspace,
        "status": run.info.status.lower(),
        "state": state,
        "followed": not has_ended(run),  # in training: the page asks for news
    }
    rows = load_stored_rows(store, run, read_files=False)
    if not rows.records:
        return rendered(
            "clear_mlflow.server.page/no_rows",
            over=_OVER,
            title=short(name, 160),
            subtitle="No row of an accuracy matrix is stored in this run.",
            warnings=(),
            footer=f"Run {run.info.run_id}.",
            place=place,
        )
    record = assemble(rows.records)
    answers = _answers(store, run, record) if names.PREDICTIONS_TAG in run.data.tags else None
    scores = compute(run, rows, record, answers=answers, tests=_tests(store, run, record))
    report = run_report(record, scores, run, scores.summary)
    return run_page(report, over=_OVER, place=place)


def _tests(store: MlflowClient, run: Run, record: Record) -> Beside:
    """What its tests inside buckets say."""
    try:
        return read_anytime_scores(store, run, record, thorough=True)
    except ClearError as error:
        return Beside(problem=without_addresses(str(error)))


def _answers(store: MlflowClient, run: Run, record: Record) -> Beside | None:
    """What its predictions say; where they cannot be read, what a scoring logged of them."""
    try:
        found = read_predictions(store, run, record, largest=_MOST_BYTES)
    except ClearError as error:
        metrics = run.data.metrics
        logged = {m.name: metrics[m.name] for m in PREDICTION_METRICS if m.name in metrics}
        return Beside(logged, problem=without_addresses(str(error)))
    if found is None:
        return None  # removed since
    return score_predictions(found, record)
