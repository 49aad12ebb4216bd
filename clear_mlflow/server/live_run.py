"""A run's report as its rows are now, and what a page asks to follow a run in training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.page.wording import short
from clear_mlflow.core.errors import ClearError
from clear_mlflow.report.page import rendered
from clear_mlflow.report.page.run_page import run_page
from clear_mlflow.scoring import evaluate
from clear_mlflow.scoring.run_log import build_report
from clear_mlflow.scoring.run_record import read_record
from clear_mlflow.server.kept_pages import KeptPages
from clear_mlflow.server.mlflow_hooks import without_addresses
from clear_mlflow.server.run_state import has_ended, state_of

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
    stored = read_record(
        store, run, read_files=False, max_prediction_bytes=_MOST_BYTES, tolerate=ClearError
    )
    if stored.record is None:
        return rendered(
            "clear_mlflow.server.page/no_rows",
            over=_OVER,
            title=short(name, 160),
            subtitle="No row of an accuracy matrix is stored in this run.",
            warnings=(),
            footer=f"Run {run.info.run_id}.",
            place=place,
        )
    problems = {name: without_addresses(reason) for name, reason in stored.problems.items()}
    stored = replace(stored, problems=problems)
    return run_page(build_report(stored, evaluate(stored)), over=_OVER, place=place)
