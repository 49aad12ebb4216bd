"""A comparison as an object: tables for papers, figures, and the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.figures import course_figure
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.tables import (
    comparison_dict,
    latex_table,
    leaders_frame,
    markdown_table,
    metrics_frame,
    verdicts_frame,
)
from clear_mlflow.comparison.terminal_summary import comparison_text
from clear_mlflow.core.version import __version__
from clear_mlflow.report.terminal_tables import as_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class LeftOut:
    """A run that was chosen and is not compared."""

    run_id: str
    run_name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ComparedRuns:
    """Runs side by side, in groups of seeds; :func:`clear_mlflow.compare` gives it.

    A notebook shows the comparison's page, ``print`` its tables.

    Attributes:
        comparison: groups, tests and warnings, as they were computed.
        left_out: runs that were chosen and are not compared, with the reason.
        run_id: of the MLflow run that holds it; None where it was not stored.
        links: lines that say where to look at it.
    """

    comparison: Comparison
    left_out: tuple[LeftOut, ...] = ()
    run_id: str | None = None
    links: tuple[str, ...] = ()

    def leaderboard(self, metrics: str | Sequence[str] | None = None) -> DataFrame:
        """A line for each group, best first: seeds, and the mean of each metric over them.

        Args:
            metrics: by name; the metric that ranks and those named most often when not given.
        """
        return leaders_frame(self.comparison, metrics)

    def verdicts(self) -> DataFrame:
        """A line for each pair: which is better, by how much, interval and p.

        Both are adjusted for all comparisons: they are what to cite.
        """
        return verdicts_frame(self.comparison)

    def to_frame(self) -> DataFrame:
        """A line for each group and metric: mean, std, low, high (95 %, over seeds) and n."""
        return metrics_frame(self.comparison)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it; docs/json.md describes the fields."""
        return {
            **comparison_dict(self.comparison),
            "left_out": [asdict(run) for run in self.left_out],
            "run_id": self.run_id,
            "links": list(self.links),
        }

    def to_latex(self, metrics: str | Sequence[str] | None = None) -> str:
        """The leaderboard as a table of LaTeX's booktabs: mean ± deviation, the best in bold."""
        return latex_table(self.comparison, metrics)

    def to_markdown(self, metrics: str | Sequence[str] | None = None) -> str:
        """The leaderboard in Markdown: mean ± deviation, the best in bold."""
        return markdown_table(self.comparison, metrics)

    def plot(self, metric: str | None = None, *, width: float | None = None) -> Figure:
        """A metric over the buckets, a line for each group: mean over seeds, 95 % interval.

        Args:
            metric: by name; the one that ranks when not given.
            width: in inches, 1.5 at least; 5 when not given. Texts have 8 points at any width.

        Raises:
            ConfigError: the metric is none of the matrix, or the width is too small.
        """
        return course_figure(self.comparison, metric, width=width)

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
        return as_text(*comparison_text(self.comparison), *self.links)

    def __repr__(self) -> str:
        return f"ComparedRuns({len(self.comparison.subjects)} runs)"
