"""What a store lacks of a run's scores: plain values compared with plain values.

Nothing is read or written here. :func:`to_look_up` says what has to be known of the store beyond
what a listing of runs brings, and :func:`plan` what has to be written then. Applying a plan makes
the next one empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object, json_value
from clear_mlflow.metrics import ALL_METRICS, of_score
from clear_mlflow.report.markdown import description
from clear_mlflow.report.page.run_page import RunReport
from clear_mlflow.scoring.computed import Computed
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.scoring.run_report import Facts, run_report
from clear_mlflow.scoring.series import Point, points_of
from clear_mlflow.store import names

_PICTURES = "pictures"
_PICTURE = "picture"
_NO_TAG = "none"
_REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.MATRIX_TABLE})
_TABLES = frozenset({names.PER_CLASS_CSV, names.CONFUSION_FOLDER})


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a store holds of one run.

    Args:
        values: metric name to the value in force at its last step, as a listing shows it.
        tags: of the run.
        series: metric name to step to the point in force there, of the series looked up.
        files: artifact paths in the folders looked up.
        facts: how the run came about, for its page.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, Mapping[int, Point]] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    facts: Facts = field(default_factory=Facts)


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How a run is scored.

    Args:
        thorough: look at every point of every series and at every report. Otherwise a series whose
            last value agrees, in a run that was scored from these very rows, is taken to be whole.
        accept_new: overwrite values of another version of a metric's definition; otherwise they
            are left alone.
        pictures: draw the matrix, and which class is taken for which; where there is a picture,
            it is kept up to date in any case.
    """

    thorough: bool = False
    accept_new: bool = False
    pictures: bool = True


@dataclass(frozen=True)
class LookUp:
    """What a plan needs to know of a store beyond the run's listing."""

    series: tuple[str, ...]  # metric names whose whole history is needed
    folders: tuple[str, ...]  # artifact folders whose file names are needed


