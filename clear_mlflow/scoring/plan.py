"""What a store lacks of a run's scores: nothing, where it was scored from what it holds now.

Tags of the run say what it was scored from: digests of its rows, predictions and tests inside
buckets, and the version of each metric's definition. Where one of them differs, what follows from
it is written again; points whose value is in force already are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object, json_value
from clear_mlflow.report.markdown import description
from clear_mlflow.report.page.run_page import RunReport
from clear_mlflow.scoring.computed import Computed
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.scoring.run_report import run_report
from clear_mlflow.scoring.series import Point, points_of
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.ui_urls import artifact_link

_NO_TAG = "none"
_REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.MATRIX_TABLE, names.HEATMAP_PNG})
_TABLES = frozenset({names.PER_CLASS_CSV, names.CONFUSION_FOLDER, names.CONFUSION_PNG})


@dataclass(frozen=True)
class Plan:
    """What is to be written into a run, in this order; tags last."""

    reports: bool = False  # the matrix as JSON, CSV, table and heat map
    tables: bool = False  # of predictions, and their picture
    page: RunReport | None = None
    points: tuple[Point, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # metrics whose value in force is another one

    @property
    def is_empty(self) -> bool:
        """Whether the store holds all of it already."""
        return not (self.reports or self.tables or self.page or self.points or self.tags)

    def __str__(self) -> str:
        """What would be written, in one line."""
        parts = [
            f"{len(self.points)} metric values" if self.points else "",
            "the reports" if self.reports else "",
            "the tables of predictions" if self.tables else "",
            "the page" if self.page is not None else "",
            f"the tags {', '.join(sorted(self.tags))}" if self.tags else "",
        ]
        return ", ".join(filter(None, parts)) or "nothing"


def plan_without_rows(run: Run) -> Plan:
    """What is written into a run that holds no row: that it holds none, if it should hold some."""
    tags = run.data.tags
    is_ours = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
    return Plan(tags=_differing(tags, {names.ROWS_TAG: "none"} if is_ours else {}))


def plan(client: MlflowClient, run: Run, computed: Computed, *, thorough: bool = False) -> Plan:
    """What a store lacks of a run's scores; *thorough*: also points and files that are gone."""
    tags, answers, tests = run.data.tags, computed.predicted, computed.anytime
    same_rows = tags.get(names.SCORED_TAG) == computed.digest
    versions = _read_versions(tags)
    lost = _lost(client, run, computed) if thorough else frozenset()
    points = list(_lacking(client, run, computed, versions if same_rows and not thorough else {}))
    page = run_report(computed, run, *_shown(run, computed, versions))
    stamps = {names.PREDICTIONS_SCORED_TAG: answers.stamp, names.ANYTIME_SCORED_TAG: tests.stamp}
    new = {tag: stamp for tag, stamp in stamps.items() if stamp and tags.get(tag) != stamp}
    wanted = {
        names.ROWS_TAG: computed.rows_state,
        names.SCORED_TAG: computed.digest,
        names.REPORT_TAG: page.stamp(computed.digest),
        names.VERSIONS_TAG: _compact(
            versions | {n: v for n, v in computed.versions.items() if n in computed.points}
        ),
        **families_tag(computed.families, tags),
        **new,
    }
    if computed.matrix_tag is not None or names.MATRIX_TAG in tags:
        wanted[names.MATRIX_TAG] = computed.matrix_tag or _NO_TAG
    tables = answers.stamp is not None and (
        names.PREDICTIONS_SCORED_TAG in new or bool(lost & _TABLES)
    )
    # Predictions that a person removed stay on the page that was made of them.
    has_page = tags.get(names.REPORT_TAG) == wanted[names.REPORT_TAG]
    reports = not same_rows or bool(lost & _REPORTS)
    is_shown = has_page and not new and not tables and names.REPORT_HTML not in lost
    differing = _differing(tags, wanted)
    if not (points or reports or differing) and is_shown:
        return Plan()
    differing |= _note_tags(run, computed) | (_table_tag(tags) if reports else {})
    # Of a run that was never scored, training logged the values on the way to its last ones.
    before = run.data.metrics if names.SCORED_TAG in tags else {}
    changed = tuple(n for n, value in computed.summary.items() if before.get(n, value) != value)
    return Plan(reports, tables, None if is_shown else page, tuple(points), differing, changed)


