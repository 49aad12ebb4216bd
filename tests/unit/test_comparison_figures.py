"""Figures of comparisons: axes, bands, the Pareto front, and texts that fit."""

import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest
from comparisons import SCORE, compare, compare_costs
from comparisons import build_cost_runs as cost_runs
from comparisons import build_seed_runs as seeds_of

from clear_mlflow.comparison.figures import plot_history, render_figures
from clear_mlflow.comparison.page import charts, render_comparison_page


@pytest.mark.slow
def test_figures_are_pictures():
    comparison = compare([*seeds_of("a$x^<b>", 180, range(2)), *seeds_of("b 🚌", 120, [0])])
    files = dict(render_figures(comparison))
    assert set(files) == {"metrics.svg", "curves.svg"}
    page = render_comparison_page(comparison, title="t", footer="f")
    for content in files.values():
        drawn = ElementTree.fromstring(content)
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert "a$x^<b>" in [part.text for part in drawn.iter()]
        curves = re.findall(r'<(?:path class="(?:line|band|reach)"|circle)[^>]*>', content.decode())
        assert len(curves) > 4
        assert all(curve in page for curve in curves if "h26" not in curve)


def test_costs_and_metrics_without_a_dot_have_no_interval_plots(monkeypatch):
    monkeypatch.setattr(charts, "MAX_DOTS", 1)
    name = "renate/forgetting"
    replay = cost_runs("replay", 180, 1900)  # the leader does not define it
    replay = [replace(r, summary={n: v for n, v in r.summary.items() if n != name}) for r in replay]
    comparison = compare_costs(cost_runs("naive", 120, 1000), replay)
    assert name in comparison.metrics
    titles = [plot["title"] for plot in charts.build_metric_plots(comparison)]
    excluded = {name, *(n for n in comparison.metrics if n.startswith("cost/"))}
    assert titles == [n for n in comparison.metrics if n not in excluded]


@pytest.mark.parametrize("width", [1.5, 3.3, 6.5])
@pytest.mark.parametrize("groups", [2, 3, 12])
def test_a_legend_stays_in_its_figure(groups, width):
    long = ["a long name, " * 9 + letter for letter in "abcdefghi"]
    names = ["from_scratch", "cumulative", "replay, memory 500", *long][:groups]
    runs = [run for k, name in enumerate(names) for run in seeds_of(name, 100 + k, [0])]
    comparison = compare(runs)
    figure = plot_history(comparison, width=width)
    figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == width
    (legend,) = figure.legends
    assert len({text.get_text() for text in legend.get_texts()}) == groups
    wide, high = figure.bbox.size
    for part in (legend, figure.axes[0].yaxis.label, figure.axes[0].xaxis.label):
        box = part.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert (box.x1, box.y1) <= (wide, high)
        assert box.y1 <= high
    assert figure.axes[0].get_window_extent().height > 0.3 * wide


@pytest.mark.parametrize(
    ("seeds", "band"),
    [(1, []), (2, ["95 % CI of the mean, cut off at the axis"]), (6, ["95 % CI of the mean"])],
)
def test_a_papers_figure_names_its_axis_and_its_bands(seeds, band):
    runs = [*seeds_of("_a", 100, range(seeds)), *seeds_of("b", 103, range(seeds))]
    comparison = compare(runs)
    figure = plot_history(comparison)
    assert figure.get_size_inches()[0] == 5
    axes = figure.axes[0]
    assert axes.get_ylabel() == "Challenge score (%)"
    last = axes.lines[0].get_ydata()[-1]
    assert last == pytest.approx(100 * comparison.groups[0].metrics[SCORE].mean)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["b", " _a", *band]


@pytest.mark.slow
def test_the_page_and_its_picture_show_the_pareto_front():
    naive, lwf = cost_runs("naive", 120, 1), cost_runs("lwf", 110, 3)
    both = compare_costs(naive, lwf, cost_runs("replay", 180, 2))
    page = render_comparison_page(both, title="t", footer="f")
    assert 'id="cost"' in page
    pictures = dict(render_figures(both))
    front = re.search('<path class="front" d="(.+?)"', str(pictures["cost.svg"]))
    assert front[1].count("L") == 1
    equal = compare_costs(cost_runs("naive", 120, 1000), cost_runs("replay", 180, 1005))
    assert "cost.svg" not in dict(render_figures(equal))
    without = compare_costs(cost_runs("naive", 120, None), cost_runs("replay", 180, None))
    assert 'id="cost"' not in render_comparison_page(without, title="t", footer="f")
    free = compare_costs(naive, lwf, cost_runs("ncm", 100, 0))
    assert ", without ncm (0 FLOPs)" in str(dict(render_figures(free))["cost.svg"])
    assert "cost.svg" not in dict(render_figures(without))
    assert not [w for w in without.warnings if "cost" in w]


def test_names_of_close_methods_do_not_overlap():
    levels = {"naive": (120, 100), "naive, momentum": (121, 104), "other": (120, 103)}
    near = [cost_runs(name, *level_and_price) for name, level_and_price in levels.items()]
    comparison = compare_costs(*near, cost_runs("far", 180, 900))
    picture = ElementTree.fromstring(dict(render_figures(comparison))["cost.svg"])
    labels = [
        (float(text.get("x")), float(text.get("y")), len(text.text))
        for text in picture.iter("{http://www.w3.org/2000/svg}text")
        if text.text in levels
    ]
    assert len(labels) == 3
    for (x, y, length), (other_x, other_y, other_length) in combinations(labels, 2):
        if x < other_x + 6 * other_length and other_x < x + 6 * length:
            assert abs(y - other_y) >= 10