@dataclass(frozen=True)
class Plan:
    """What is to be written into a run, in this order; tags last."""

    reports: bool = False  # the matrix as JSON, CSV and table
    heat_map: bool = False  # beside the reports
    tables: bool = False  # of predictions
    confusion: bool = False  # the picture of predictions
    page: RunReport | None = None  # the run's page
    points: tuple[Point, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    # Metric name to the version that the stored values are of, where another is computed.
    outdated: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the store holds all of it already."""
        files = self.reports or self.tables or self.confusion or self.page is not None
        return not (files or self.points or self.tags)

    def __str__(self) -> str:
        """What would be written, in one line."""
        parts = [
            f"{len(self.points)} metric values" if self.points else "",
            "the reports" if self.reports else "",
            "the heat map" if self.heat_map else "",
            "the tables of predictions" if self.tables else "",
            "the picture of predictions" if self.confusion else "",
            "the page" if self.page is not None else "",
            f"the tags {', '.join(sorted(self.tags))}" if self.tags else "",
        ]
        return ", ".join(filter(None, parts)) or "nothing"


def plan_without_rows(stored: Stored) -> Plan:
    """What is written into a run that holds no row: that it holds none, if it should hold some."""
    tags = stored.tags
    is_ours = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
    return Plan(tags=_differing(tags, {names.ROWS_TAG: "none"} if is_ours else {}))


def to_look_up(stored: Stored, computed: Computed, depth: Depth) -> LookUp:
    """What :func:`plan` has to know of the store beyond what a listing of runs brings."""
    both = _Comparison(stored, computed, depth)
    return LookUp(
        series=tuple(
            name
            for name, steps in both.series.items()
            if name in stored.values and not both.is_settled(name, steps)
        ),
        folders=tuple(
            folder
            for folder, is_needed in (
                (names.MATRIX_FOLDER, depth.thorough and not both.reports_are_of_others),
                (PREDICTIONS_FOLDER, both.same_answers),
                ("", depth.thorough),
            )
            if is_needed
        ),
    )


def plan(stored: Stored, computed: Computed, depth: Depth) -> Plan:
    """What a store lacks of a run's scores.

    Args:
        stored: what it holds, with all that :func:`to_look_up` named.
        computed: what it should hold.
        depth: how closely the two are compared.
    """
    both = _Comparison(stored, computed, depth)
    answers = computed.predicted
    reports = both.reports_are_of_others or (
        depth.thorough
        and not _REPORTS | ({names.HEATMAP_PNG} if both.heat_map else set()) <= stored.files
    )
    picture_is_there = both.had_picture and names.CONFUSION_PNG in stored.files
    tags = {
        names.ROWS_TAG: computed.rows_state,
        names.SCORED_TAG: f"{computed.digest} {_PICTURES}" if both.heat_map else computed.digest,
        **_matrix_tag(stored.tags, computed.matrix_tag),
        **families_tag(computed.families, stored.tags),
        **_version_tags(stored.tags, both),
    }
    # Not before all of it is stored: what is left alone is looked at again.
    if answers.stamp is not None and not both.left_alone.keys() & answers.points.keys():
        tags[names.PREDICTIONS_SCORED_TAG] = (
            f"{answers.stamp} {_PICTURE}" if both.picture else answers.stamp
        )
    tests = computed.anytime
    new_tests = tests.stamp is not None and stored.tags.get(names.ANYTIME_SCORED_TAG) != tests.stamp
    if tests.stamp is not None and not both.left_alone.keys() & tests.points.keys():
        tags[names.ANYTIME_SCORED_TAG] = tests.stamp
    page = run_report(computed, stored.facts, *_shown(stored, computed, both))
    tags[names.REPORT_TAG] = page.stamp(computed.digest)
    tables = answers.stamp is not None and not (both.same_answers and stored.files >= _TABLES)
    found = Plan(
        # Predictions that a person removed stay on the page that was made of them.
        page=page if tables or new_tests or not both.has_page(tags[names.REPORT_TAG]) else None,
        reports=reports,
        heat_map=reports and both.heat_map,
        tables=tables,
        confusion=both.picture
        and answers.picture is not None
        and not (both.same_answers and picture_is_there),
        points=tuple(both.lacking()),
        tags=_differing(stored.tags, tags),
        outdated=both.outdated,
    )
    if found.is_empty:
        return found
    more = _table_tag(stored.tags) if reports else {}
    more |= _note_tags(stored, computed, both.left_alone)
    return replace(found, tags={**found.tags, **more})


class _Comparison:
    """What is stored of a run beside what is computed, and which of it is compared."""

    def __init__(self, stored: Stored, computed: Computed, depth: Depth) -> None:
        self.stored, self.computed, self.depth = stored, computed, depth
        self.versions = _read_versions(stored.tags)
        self.outdated = dict(self._outdated())
        self.left_alone = {} if depth.accept_new else self.outdated
        self.series = {n: s for n, s in computed.points.items() if n not in self.left_alone}
        digest, _, pictures = stored.tags.get(names.SCORED_TAG, "").partition(" ")
        self.same_rows = digest == computed.digest
        had_heat_map = pictures == _PICTURES
        self.heat_map = depth.pictures or had_heat_map
        self.reports_are_of_others = not self.same_rows or self.heat_map != had_heat_map
        stamp, self.had_picture = last_predictions(stored.tags)
        self.same_answers = computed.predicted.stamp is not None and (
            computed.predicted.stamp == stamp
        )
        self.picture = depth.pictures or self.had_picture

    def has_page(self, stamp: str) -> bool:
        """Whether the store has the page that a stamp is of."""
        is_there = not self.depth.thorough or names.REPORT_HTML in self.stored.files
        return is_there and self.stored.tags.get(names.REPORT_TAG) == stamp

    def _outdated(self) -> Iterator[tuple[str, int]]:
        """Metrics whose stored values are of another version of the definition, with that version.

        Values whose version no scoring wrote down are of version 1, unless they are what this
        program computes anyway: a training logs them one by one, and is closed by a scoring.
        """
        values = self.stored.values
        for name, version in self.computed.versions.items():
            if name not in values or self.versions.get(name, 1) == version:
                continue
            if name in self.versions or values[name] != self.computed.summary.get(name):
                yield name, self.versions.get(name, 1)

    def is_settled(self, name: str, steps: Mapping[int, float]) -> bool:
        """Whether a series is taken to be whole because its last value is what is computed.

        What a listing of runs brings anyway is then enough, instead of one request per metric.
        """
        # A bucket's series has no definition that changes; of a metric, a scoring has to say it.
        was_scored = names.is_of_bucket(name) or name in self.versions
        return (
            self.same_rows
            and not self.depth.thorough
            and name not in self.outdated
            and was_scored
            and self.stored.values.get(name) == steps[max(steps)]
        )

    def lacking(self) -> Iterator[Point]:
        """Points that the store has not, or whose value in force is another."""
        for name, steps in self.series.items():
            if self.is_settled(name, steps):
                continue
            in_force = self.stored.series[name] if name in self.stored.values else {}
            for point in points_of({name: steps}, self.computed.times):
                if point.step not in in_force:
                    yield point
                elif (other := in_force[point.step]).value != point.value:
                    # Of two values at one step MLflow shows the later one.
                    yield point._replace(time=max(other.time + 1, point.time))


def defined(
    computed: Computed, left_alone: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, str]]:
    """Values by name, and why the others have none, but for those of other definitions.

    Args:
        computed: what the rows define.
        left_alone: metrics whose stored values are of another version, which is that.
    """
    summary = {n: value for n, value in computed.summary.items() if n not in left_alone}
    reasons = dict(computed.reasons)
    for name, version in left_alone.items():
        reasons[name] = f"the run holds values of version {version} of its definition"
    return summary, reasons


def _shown(
    stored: Stored, computed: Computed, both: _Comparison
) -> tuple[dict[str, float], dict[str, str]]:
    """What the page shows: also values that an earlier scoring has logged and this one has not.

    A user's own metrics are not computed by every scoring, or are by another definition of theirs;
    and predictions may have been removed since.
    """
    summary, reasons = defined(computed, both.left_alone)
    built_in = {metric.name for metric in of_score(ALL_METRICS, computed.record.matrix.score)}
    reasons = {n: text for n, text in reasons.items() if n in built_in or n not in both.left_alone}
    known = summary.keys() | reasons.keys() | (computed.points.keys() - both.left_alone.keys())
    earlier = both.versions.keys() & stored.values.keys() - known
    return {**{name: stored.values[name] for name in earlier}, **summary}, reasons


def last_predictions(tags: Mapping[str, str]) -> tuple[str, bool]:
    """Fingerprint of what a run's predictions defined last, and whether a picture was drawn."""
    stamp, _, picture = tags.get(names.PREDICTIONS_SCORED_TAG, "").partition(" ")
    return stamp, picture == _PICTURE


def _read_versions(tags: Mapping[str, str]) -> dict[str, int]:
    try:
        found = json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in found.items() if isinstance(version, int)}


