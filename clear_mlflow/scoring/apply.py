"""Carry out a plan: write into a run what its store lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.entities import Metric

from clear_mlflow.core.matrix import named_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.report.exports import matrix_csv, matrix_json
from clear_mlflow.report.page.run_page import run_page
from clear_mlflow.report.pictures import heatmap_png, png_array
from clear_mlflow.scoring.computed import Computed, prediction_tables
from clear_mlflow.scoring.plan import Plan
from clear_mlflow.scoring.series import Point
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import log_tags, mlflow_errors

_BATCH = 900  # MLflow takes 1,000 entries in one call


def apply_plan(client: MlflowClient, run_id: str, plan: Plan, computed: Computed | None) -> None:
    """Write what a plan says: reports, tables, page, metrics, and the tags, in this order.

    The tags come last, in a call of their own: a run is called scored only when all the rest is
    stored.
    """
    with mlflow_errors(f"log the scores of run {run_id}"):
        if computed is not None:
            _log_files(client, run_id, plan, computed)
        for start in range(0, len(plan.points), _BATCH):
            client.log_batch(run_id, metrics=to_metrics(plan.points[start : start + _BATCH]))
        if plan.tags:
            log_tags(client, run_id, plan.tags)


def to_metrics(points: Iterable[Point]) -> list[Metric]:
    """Points as MLflow takes them."""
    return [Metric(*point) for point in points]


def _log_files(client: MlflowClient, run_id: str, plan: Plan, computed: Computed) -> None:
    if plan.reports:
        matrix = computed.record.evidence
        client.log_text(run_id, matrix_json(matrix), names.MATRIX_JSON)
        client.log_text(run_id, matrix_csv(matrix), names.MATRIX_CSV)
        # Written as a file, not with log_table: that appends to the table of an earlier scoring.
        client.log_text(run_id, _table(computed.record), names.MATRIX_TABLE)
        content = heatmap_png(matrix, computed.run_name)
        log_bytes(client, run_id, content, names.HEATMAP_PNG)
        # MLflow's chart view sets images of one key side by side, runs beside runs; it starts at
        # the first step, so the final matrix has a key of its own with one step.
        client.log_image(run_id, png_array(content), key=names.IMAGE_FINAL, step=0)
    answers = computed.predicted
    if plan.tables and answers.predictions is not None:
        for path, text in prediction_tables(answers.predictions).items():
            client.log_text(run_id, text, path)
        if answers.picture is not None:
            log_bytes(client, run_id, answers.picture(), names.CONFUSION_PNG)
    if plan.page is not None:
        client.log_text(run_id, run_page(plan.page), names.REPORT_HTML)


def _table(record: Record) -> str:
    """The matrix as a table that MLflow's evaluation view compares across runs.

    That view groups by the first column and sets the second one of all runs side by side: so these
    are what was trained through, and its row in one text. The cells follow, accuracies in %, a
    column a bucket.
    """
    score = record.matrix.score
    rows = [
        [
            "initial" if i < 0 else f"after {i + 1:02d}",
            "  ".join(score.cell(value) for value in values),
            *(_shown(value, score) for value in values),
        ]
        for i, _, values in named_rows(record.evidence)
    ]
    cells = (f"on {key}" for key in record.evidence.buckets)
    return json.dumps({"columns": ["trained", score.label, *cells], "data": rows})


def _shown(value: float, score: Score) -> float | None:
    """A cell with few digits: MLflow's page shows as many as there are, and cuts them off."""
    if math.isnan(value):
        return None
    return round(100 * float(value), 1) if score.is_accuracy else float(score.cell(value))
