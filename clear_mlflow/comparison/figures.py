"""The comparison's pictures as files, for papers and for MLflow's artifact view."""

from __future__ import annotations

from collections.abc import Iterator

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.charts import curve_parts, metric_plots
from clear_mlflow.comparison.page.matrices_section import matrix_scales
from clear_mlflow.core.text import shortened
from clear_mlflow.report.page.picture import svg_picture
from clear_mlflow.report.pictures import heatmap_png

_MOST_MAPS = 8  # the leaders: what a person looks at, one picture at a time; the page shows more


def figures(comparison: Comparison) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file: the page's charts as SVG, the leading matrices as PNG."""
    if comparison.metrics:
        yield "metrics.svg", svg_picture("dots", list(metric_plots(comparison)), columns=3)
    for setting, part in enumerate(curve_parts(comparison), start=1):
        end = f"_{setting}" if len(comparison.settings) > 1 else ""
        if part["means"]:
            content = svg_picture("curves", part["means"], columns=2, legend=part["legend"])
            yield f"curves{end}.svg", content
    scales = matrix_scales(comparison)
    for position, group in enumerate(comparison.groups[:_MOST_MAPS], start=1):
        runs = f", mean of {len(group.members)}" if len(group.members) > 1 else ""
        title = f"{shortened(group.name, 60)}{runs}"
        yield f"matrix_{position:02d}.png", heatmap_png(group.matrix, title, scales[group.setting])
