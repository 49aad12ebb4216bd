"""What the stored rows and predictions of one run define, and what its store lacks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlflow.entities import Run

from clear_mlflow.core.record import Record, RowRecord
from clear_mlflow.core.score import ACCURACY
from clear_mlflow.metrics import Metric, anytime, course, of_score, with_costs
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics._results import MetricResults, results
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.metrics.from_predictions import PredictionMetric
from clear_mlflow.report.page.run_page import RunReport
from clear_mlflow.scoring.beside import Beside, failed_of
from clear_mlflow.scoring.families import (
    logged_families,
    metrics_of,
    with_families_of,
)
from clear_mlflow.scoring.series import Point, Series, all_series, milliseconds
from clear_mlflow.store import names
from clear_mlflow.store.rows import StoredRows


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What is computed of a run, and how closely its store is looked at."""

    # Beside those of the families that the run logs; families of built-in ones are logged then.
    metrics: Sequence[Metric] = ()
    prediction_metrics: Sequence[PredictionMetric] = predicted.METRICS
    thorough: bool = True  # read all artifacts, and write points and files that are gone


@dataclass(frozen=True)
class Plan:
    """What is to be written into a run, in this order; tags last."""

    reports: bool = False  # the matrix as JSON, CSV and heat map
    page: RunReport | None = None
    points: tuple[Point, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # metrics whose value in force is another one

    @property
    def is_empty(self) -> bool:
        """Whether the store holds all of it already."""
        return not (self.reports or self.page or self.points or self.tags)

    def __str__(self) -> str:
        """What would be written, in one line."""
        parts = {
            f"{len(self.points)} metric values": self.points,
            "the reports": self.reports,
            "the page": self.page,
            f"the tags {', '.join(sorted(self.tags))}": self.tags,
        }
        return ", ".join(part for part, wanted in parts.items() if wanted) or "nothing"


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """What a run's rows, predictions and tests define, and what its store lacks of it."""

    run_id: str
    run_name: str
    record: Record | None = None  # None: the run holds no row, and all the rest is empty
    digest: str = ""  # of the files that the rows were read from
    matrix_tag: str | None = None  # the rows as the matrix tag should have them; None: no room
    from_tag: bool = False  # the rows were taken from the run's tag
    families: tuple[str, ...] = ()  # of metrics that the run logs
    points: Series = field(default_factory=dict)
    times: Mapping[int, int] = field(default_factory=dict)  # step to milliseconds since the epoch
    summary: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric name to why it has no value
    failed: frozenset[str] = frozenset()  # of the reasons, a user's own metrics that are wrong
    versions: Mapping[str, int] = field(default_factory=dict)  # of every metric that was computed
    lower_is_better: frozenset[str] = frozenset()  # names of those of which less is better
    predicted: Beside = field(default_factory=Beside)
    anytime: Beside = field(default_factory=Beside)
    plan: Plan = field(default_factory=Plan)

    @property
    def rows_state(self) -> str:
        """How much of the matrix is there, as the run's tag says it."""
        if self.record is None:
            return "none"
        return "complete" if self.record.is_complete else "partial"

    def results(self, intervals: Mapping[str, tuple[float, float]] | None = None) -> MetricResults:
        """Every metric by its name, with its course and why it has no value."""
        listed = results(
            self.summary,
            self.reasons,
            score=ACCURACY if self.record is None else self.record.matrix.score,
            lower_is_better=self.lower_is_better,
            series=self.points,
            intervals=intervals,
        )
        return MetricResults((result.name, result) for result in listed)

    @property
    def problem(self) -> str | None:
        """What of it was left out, though it is stored, and why."""
        beside = {
            "its predictions": self.predicted.problem,
            "its tests inside buckets": self.anytime.problem,
        }
        told = (f"{what} were left out: {why}" for what, why in beside.items() if why is not None)
        return "; ".join(told) or None


def compute(
    run: Run,
    rows: StoredRows,
    record: Record,
    scoring: Scoring | None = None,
    *,
    answers: Beside | None = None,
    tests: Beside | None = None,
) -> Scores:
    """What a run's rows, of which *record* was assembled, predictions and tests define."""
    scoring, answers, tests = scoring or Scoring(), answers or Beside(), tests or Beside()
    families = with_families_of(logged_families(run.data.tags), scoring.metrics)
    metrics = with_costs(metrics_of(families, scoring.metrics), record.matrix)
    metrics = of_score(metrics, record.matrix.score)
    asked: tuple[Metric | PredictionMetric | AnytimeMetric, ...]
    asked = (*metrics, *scoring.prediction_metrics, *anytime.METRICS)
    over_steps = course(record.evidence, record.protocol, metrics)
    own = {m.name for m in scoring.prediction_metrics} - {m.name for m in predicted.METRICS}
    own |= {metric.name for metric in metrics}
    reasons = {name: str(error) for name, error in over_steps.undefined.items()}
    # Those that come with this program are missing in most runs, which kept labels alone.
    reasons |= {name: reason for name, reason in answers.reasons.items() if name in own}
    series = names.format_bucket_prefix(record.matrix.score.name)
    return Scores(
        run_id=run.info.run_id,
        run_name=run.info.run_name or run.info.run_id,
        record=record,
        digest=rows.digest,
        matrix_tag=rows.tag,
        from_tag=rows.from_tag,
        families=families,
        points=all_series(record.evidence, over_steps.series, series)
        | dict(answers.points)
        | dict(tests.points),
        times=_times(rows.records, record.matrix.num_rows),
        summary=over_steps.summary | dict(answers.summary) | dict(tests.summary),
        reasons=reasons | dict(tests.reasons),
        failed=failed_of(over_steps.undefined) | answers.failed,
        versions={m.name: m.version for m in asked},
        lower_is_better=frozenset(m.name for m in asked if m.higher_is_better is False),
        predicted=answers,
        anytime=tests,
    )


def _times(records: Mapping[str, RowRecord], num_rows: int) -> dict[int, int]:
    """When each step was measured, in ms since the epoch; one without a row, as the one before."""
    written = {record.row.row: milliseconds(record.written_at) for record in records.values()}
    times = {}
    time = min(written.values())
    for step in range(num_rows + 1):
        time = times[step] = written.get(step, time)
    return times
