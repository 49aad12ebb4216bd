"""The report of a run with its current rows, and the state by which a page notices changes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timezone

from mlflow import MlflowClient
from mlflow.entities import Run, RunStatus

from clear_mlflow.comparison.page.wording import short
from clear_mlflow.core.errors import ClearError
from clear_mlflow.report.page import rendered
from clear_mlflow.report.page.run_page import run_page
from clear_mlflow.scoring import evaluate
from clear_mlflow.scoring.run_log import build_report
from clear_mlflow.scoring.run_record import list_test_sizes, read_record
from clear_mlflow.server.mlflow_hooks import hide_addresses
from clear_mlflow.store import names
from clear_mlflow.store.rows import list_row_sizes

# Of the predictions of all rows: labels of CLEAR-100's 55,000 test images take half a megabyte,
# their probabilities 120.
_MAX_PREDICTIONS_BYTES = 256 * 2**20
_TEMPLATE = "clear_mlflow.server.page/run"
# Tags that change while nothing changes that a page shows.
_HEARTBEAT_TAGS = frozenset({names.PROCESS_TAG, names.HOLDER_TAG})


def describe_state(client: MlflowClient, run: Run) -> list[object]:
    """Return JSON values that differ if the report of a run would differ.

    They contain its status, parameters, tags, and the sizes of its row files. If the files cannot
    be listed, the values contain the error message.
    """
    info, tags = run.info, run.data.tags
    state: list[object] = [
        *(info.run_id, info.run_name, info.status, info.end_time),
        run.data.params,
        {name: value for name, value in tags.items() if name not in _HEARTBEAT_TAGS},
    ]
    if names.MATRIX_TAG not in tags or not _has_ended(run):
        try:
            state.append(list_row_sizes(client, run))
            if names.ANYTIME_TAG in tags:
                state.append(list_test_sizes(client, run))
        except ClearError as error:
            state.append(str(error))
    return state


def hash_state(state: list[object]) -> str:
    """Return a hash, 16 hexadecimal digits, of the result of :func:`describe_state`."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def format_start(run: Run) -> str:
    """Return the start time of a run in UTC, for example ``2026-11-24 09:30``."""
    return f"{datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc):%Y-%m-%d %H:%M}"


def draw_run(client: MlflowClient, run: Run, state: list[object], workspace: str) -> str:
    """Return the HTML report of a run, which reloads itself when the state has changed.

    Args:
        client: client of the server's store.
        run: run returned by the client.
        state: result of :func:`describe_state`.
        workspace: name of MLflow's workspace, for links; empty for the default one.

    Raises RecordError if a row is damaged.
    """
    page_links = {
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "workspace": workspace,
        "status": run.info.status.lower(),
        "state": hash_state(state),
        "is_followed": not _has_ended(run),
    }
    stored = read_record(
        client,
        run,
        read_files=False,
        max_prediction_bytes=_MAX_PREDICTIONS_BYTES,
        tolerate=ClearError,
    )
    if stored.record is None:
        return rendered(
            "clear_mlflow.server.page/no_rows",
            over=_TEMPLATE,
            title=short(run.info.run_name or run.info.run_id, 160),
            subtitle="No row of an accuracy matrix is stored in this run.",
            warnings=(),
            footer=f"Run {run.info.run_id}.",
            links=page_links,
        )
    problems = {name: hide_addresses(reason) for name, reason in stored.problems.items()}
    stored = replace(stored, problems=problems)
    return run_page(build_report(stored, evaluate(stored)), over=_TEMPLATE, links=page_links)


def _has_ended(run: Run) -> bool:
    """Return True if the run's status is FINISHED, FAILED or KILLED."""
    return bool(RunStatus.is_terminated(RunStatus.from_string(run.info.status)))
