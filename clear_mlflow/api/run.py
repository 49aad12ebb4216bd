"""A stored run as an object: matrix, metrics, predictions, and where to look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from math import nan
from typing import TYPE_CHECKING, Any

from mlflow.entities import Run as MlflowRun

from clear_mlflow.api.bundle import is_bundle
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import Record
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.parameters.logged import unlogged_parameters
from clear_mlflow.metrics import MATRIX, MetricResult, MetricResults, Predictions
from clear_mlflow.report.page.fragment import run_html
from clear_mlflow.report.terminal_tables import as_text, run_text
from clear_mlflow.scoring import Scores, load_scores
from clear_mlflow.scoring.run_record import read_configuration
from clear_mlflow.statistics import ImageBootstrap
from clear_mlflow.store.client import MlflowClient
from clear_mlflow.store.matrices import NO_ROWS
from clear_mlflow.store.ui_urls import format_run_links

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Run:
    """A run of a store, read when it is asked; :func:`clear_mlflow.load` and its like give it.

    A notebook shows its heat map, metrics and links, ``print`` the same as tables.
    """

    def __init__(
        self,
        client: MlflowClient,
        run: MlflowRun,
        *,
        scores: Scores | None = None,
        record: Record | None = None,
    ) -> None:
        self._client, self._run = client, run
        if scores is not None:
            self.__dict__["scores"] = scores
        if record is not None:
            self.__dict__["record"] = record

    @property
    def run_id(self) -> str:
        """Of the MLflow run."""
        return str(self._run.info.run_id)

    @property
    def name(self) -> str:
        """Of the MLflow run."""
        return str(self._run.info.run_name or self.run_id)

    @property
    def status(self) -> str:
        """As MLflow has it: FINISHED, FAILED, KILLED or RUNNING."""
        return str(self._run.info.status)

    @property
    def tags(self) -> Mapping[str, str]:
        """Those that people and programs set, without MLflow's own."""
        return {k: v for k, v in self._run.data.tags.items() if not k.startswith("mlflow.")}

    @property
    def config(self) -> Mapping[str, str]:
        """Every parameter that it was trained with, as logged; ``auto`` is what it became."""
        params = self._run.data.params
        return read_configuration({**unlogged_parameters(params), **params})

    @property
    def entity(self) -> MlflowRun:
        """The run as MLflow has it."""
        return self._run

    @property
    def is_bundle(self) -> bool:
        """Whether it was read from a bundle, and not from a store."""
        return is_bundle(self._run)

    @property
    def links(self) -> tuple[str, ...]:
        """Lines that say where to look at it."""
        if self.is_bundle:
            return (f"bundle   {self._run.bundle_path}",)
        return tuple(format_run_links(self._client, self._run))

    @cached_property
    def record(self) -> Record:
        """The rows put together: matrix, protocol, split, dataset, seed.

        Raises:
            RecordError: the run holds no rows, or damaged ones.
            TrackingError: the store does not answer.
        """
        if self.scores.record is None:
            raise RecordError(f"run {self.run_id} {NO_ROWS}")
        return self.scores.record

    @property
    def matrix(self) -> AccuracyMatrix:
        """What was measured; errors as of :attr:`record`."""
        return self.record.matrix

    @property
    def curves(self) -> Mapping[str, Mapping[int, float]]:
        """Bucket to its score after each number of trained buckets, 0 for the untrained model."""
        matrix, found = self.matrix.to_frame(), {}
        for key, lines in matrix.dropna().groupby("tested_on", sort=False):
            found[str(key)] = dict(zip(lines["row"], lines[self.matrix.score.name], strict=True))
        return found

    @cached_property
    def metrics(self) -> Mapping[str, MetricResult]:
        """Every metric of the run's families: value, course, interval, or why it has none."""
        results = self.scores.results
        if self.predictions is None or not self.matrix.score.is_accuracy:
            return results
        metrics = [metric for metric in self.scores.stored.metrics if metric.needs == MATRIX]
        intervals = ImageBootstrap(metrics=metrics).intervals(self.predictions)
        return MetricResults(
            (name, replace(result, interval=intervals.get(name)))
            for name, result in results.items()
        )

    @property
    def predictions(self) -> Predictions | None:
        """The answer for each test image after each row; None where the run kept none."""
        return self.scores.stored.predictions

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """The cells that are evidence, as :meth:`AccuracyMatrix.plot`."""
        return self.record.masked_matrix.plot(title, width=width)

    def to_frame(self) -> DataFrame:
        """The metrics in pandas, a line for each; ``run.matrix.to_frame()`` has the cells."""
        from pandas import DataFrame

        lines = [
            (m.name, m.value, *(m.interval or (nan, nan)), m.higher_is_better, m.reason)
            for m in self.metrics.values()
        ]
        columns = ["metric", "value", "low", "high", "higher_is_better", "reason"]
        return DataFrame(lines, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it; docs/json.md describes the fields."""
        record = self.record
        return {
            "run_id": self.run_id,
            "name": self.name,
            "status": self.status,
            "dataset": {"name": record.dataset.name, "digest": record.dataset.digest},
            "protocol": record.protocol,
            "split": record.split,
            "seed": record.seed,
            "is_complete": record.is_complete,
            "matrix": self.matrix.to_dict(),
            "cost": [None if cost is None else cost.as_json() for cost in self.matrix.costs],
            "metrics": {name: result.to_dict() for name, result in self.metrics.items()},
            "config": dict(self.config),
            "tags": dict(self.tags),
            "links": list(self.links),
        }

    def _repr_html_(self) -> str:
        if (problem := self._problem()) is not None:
            return f"<p>{escape(problem)}</p>"
        listed = self.scores.results.values()
        return run_html(self.name, self.record.masked_matrix, listed, self.links)

    def __str__(self) -> str:
        if (problem := self._problem()) is not None:
            return problem
        return as_text(*run_text(self.record, self.scores.results.values()), "", *self.links)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.run_id}, {self.status})"

    def _problem(self) -> str | None:
        """What is shown of a run without rows, or with damaged ones; None: all can be shown."""
        try:
            self.record  # noqa: B018
        except RecordError as error:
            return one_line(f"{self.name} {self.status}: {error}")
        return None

    @cached_property
    def scores(self) -> Scores:
        """What :attr:`metrics` are made of, as scoring has it."""
        return load_scores(self._client, self._run)
