"""The comparison's charts as files for MLflow's artifact view, and as figures for papers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clear_mlflow.comparison.groups import LEVEL
from clear_mlflow.comparison.page.charts import (
    build_cost_plots,
    build_curve_parts,
    build_metric_plots,
)
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.tables import build_titles, list_percent_metrics
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import evaluate_metrics
from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page.line_charts import render_svg
from clear_mlflow.report.pictures import (
    FONT,
    check_width,
    create_figure,
    fit_labels,
    measure_width,
)
from clear_mlflow.statistics import seed_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render_figures(comparison: Comparison) -> Iterator[tuple[str, bytes]]:
    """Yield the page's charts as SVG files, without empty ones."""
    if comparison.metrics:
        yield "metrics.svg", render_svg("dots", list(build_metric_plots(comparison)), columns=3)
    if plots := list(build_cost_plots(comparison)):
        yield "cost.svg", render_svg("costs", plots, columns=1)
    for number, part in enumerate(build_curve_parts(comparison), start=1):
        end = f"_{number}" if len(comparison.conditions) > 1 else ""
        if part["means"]:
            content = render_svg("curves", part["means"], columns=2, legend=part["legend"])
            yield f"curves{end}.svg", content


def plot_history(
    comparison: Comparison, metric: str | None = None, *, width: float | None = None
) -> Figure:
    """Plot a metric over the buckets, one line per group.

    Runs that diverged or were trained on fewer buckets than others are left out.

    metric: name of a metric of the matrix, or None for the metric of the ranking. width: in inches,
    or None for 5. Raises ConfigError if the metric is not computed from the matrix, or the width is
    below 1.5.
    """
    from matplotlib.ticker import MaxNLocator

    name = metric or comparison.ranked_by or ""
    chosen = [m for m in comparison.definitions if m.name == name]
    if not chosen:
        raise ConfigError(
            f"metric is {safe_repr(name)}; expected one of "
            f"{', '.join(m.name for m in comparison.definitions)}"
        )
    wide = 5.0 if width is None else width
    check_width(wide, 1.5)
    groups, scale = comparison.groups, 100 if name in list_percent_metrics(comparison) else 1
    curves = []
    for group in groups:
        histories = [
            evaluate_metrics(chosen, m.record.matrix, m.record.dataset.protocol)[name].series
            for m in group.results
        ]
        steps = sorted({step for history in histories for step in history})
        summaries = [
            seed_summary([scale * h[step] for h in histories if step in h], level=LEVEL)
            for step in steps
        ]
        curves.append((steps, [s.mean for s in summaries], [s.interval for s in summaries]))
    drawn_means = [mean for _, means, _ in curves for mean in means]
    intervals = [interval for *_, ends in curves for interval in ends if interval is not None]
    low_y, high_y = find_y_limits(drawn_means, [*intervals, *((m, m) for m in drawn_means)])

    labels = fit_labels([group.name for group in groups], 8, wide - 0.5, 40)
    if intervals:
        is_cut = any(low < low_y or high > high_y for low, high in intervals)
        band = f"{100 * LEVEL:g} % CI of the mean{', cut off at the axis' if is_cut else ''}"
        labels += fit_labels([band], 8, wide - 0.5, 40)
    widths = np.array([measure_width(label, 8) for label in labels])
    # The legend's columns, each with 0.54 inches for its lines and the space between columns.
    taken = {n: sum(c.max(initial=0) + 0.54 for c in np.array_split(widths, n)) for n in (2, 3)}
    columns = max((n for n in taken if taken[n] <= wide), default=1)
    (label_y,) = fit_labels([build_titles(comparison, [name])[name]], 8, math.inf, 40)
    height = max(0.5 * wide, measure_width(label_y, 8) + 0.55)
    figure = create_figure(wide, height + 0.185 * math.ceil(len(labels) / columns) + 0.1)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for position, (steps, means, ends) in enumerate(curves):
        colour = GROUPS[position % len(GROUPS)]
        line = ("-", "--", ":")[position // len(GROUPS) % 3]
        # Without the space, matplotlib leaves out a label that begins with an underscore.
        label = re.sub("^_", " _", labels[position].replace("$", r"\$"))
        marker = "os^Dv"[position % 5]
        axes.plot(steps, means, line, color=colour, marker=marker, ms=3, label=label)
        low, high = ([e[i] if e else m for e, m in zip(ends, means, strict=True)] for i in (0, 1))
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    if intervals:
        axes.fill_between([], [], [], color="black", alpha=0.15, linewidth=0, label=labels[-1])
    axes.set_ylim(low_y, high_y)
    font: dict[str, Any] = {"fontsize": 8, "fontfamily": FONT}
    axes.set_xlabel("buckets trained", **font)
    axes.set_ylabel(label_y.replace("$", r"\$"), **font)
    axes.tick_params(labelsize=8, labelfontfamily=FONT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    where: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
    figure.legend(frameon=False, prop={"family": FONT, "size": 8}, **where)
    return figure


def find_y_limits(
    means: Sequence[float], intervals: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return a y-range that shows all means, and cuts wide intervals.

    Returns (0, 1) without means.

    >>> find_y_limits([0.5, 0.6], [(0.49, 0.51), (-3.0, 4.2)])
    (0.44, 0.66)
    """
    if not means:
        return 0.0, 1.0
    lowest, highest = min(means), max(means)
    room = max(0.5 * (highest - lowest), 0.005 * abs(highest), 1e-9)
    low = max(lowest - room, min(low for low, _ in intervals))
    high = min(highest + room, max(high for _, high in intervals))
    margin = 0.05 * (high - low) or room
    return round(low - margin, 12), round(high + margin, 12)
