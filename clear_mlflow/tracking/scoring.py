"""Scores from stored rows: read the rows back, rebuild the matrix, log what MLflow lacks.

The post-run hook and ``evaluate`` are both this. Nothing here trusts what a training process
remembers: the row artifacts are the record.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS, MLFLOW_RUN_NOTE

from clear_mlflow.metrics import explain, summarize
from clear_mlflow.record import Record, RowRecord, assemble
from clear_mlflow.report.files import matrix_csv, matrix_json
from clear_mlflow.report.heatmap import heatmap_array, heatmap_png
from clear_mlflow.report.markdown import description
from clear_mlflow.report.rows import named_rows, percent
from clear_mlflow.tracking import names
from clear_mlflow.tracking.preflight import explained
from clear_mlflow.tracking.rows import read_rows
from clear_mlflow.tracking.series import Series, all_series, as_metrics, fingerprint, milliseconds

_BATCH = 1000  # metrics that MLflow takes in one call


@dataclass(frozen=True)
class Scores:
    """What the stored rows of one run say."""

    run_id: str
    run_name: str
    record: Record | None  # None: the run holds no row
    summary: Mapping[str, float]
    reasons: Mapping[str, str]  # metric name to why it is not defined
    points: Series
    lacking: tuple[Metric, ...]  # points that MLflow does not have, or has otherwise
    rows_state: str  # "complete", "partial" or "none"
    stale: bool  # the stored reports (matrix, heat map, description) are of other scores

    @property
    def is_stored(self) -> bool:
        """Whether MLflow holds all of this already."""
        return not self.lacking and not self.stale


def read_scores(client: MlflowClient, run: Run, *, thorough: bool = False) -> Scores:
    """Read a run's rows and compute every score that they define; nothing is written.

    Args:
        client: the store.
        run: as it is now.
        thorough: look at every point of every series and at every report. Otherwise a run whose
            last values and whose fingerprint agree with its rows is taken to hold the rest, too.

    Raises:
        RecordError: a row is damaged, or rows contradict each other.
        TrackingError: the store does not answer.
    """
    records = read_rows(client, run)
    run_id, run_name = run.info.run_id, run.info.run_name or run.info.run_id
    if not records:
        return Scores(
            run_id=run_id,
            run_name=run_name,
            record=None,
            summary={},
            reasons={},
            points={},
            lacking=(),
            rows_state="none",
            stale=run.data.tags.get(names.ROWS_TAG) != "none"
            and (names.ROWS_TAG in run.data.tags or run.data.tags.get(names.KIND_TAG) == "train"),
        )
    record = assemble(records)
    points = all_series(record.matrix, record.protocol)
    times = _times(records.values(), record.matrix.num_rows)
    rows_state = "complete" if record.is_complete else "partial"
    tags = run.data.tags
    return Scores(
        run_id=run_id,
        run_name=run_name,
        record=record,
        summary=summarize(record.matrix, record.protocol),
        reasons=explain(record.matrix, record.protocol),
        points=points,
        lacking=tuple(_lacking(client, run, points, times, thorough)),
        rows_state=rows_state,
        stale=(tags.get(names.ROWS_TAG), tags.get(names.SCORED_TAG))
        != (rows_state, fingerprint(points))
        or (thorough and _lacks_reports(client, run)),
    )


def write_scores(client: MlflowClient, run: Run, scores: Scores) -> None:
    """Log what :func:`read_scores` found lacking: metrics, reports, and the tags, in this order.

    The tags come last: a run is called scored only when all the rest is stored.
    """
    run_id = scores.run_id
    with explained(f"log the scores of run {run_id}"):
        for start in range(0, len(scores.lacking), _BATCH):
            client.log_batch(run_id, metrics=scores.lacking[start : start + _BATCH])
        if scores.stale:
            tags = {names.ROWS_TAG: scores.rows_state}
            if scores.record is not None:
                tags |= _log_reports(client, run, scores, scores.record)
                tags[names.SCORED_TAG] = fingerprint(scores.points)
            client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def _times(records: Iterable[RowRecord], num_rows: int) -> dict[int, int]:
    """When each step was measured, in milliseconds since the epoch.

    A step whose own row is missing may still define a metric: it has the time of the row before.
    """
    written = {record.row.row: milliseconds(record.written_at) for record in records}
    times = {}
    time = min(written.values())
    for step in range(num_rows + 1):
        time = times[step] = written.get(step, time)
    return times


def _lacking(
    client: MlflowClient, run: Run, points: Series, times: Mapping[int, int], thorough: bool
) -> list[Metric]:
    """Points that the store has not, or whose value in force is another."""
    if not thorough and _all_latest_agree(run, points):
        return []
    found = []
    for name, steps in points.items():
        in_force: dict[int, Metric] = {}
        if name in run.data.metrics:
            for stored in client.get_metric_history(run.info.run_id, name):
                before = in_force.get(stored.step)
                if before is None or stored.timestamp >= before.timestamp:
                    in_force[stored.step] = stored
        for point in as_metrics({name: steps}, times):
            if point.step not in in_force:
                found.append(point)
            elif (other := in_force[point.step]).value != point.value:
                # Of two values at one step MLflow shows the later one.
                later = max(other.timestamp + 1, point.timestamp)
                found.append(Metric(name, point.value, later, point.step))
    return found


def _lacks_reports(client: MlflowClient, run: Run) -> bool:
    with explained(f"list the reports of run {run.info.run_id}"):
        listed = {f.path for f in client.list_artifacts(run.info.run_id, names.MATRIX_FOLDER)}
    return (
        not {
            names.MATRIX_JSON,
            names.MATRIX_CSV,
            names.MATRIX_TABLE,
            names.HEATMAP_PNG,
        }
        <= listed
    )


def _all_latest_agree(run: Run, points: Series) -> bool:
    """Whether the run was scored with just these points, and still shows the last of each.

    One look at what a listing of runs brings anyway, instead of one request per metric.
    """
    if run.data.tags.get(names.SCORED_TAG) != fingerprint(points):
        return False
    return all(run.data.metrics.get(name) == steps[max(steps)] for name, steps in points.items())


def _log_reports(client: MlflowClient, run: Run, scores: Scores, record: Record) -> dict[str, str]:
    """Store the matrix in the forms people look at; give the tags that belong to them."""
    run_id, matrix = run.info.run_id, record.matrix.masked(record.protocol)
    client.log_text(run_id, matrix_json(matrix), names.MATRIX_JSON)
    client.log_text(run_id, matrix_csv(matrix), names.MATRIX_CSV)
    _log_bytes(client, run_id, heatmap_png(matrix, scores.run_name), names.HEATMAP_PNG)
    # Written as a file, not with log_table: that appends to the table of an earlier scoring.
    client.log_text(run_id, _table(record), names.MATRIX_TABLE)
    # MLflow's chart view sets images of one key side by side, runs beside runs; it starts at the
    # first step, so the matrix as it stands has a key of its own with a single step.
    client.log_image(run_id, heatmap_array(matrix, scores.run_name), key=names.IMAGE_FINAL, step=0)

    tags = {}
    this_table = {"path": names.MATRIX_TABLE, "type": "table"}
    try:
        tables = json.loads(run.data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
    except ValueError:
        tables = None  # MLflow cuts long tags off; a list that cannot be read is left as it is
    if isinstance(tables, list) and this_table not in tables:
        tags[MLFLOW_LOGGED_ARTIFACTS] = json.dumps([*tables, this_table])
    return tags | _note_tags(run, scores, record)


def _note_tags(run: Run, scores: Scores, record: Record) -> dict[str, str]:
    """The run's description, unless a person has written another one there."""
    tags = run.data.tags
    current = tags.get(MLFLOW_RUN_NOTE)
    if current and _short_hash(current) != tags.get(names.NOTE_TAG):
        return {}
    told = ("strategy", "model")
    facts = {str(name): tags[name] for name in told if name in tags}
    note = description(record, scores.summary, scores.reasons, facts=facts)
    return {MLFLOW_RUN_NOTE: note, names.NOTE_TAG: _short_hash(note)}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _table(record: Record) -> str:
    """The matrix as a table that MLflow's evaluation view compares across runs.

    That view groups by the first column and sets the second one of all runs side by side: so these
    are what was trained through, and its row in one text. The cells follow, a column a bucket.
    """
    matrix = record.matrix.masked(record.protocol)
    rows = [
        [
            "initial" if i < 0 else f"after {i + 1:02d}",
            "  ".join(percent(value) for value in values),
            *(None if math.isnan(value) else float(value) for value in values),
        ]
        for i, _, values in named_rows(matrix)
    ]
    cells = (f"on {key}" for key in matrix.buckets)
    return json.dumps({"columns": ["trained", "accuracy in %", *cells], "data": rows})


def _log_bytes(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    folder, name = artifact.rsplit("/", 1)
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        file = Path(scratch, name)
        file.write_bytes(content)
        client.log_artifact(run_id, str(file), folder)
