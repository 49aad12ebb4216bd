"""The figures of the page as PNG files, for papers and for MLflow's artifact view.

Drawn without pyplot, as the heat map of a run is: no global state of matplotlib is touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.curves import MOST_CURVES, CurveChart, mean_charts
from clear_mlflow.comparison.inside import inside_groups, over_seeds
from clear_mlflow.comparison.page.matrices_section import (
    change_text,
    gain_shade,
    matrix_scales,
    scale_of,
)
from clear_mlflow.core.text import ending, shortened
from clear_mlflow.report.canvas import FAINT, INK, PLAIN, blank_figure, drawable, ink_on, png
from clear_mlflow.report.colours import DIVERGING, GROUPS
from clear_mlflow.report.heatmap import heatmap_png
from clear_mlflow.report.page.inside_curves import InsideAxis
from clear_mlflow.report.page.line_chart import padded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = "#dddddd"
_EDGE, _BELOW = 0.15, 0.42  # inches right of a panel and below it
_PANEL, _NAMES = 4.4, 1.5  # width of a metric's panel, and of the groups' names in it
_STYLES = ("solid", "dashed", "dotted")
# The leaders: what a person looks at, one picture at a time. The page shows more.
_MOST_DOTS, _MOST_MAPS, _MOST_DIFFERENCES = 12, 8, 3


def figures(comparison: Comparison) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file: metrics, curves, the leading groups' matrices, differences."""
    if comparison.metrics:
        yield "metrics.png", metrics_png(comparison)
    for setting in range(len(comparison.settings)):
        end = f"_{setting + 1}" if len(comparison.settings) > 1 else ""
        content = curves_png(comparison, setting)
        if content is not None:
            yield f"curves{end}.png", content
        content = inside_png(comparison, setting)
        if content is not None:
            yield f"inside{end}.png", content
    scales = matrix_scales(comparison)
    for position, group in enumerate(comparison.groups[:_MOST_MAPS]):
        runs = f", mean of {len(group.members)}" if len(group.members) > 1 else ""
        yield (
            f"matrix_{position + 1:02d}.png",
            heatmap_png(group.matrix, f"{shortened(group.name, 60)}{runs}", scales[group.setting]),
        )
    pairs = [
        (a, b)
        for a in range(len(comparison.groups))
        for b in range(a + 1, len(comparison.groups))
        if comparison.groups[a].setting == comparison.groups[b].setting
        and (a, b) not in comparison.unlike
    ]
    for a, b in pairs[:_MOST_DIFFERENCES]:
        yield f"difference_{a + 1:02d}_{b + 1:02d}.png", difference_png(comparison, a, b)


def metrics_png(comparison: Comparison) -> bytes:
    """Each metric's mean and interval, a panel per metric, a line per group."""
    shown = list(enumerate(comparison.groups))[:_MOST_DOTS]
    columns = min(3, len(comparison.metrics))
    rows = math.ceil(len(comparison.metrics) / columns)
    height = 0.85 + 0.24 * len(shown)
    figure, panels = _grid(rows, columns, _PANEL, height, left=_NAMES, top=0.35)
    for panel, metric in zip(panels, comparison.metrics, strict=False):
        for position, group in shown:
            found = group.metrics.get(metric)
            if found is None:
                continue
            colour = GROUPS[position % len(GROUPS)]
            interval, is_over_images = comparison.interval_of(position, metric)
            if interval is not None:
                style = "dotted" if is_over_images else "solid"
                panel.plot(
                    list(interval), [-position] * 2, color=colour, linewidth=2, linestyle=style
                )
            panel.plot([found.mean], [-position], "o", color=colour, markersize=5)
        panel.set_ylim(-len(shown) + 0.4, 0.6)
        names = [_text(group.name, 18) for _, group in shown]
        panel.set_yticks([-position for position, _ in shown], names)
        panel.locator_params(axis="x", nbins=5)
        lower = "" if comparison.is_higher_better(metric) else "  (lower is better)"
        title = f"{metric}{lower}"
        _finish(panel, title if comparison.score.is_accuracy else "", grid="x")
        if not comparison.score.is_accuracy:  # its name may be long: from above the groups' names
            begin = 0.1 - _NAMES / (_PANEL - _NAMES - _EDGE)
            panel.set_title(_text(title, 52), fontsize=10, loc="left", x=begin, **PLAIN)
    for panel in panels[len(comparison.metrics) :]:
        panel.set_axis_off()
    return png(figure)


