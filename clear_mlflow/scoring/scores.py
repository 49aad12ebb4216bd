"""Score one run: read its stored rows, compute what they define, write what its store lacks.

The post-run hook and ``evaluate`` are both this. Nothing here trusts what a training process
remembers: the row artifacts are the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.record import Record, assemble, row_file_name
from clear_mlflow.metrics import Metric
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.scoring.anytime_scores import read_anytime_scores
from clear_mlflow.scoring.apply import apply_plan
from clear_mlflow.scoring.computed import Computed, compute
from clear_mlflow.scoring.families import (
    against_joint,
    logged_families,
    metrics_of,
    with_families_of,
)
from clear_mlflow.scoring.plan import Plan, plan, plan_without_rows
from clear_mlflow.scoring.prediction_scores import read_prediction_scores
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.matrices import stored_rows_of
from clear_mlflow.store.rows import lost_rows_error


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What is computed of a run, and how closely its store is looked at."""

    # Beside those of the families that the run logs; families of built-in ones are logged then.
    metrics: Sequence[Metric] = ()
    # Of a run that is trained on all buckets so far at once, which intransigence is against.
    joint: Record | None = None
    prediction_metrics: Sequence[predicted.PredictionMetric] = predicted.METRICS
    thorough: bool = True  # read all artifacts, and write points and files that are gone


@dataclass(frozen=True, eq=False)
class Scores:
    """What the stored rows of one run say, and what its store lacks of it."""

    run_id: str
    run_name: str
    computed: Computed | None  # None: the run holds no row
    plan: Plan
    from_tag: bool  # the rows were taken from the run's tag

    @property
    def record(self) -> Record | None:
        """The rows; None where the run holds none."""
        return None if self.computed is None else self.computed.record

    @property
    def summary(self) -> Mapping[str, float]:
        """Metric name to value."""
        return {} if self.computed is None else self.computed.summary

    @property
    def reasons(self) -> Mapping[str, str]:
        """Metric name to why it has no value in the summary."""
        return {} if self.computed is None else self.computed.reasons

    @property
    def failed(self) -> frozenset[str]:
        """A user's own metrics that are wrong, of the reasons."""
        return frozenset() if self.computed is None else self.computed.failed

    @property
    def rows_state(self) -> str:
        """``complete``, ``partial`` or ``none``."""
        return "none" if self.computed is None else self.computed.rows_state

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Names of the metrics of which less is better."""
        return frozenset() if self.computed is None else self.computed.lower_is_better

    @property
    def problem(self) -> str | None:
        """What of it was left out, though it is stored, and why."""
        if self.computed is None:
            return None
        found = {
            "its predictions": self.computed.predicted.problem,
            "its tests inside buckets": self.computed.anytime.problem,
        }
        told = [f"{what} were left out: {why}" for what, why in found.items() if why is not None]
        return "; ".join(told) or None


def read_scores(client: MlflowClient, run: Run, scoring: Scoring | None = None) -> Scores:
    """Read a run's rows, compute what they define, and plan what its store lacks.

    Nothing is written. A RecordError where a row is damaged or rows contradict each other.
    """
    scoring = scoring or Scoring()
    run_id, run_name = run.info.run_id, run.info.run_name or run.info.run_id
    rows = stored_rows_of(client, run, read_files=scoring.thorough or None)
    if not rows.records:
        return Scores(run_id, run_name, None, plan_without_rows(run), rows.from_tag)
    record = assemble(rows.records)
    if run.data.tags.get(names.ROWS_TAG) == "complete" and not record.is_complete:
        # The tag of its rows shows it, too, except of a matrix too large for one.
        missing = set(range(1, record.matrix.num_buckets + 1)) - set(record.rows)
        raise lost_rows_error(run, row_file_name(min(missing)))
    families = with_families_of(logged_families(run.data.tags), scoring.metrics)
    metrics = metrics_of(families, scoring.metrics)
    if scoring.joint is not None:
        metrics = against_joint(metrics, record, scoring.joint)

    def planned(thorough: bool) -> tuple[Computed, Plan]:
        computed = compute(
            run_name,
            rows,
            record,
            families=families,
            metrics=metrics,
            prediction_metrics=scoring.prediction_metrics,
            answers=read_prediction_scores(
                client, run, record, metrics=scoring.prediction_metrics, thorough=thorough
            ),
            tests=read_anytime_scores(client, run, record, thorough=thorough),
        )
        return computed, plan(client, run, computed, thorough=scoring.thorough)

    computed, lacking = planned(scoring.thorough)
    if lacking.page is not None and (computed.predicted.is_unread or computed.anytime.is_unread):
        computed, lacking = planned(True)  # the page shows what they say, of each class and moment
    return Scores(run_id, run_name, computed, lacking, rows.from_tag)


def write_scores(client: MlflowClient, scores: Scores) -> None:
    """Write what :func:`read_scores` found lacking; nothing where nothing is."""
    if not scores.plan.is_empty:
        apply_plan(client, scores.run_id, scores.plan, scores.computed)


def score(client: MlflowClient, run_id: str) -> Scores:
    """Read a run's rows back, log the scores that MLflow lacks, and give them."""
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    write_scores(client, scores)
    return scores
