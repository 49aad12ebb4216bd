"""What ``clear_mlflow.train`` gives back: the accuracy matrix, and where all the rest is stored."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from clear_mlflow.api.compare import read_comparison
from clear_mlflow.comparison import Comparison
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.terminal_summary import comparison_text
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import Record
from clear_mlflow.core.version import __version__
from clear_mlflow.report.page.fragment import run_html
from clear_mlflow.report.pictures import heatmap_figure, png
from clear_mlflow.report.terminal_tables import matrix_table, metrics_table
from clear_mlflow.scoring.computed import Scores
from clear_mlflow.store.client import MlflowClient, mlflow_errors
from clear_mlflow.store.search import Selection, select
from clear_mlflow.store.ui_urls import run_links

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 80  # columns of a text


class TrainedRun(AccuracyMatrix):
    """The accuracy matrix of a run that has ended, with its metrics and where it is stored.

    A notebook shows it as a heat map with metrics and links, ``print`` as tables.

    Attributes:
        run_id: of the MLflow run.
        name: of the run.
        metrics: metric name to value; one that is not defined is not there.
        reasons: metric name to why it has no value.
        links: lines that say where to look at the run.
    """

    run_id: str
    name: str
    metrics: Mapping[str, float]
    reasons: Mapping[str, str]
    links: Sequence[str]

    def __init__(
        self, record: Record, scores: Scores, client: MlflowClient, links: Sequence[str]
    ) -> None:
        matrix = record.matrix
        super().__init__(matrix.values, matrix.initial, matrix.num_instances, matrix.buckets)
        for name, value in (
            ("run_id", scores.run_id),
            ("name", scores.run_name),
            ("metrics", scores.summary),
            ("reasons", scores.reasons),
            ("links", tuple(links)),
            ("_evidence", record.evidence),
            ("_lower_is_better", scores.lower_is_better),
            ("_client", client),
        ):
            object.__setattr__(self, name, value)

    _evidence: AccuracyMatrix
    _lower_is_better: frozenset[str]
    _client: MlflowClient

    @classmethod
    def of(cls, client: MlflowClient, scores: Scores) -> TrainedRun:
        """What a training that ended well gives back.

        Raises:
            TrackingError: the store does not answer.
        """
        if scores.record is None:
            raise RuntimeError("training ended well, but its run holds no row")
        with mlflow_errors(f"look at run {scores.run_id}"):
            links = run_links(client, client.get_run(scores.run_id))
        return cls(scores.record, scores, client, links)

    def plot(self) -> Figure:
        """The matrix as a picture of matplotlib, which a notebook shows."""
        figure = heatmap_figure(self._evidence, self.name)
        # Without pyplot, which would touch the user's own pictures, a notebook shows it by this.
        figure._repr_png_ = lambda: png(figure)  # type: ignore[attr-defined]
        return figure

    def compare(self, *others: TrainedRun | str) -> ComparedRuns:
        """Set this run beside others: leaderboard, matrices, and which differences are real.

        Nothing is stored; ``clear-mlflow compare`` keeps a comparison as a run.

        Args:
            others: what other trainings gave back, or ids of runs in the same store.

        Raises:
            ConfigError: there is no other run, or one of them cannot be compared.
            TrackingError: the store does not answer, or lacks one of them.
        """
        ids = [self.run_id, *(o if isinstance(o, str) else o.run_id for o in others)]
        if len(set(ids)) < 2:
            raise ConfigError("one run arrived; a comparison needs another: pass it or its id")
        selection = Selection(run_ids=tuple(ids))
        comparison, left_out, _ = read_comparison(
            self._client, select(self._client, selection), group_by=(), named=True
        )
        if left_out:
            raise ConfigError(f"run {left_out[0].run_id} cannot be compared: {left_out[0].reason}")
        return ComparedRuns(comparison)

    def _repr_html_(self) -> str:
        return run_html(
            self.name,
            self._evidence,
            self.metrics,
            self.reasons,
            self.links,
            lower_is_better=self._lower_is_better,
        )

    def __str__(self) -> str:
        parts = (
            matrix_table(self._evidence),
            metrics_table(self.metrics, self.reasons, lower_is_better=self._lower_is_better),
            "\n".join(self.links),
        )
        return _as_text(parts)

    def __repr__(self) -> str:
        return f"TrainedRun({self.name!r}, {self.run_id}, {self.num_rows} of {self.num_buckets})"


class ComparedRuns:
    """Runs side by side: a notebook shows the comparison's page, ``print`` its tables.

    Args:
        comparison: what is shown.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def page(self) -> str:
        """The page, to be kept as a file."""
        footer = f"clear_mlflow {__version__}"
        return comparison_page(self.comparison, title="Comparison", footer=footer)

    def _repr_html_(self) -> str:
        # In a frame of its own: its style stays there, and so does its script.
        return (
            f'<iframe srcdoc="{html.escape(self.page())}" sandbox="allow-scripts" '
            'style="width:100%;height:720px;border:0" title="Comparison"></iframe>'
        )

    def __str__(self) -> str:
        return _as_text(comparison_text(self.comparison))

    def __repr__(self) -> str:
        return f"ComparedRuns({len(self.comparison.subjects)} runs)"


def _as_text(parts: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, force_terminal=False, color_system=None)
    for part in parts:  # type: ignore[attr-defined]
        if isinstance(part, str):
            out.write(part)
        else:
            console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