def curves_png(comparison: Comparison, setting: int) -> bytes | None:
    """Accuracy on past and on future buckets over the course of training; None: nothing known."""
    groups = [(p, g) for p, g in enumerate(comparison.groups) if g.setting == setting]
    charts = mean_charts(groups[:MOST_CURVES], comparison.level)
    if not charts:
        return None
    figure, panels = _grid(1, len(charts), 5.6, 4.2, left=0.6, top=0.4)
    score = comparison.score
    unit = 100 if score.is_accuracy else 1
    floor, ceiling = (0.0, 1.0) if score.is_accuracy else (-math.inf, math.inf)
    for panel, chart in zip(panels, charts, strict=True):
        limits = (0.0, 100.0) if score.is_accuracy else _limits(chart)
        for curve in chart.curves:
            colour = GROUPS[curve.group % len(GROUPS)]
            points = [(k, s) for k, s in curve.points if limits[0] <= unit * s.mean <= limits[1]]
            panel.plot(
                [k for k, _ in points],
                [unit * s.mean for _, s in points],
                color=colour,
                linestyle=_STYLES[curve.group // len(GROUPS) % len(_STYLES)],
                marker="o",
                markersize=3.5,
                label=_text(comparison.groups[curve.group].name, 40),
            )
            band = [(k, s.interval) for k, s in points if s.interval is not None]
            if len(band) > 1:
                panel.fill_between(
                    [k for k, _ in band],
                    [unit * max(floor, ends.low) for _, ends in band],
                    [unit * min(ceiling, ends.high) for _, ends in band],
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
        panel.set_ylim(*limits)
        panel.set_xlabel("buckets trained on", fontsize=9, color=FAINT, **PLAIN)
        panel.set_ylabel(
            "accuracy, %" if score.is_accuracy else drawable(score.label),
            fontsize=9,
            color=FAINT,
            **PLAIN,
        )
        _finish(panel, chart.title, grid="y")
    legend = panels[0].legend(loc="lower right", fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set(**PLAIN)
    return png(figure)


def inside_png(comparison: Comparison, setting: int) -> bytes | None:
    """Accuracy on what was learned before, and on what is being learned, at all tests.

    None where no run of the setting was tested inside its buckets.
    """
    groups = inside_groups(comparison, setting)
    if not groups:
        return None
    keys = comparison.settings[setting].buckets
    across = InsideAxis([group.course for group in groups], keys)
    figure, panels = _grid(2, 1, 11.0, 3.2, left=0.7, top=0.4)
    for group in groups:
        course = group.course
        style: dict[str, Any] = {
            "color": GROUPS[group.position % len(GROUPS)],
            "linestyle": _STYLES[group.position // len(GROUPS) % len(_STYLES)],
            "linewidth": 1.2,
        }
        for position in filter(course.of_bucket, range(course.num_begun)):
            parts = [(panels[0], course.before(position))] if position else []
            for panel, (at, values) in [*parts, (panels[1], course.on(position))]:
                means, ends = over_seeds(values)
                places = [across.place(course.moments[t]) for t in at]
                name = _text(group.group.name, 40)
                is_first = position == 0
                panel.plot(places, 100 * np.array(means), label=name if is_first else None, **style)
                band = [(x, *of) for x, of in zip(places, ends, strict=True) if of is not None]
                panel.fill_between(
                    [x for x, _, _ in band],
                    [100 * low for _, low, _ in band],
                    [100 * high for _, _, high in band],
                    color=style["color"],
                    alpha=0.15,
                    linewidth=0,
                )
    titles = (
        "Mean accuracy on the buckets before the one in training",
        "Accuracy on the bucket in training",
    )
    for panel, title in zip(panels, titles, strict=True):
        for place, _ in across.marks:
            panel.axvline(place, color=_LINE, linewidth=0.7, zorder=0)
        panel.set_xticks(
            [place for place, _ in across.marks], [_text(k, 6) for _, k in across.marks]
        )
        panel.set_xlim(0, 1)
        panel.set_ylabel("accuracy, %", fontsize=9, color=FAINT, **PLAIN)
        _finish(panel, title, grid="y")
    panels[1].set_xlabel(
        "optimiser steps; a line with a key marks the end of a bucket",
        fontsize=9,
        color=FAINT,
        **PLAIN,
    )
    legend = panels[1].legend(loc="lower right", fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set(**PLAIN)
    return png(figure)


def difference_png(comparison: Comparison, a: int, b: int) -> bytes:
    """A - B, cell by cell; cells that differ by McNemar's test are framed."""
    from matplotlib.patches import Rectangle

    one, other = comparison.groups[a], comparison.groups[b]
    change = one.grid - other.grid
    size = change.shape[1]
    score = comparison.score
    scale = scale_of(change, score)
    side = min(max(0.5 * size, 2.8), 7.5)
    height = side * (size + 1) / size + 1.1 + _BELOW
    figure, (panel,) = _grid(1, 1, side + 0.8 + _EDGE, height, left=0.8, top=1.1)
    colours = DIVERGING.at(gain_shade(np.nan_to_num(change), scale, score))
    colours[np.isnan(change)] = (0.94, 0.94, 0.94, 1.0)
    panel.imshow(colours, interpolation="nearest", aspect="equal")
    p_values = comparison.cells.get((a, b))
    for i, j in np.argwhere(~np.isnan(change)):
        real = p_values is not None and bool(p_values[i, j] < 1 - comparison.level)
        if size <= 20:
            panel.text(
                j,
                i,
                change_text(float(change[i, j]), score),
                ha="center",
                va="center",
                fontsize=7.5,
                fontweight="bold" if real else "normal",
                color=ink_on(colours[i, j]),
                **PLAIN,
            )
        if real:
            frame = Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, linewidth=1.3)
            frame.set_edgecolor(ink_on(colours[i, j]))
            panel.add_patch(frame)
    keys = [_text(ending(key, 6), 6) for key in one.members[0].record.matrix.buckets]
    panel.set_xticks(range(size), keys)
    panel.set_yticks(range(size + 1), ["initial", *keys])
    panel.xaxis.tick_top()
    _finish(panel, "", grid="")
    what = "percentage points" if score.is_accuracy else f"{score.name}, blue: A is better"
    panel.set_title(
        f"A − B, {what}, ±{scale:g}\nA: {_text(one.name, 40)}\nB: {_text(other.name, 40)}",
        fontsize=9,
        loc="left",
        **PLAIN,
    )
    return png(figure)


def _grid(
    rows: int, columns: int, width: float, height: float, *, left: float, top: float
) -> tuple[Figure, list[Axes]]:
    """Panels, each *width* by *height* inches, with room for names on the left and a title above.

    Laid out by hand: matplotlib's own layout takes twice as long as all the drawing.
    """
    figure = blank_figure(columns * width, rows * height)
    inner_width, inner_height = width - left - _EDGE, height - top - _BELOW
    panels = figure.subplots(
        rows,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": left / (columns * width),
            "right": 1 - _EDGE / (columns * width),
            "top": 1 - top / (rows * height),
            "bottom": _BELOW / (rows * height),
            "wspace": (left + _EDGE) / inner_width,
            "hspace": (top + _BELOW) / inner_height,
        },
    )
    return figure, list(np.ravel(panels))


def _finish(panel: Axes, title: str, *, grid: str) -> None:
    if title:
        panel.set_title(title, fontsize=10, loc="left", **PLAIN)
    for name, spine in panel.spines.items():
        spine.set_visible(bool(grid) and name == "bottom")
        spine.set_color(_LINE)
    panel.tick_params(length=0, labelsize=8, labelcolor=INK)
    for label in (*panel.get_xticklabels(), *panel.get_yticklabels()):
        label.set(**PLAIN)
    if grid:
        panel.grid(axis="x" if grid == "x" else "y", color=_LINE, linewidth=0.7)
        panel.set_axisbelow(True)


def _limits(chart: CurveChart) -> tuple[float, float]:
    """Of all that was measured in training: an untrained model's values may lie far off."""
    points = [point for curve in chart.curves for point in curve.points]
    trained = [summary for k, summary in points if k > 0] or [summary for _, summary in points]
    ends = [end for summary in trained for end in (summary.mean, *(summary.interval or ()))]
    return padded(min(ends), max(ends))


def _text(text: str, limit: int) -> str:
    return drawable(shortened(text, limit))
