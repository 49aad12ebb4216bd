"""What a run shows in a terminal, in a notebook and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import nan
from typing import TYPE_CHECKING, Protocol

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import Record
from clear_mlflow.metrics import MetricResult, MetricResults
from clear_mlflow.report.terminal_tables import render_run, render_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class DisplayedRun(Protocol):
    """A run with an accuracy matrix, shown by notebooks and ``print``.

    Subclasses have these attributes and :meth:`_describe_problem`.
    """

    name: str  # of the MLflow run
    links: tuple[str, ...]  # lines of text: how to open the run in MLflow
    record: Record  # rows, dataset and seed; an error is raised without rows
    _results: MetricResults

    @property
    def matrix(self) -> AccuracyMatrix:
        """The accuracy matrix. Raises the errors of ``record``."""
        return self.record.matrix

    @property
    def metrics(self) -> Mapping[str, MetricResult]:
        """All metrics by name: value, history, and why one is undefined."""
        return self._results

    @property
    def curves(self) -> Mapping[str, Mapping[int, float]]:
        """The score on each bucket, by the number of trained buckets.

        Cells that were not measured are left out. The number 0 is the untrained model.
        """
        cells, score = self.matrix.to_frame().dropna(), self.matrix.score.name
        return {
            str(key): dict(zip(group["row"], group[score], strict=True))
            for key, group in cells.groupby("tested_on", sort=False)
        }

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """Plot the matrix as a heat map, without excluded cells.

        See :meth:`AccuracyMatrix.plot`.
        """
        return self.record.masked_matrix.plot(title, width=width)

    def to_frame(self) -> DataFrame:
        """Return the metrics as a data frame. ``run.matrix.to_frame()`` returns the cells.

        Columns: metric, value, low and high (ends of the interval, or NaN), higher_is_better, and
        reason, for which a value is undefined.
        """
        from pandas import DataFrame

        rows = [
            (m.name, m.value, *(m.interval or (nan, nan)), m.higher_is_better, m.reason)
            for m in self.metrics.values()
        ]
        columns = ["metric", "value", "low", "high", "higher_is_better", "reason"]
        return DataFrame(rows, columns=columns)

    def _describe_problem(self) -> str | None:
        """Return a line that replaces the matrix, or None."""

    def _repr_html_(self) -> str:
        from clear_mlflow.report.page.run_page import render_run_html

        if (problem := self._describe_problem()) is not None:
            return f"<p>{escape(problem)}</p>"
        matrix = self.record.masked_matrix
        return render_run_html(self.name, matrix, self._results.values(), self.links)

    def __str__(self) -> str:
        if (problem := self._describe_problem()) is not None:
            return problem
        return render_text(*render_run(self.record, self._results.values()), "", *self.links)