def _version_tags(tags: Mapping[str, str], both: _Comparison) -> dict[str, str]:
    """The tags that say which definitions the logged values are of, and were of before.

    What another scoring logged, of metrics that this one does not compute, stays in them.
    """
    computed = both.computed.versions
    versions = both.versions | {n: version for n, version in computed.items() if n in both.series}
    found = {names.VERSIONS_TAG: json.dumps(versions, sort_keys=True, separators=(",", ":"))}
    if both.depth.accept_new and both.outdated:
        before = {name: [version] for name, version in both.outdated.items()}
        with suppress(RecordError, TypeError):
            earlier_versions = json_object(tags.get(names.REPLACED_TAG, "{}"), MAX_TAG_BYTES)
            for name, earlier in earlier_versions.items():
                before[name] = [*earlier, *before.get(name, [])]
        found[names.REPLACED_TAG] = json.dumps(before, sort_keys=True, separators=(",", ":"))
    return found


def _matrix_tag(tags: Mapping[str, str], wanted: str | None) -> dict[str, str]:
    if wanted is None and names.MATRIX_TAG not in tags:
        return {}
    return {names.MATRIX_TAG: wanted or _NO_TAG}


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


def _note_tags(stored: Stored, computed: Computed, left_alone: Mapping[str, int]) -> dict[str, str]:
    """The run's description, unless a person has written another one."""
    tags = stored.tags
    current = tags.get(names.MLFLOW_NOTE)
    if current and _short_hash(current) != tags.get(names.NOTE_TAG):
        return {}
    facts = {name: tags[name] for name in ("strategy", "model") if name in tags}
    note = description(
        computed.record,
        *defined(computed, left_alone),
        facts=facts,
        report=stored.facts.link,
        lower_is_better=computed.lower_is_better,
    )
    if note == current:
        return {}
    return {names.MLFLOW_NOTE: note, names.NOTE_TAG: _short_hash(note)}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _differing(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}