def _lacking(
    client: MlflowClient, run: Run, computed: Computed, versions: Mapping[str, int]
) -> Iterator[Point]:
    """Points that the store has not, or whose value in force is another.

    A series whose last value is in force, by the same definition and from the same rows, is whole:
    *versions* is empty where that is not known. Any other that the run holds is looked up.
    """
    for name, steps in computed.points.items():
        in_force: dict[int, Point] = {}
        if name in run.data.metrics:
            same = versions.get(name) == computed.versions.get(name)
            was_scored = name in versions or (names.is_of_bucket(name) and bool(versions))
            if same and was_scored and run.data.metrics[name] == steps[max(steps)]:
                continue
            with mlflow_errors(f"read {name} of run {run.info.run_id}"):
                history = client.get_metric_history(run.info.run_id, name)
            for held in sorted(history, key=lambda metric: metric.timestamp):
                in_force[held.step] = Point(name, held.value, held.timestamp, held.step)
        for point in points_of({name: steps}, computed.times):
            if point.step not in in_force:
                yield point
            elif (other := in_force[point.step]).value != point.value:
                # Of two values at one step MLflow shows the later one.
                yield point._replace(time=max(other.time + 1, point.time))


def _lost(client: MlflowClient, run: Run, computed: Computed) -> frozenset[str]:
    """Paths of reports, tables and page that a scored run's artifacts lack."""
    answers, found = computed.predicted, set()
    wanted = _REPORTS | {names.REPORT_HTML}
    if answers.predictions is not None:
        wanted |= _TABLES if answers.picture else _TABLES - {names.CONFUSION_PNG}
    for folder in ("", names.MATRIX_FOLDER, PREDICTIONS_FOLDER):
        with mlflow_errors(f"list {folder or 'the artifacts'} of run {run.info.run_id}"):
            found |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    return wanted - found


def _shown(
    run: Run, computed: Computed, versions: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, str]]:
    """What the page shows: also values that an earlier scoring has logged and this one has not.

    A user's own metrics are not computed by every scoring, and predictions may have been removed.
    """
    logged = run.data.metrics
    known = computed.summary.keys() | computed.reasons.keys() | computed.points.keys()
    earlier = {name: logged[name] for name in versions.keys() & logged.keys() - known}
    return {**earlier, **computed.summary}, dict(computed.reasons)


def _read_versions(tags: Mapping[str, str]) -> dict[str, int]:
    """Metric name to the version of the definition that its logged values are of."""
    try:
        found = json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in found.items() if isinstance(version, int)}


def _table_tag(tags: Mapping[str, str]) -> dict[str, str]:
    """The list of tables that MLflow's evaluation view offers, with this one in it."""
    this_table = {"path": names.MATRIX_TABLE, "type": "table"}
    try:
        tables = json_value(tags.get(names.MLFLOW_TABLES, "[]"), MAX_TAG_BYTES)
    except RecordError:
        return {}  # MLflow cuts long tags off; a list that cannot be read is left as it is
    if not isinstance(tables, list) or this_table in tables:
        return {}
    return {names.MLFLOW_TABLES: json.dumps([*tables, this_table])}


def _note_tags(run: Run, computed: Computed) -> dict[str, str]:
    """The run's description, unless a person has written another one."""
    tags = run.data.tags
    current = tags.get(names.MLFLOW_NOTE)
    if current and _short_hash(current) != tags.get(names.NOTE_TAG):
        return {}
    note = description(
        computed.record,
        computed.summary,
        computed.reasons,
        facts={name: tags[name] for name in ("strategy", "model") if name in tags},
        report=artifact_link(run, names.REPORT_HTML),
        lower_is_better=computed.lower_is_better,
    )
    if note == current:
        return {}
    return {names.MLFLOW_NOTE: note, names.NOTE_TAG: _short_hash(note)}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _differing(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}
