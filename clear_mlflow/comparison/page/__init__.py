"""The comparison as an HTML page, in the frame of :mod:`clear_mlflow.report.page`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

from clear_mlflow.comparison.groups import LEVEL
from clear_mlflow.comparison.page.charts import (
    MAX_DOTS,
    build_cost_plots,
    build_curve_parts,
    build_matrix_scales,
    build_metric_plots,
    describe_conditions,
    format_interval,
    name_group,
    shorten,
)
from clear_mlflow.comparison.published_results import NOTE
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.tables import format_difference, list_percent_metrics
from clear_mlflow.comparison.wording import describe_assumptions, describe_reason_without_tests
from clear_mlflow.core.text import format_count
from clear_mlflow.metrics import format_value
from clear_mlflow.report.page import render_page
from clear_mlflow.report.page.matrix_map import build_matrix_map

_MAX_CELLS = 12_000  # of all matrices, about 40 bytes each; a page stays below two megabytes


def render_comparison_page(
    comparison: Comparison,
    *,
    title: str,
    footer: str,
    more_seeds: str | None = None,
    chosen: str | None = None,
    run_address: Callable[[str], str] | None = None,
    extension: str | None = None,
    **content: Any,
) -> str:
    """Return the HTML page of a comparison.

    more_seeds, chosen: file names of grids for a sweep that trains more seeds, or tests the chosen
    parameters, or None. run_address: returns the address of a run's page for a run id.
    extension: template that extends the page, or None. content: variables of that template.
    """
    metrics, percent = _sort_metrics(comparison), list_percent_metrics(comparison)
    score = comparison.score
    return render_page(
        "clear_mlflow.comparison.page/page",
        extension=extension,
        title=shorten(title, 160),
        subtitle=_build_subtitle(comparison),
        footer=footer,
        more_seeds=more_seeds,
        chosen=chosen,
        run_address=run_address,
        comparison=comparison,
        warnings=comparison.warnings,
        score=score,
        level=f"{100 * LEVEL:g} %",
        metrics=metrics,
        families=Counter(metric.partition("/")[0] for metric in metrics),
        name_group=partial(name_group, comparison),
        format_count=format_count,
        format_number=partial(format_value, score=score),
        format_interval=partial(format_interval, decimals=3, score=score),
        format_difference=partial(format_difference, comparison),
        across_unit=" in points" if comparison.ranked_by in percent else "",
        tests_note=describe_assumptions(comparison.pairs)
        or describe_reason_without_tests(comparison),
        plots=list(build_metric_plots(comparison)),
        max_dots=MAX_DOTS,
        cost_plots=list(build_cost_plots(comparison)),
        curves=list(build_curve_parts(comparison)),
        published_note=NOTE,
        **_build_matrices(comparison),
        conditions=[*map(describe_conditions, comparison.conditions)],
        **content,
    )


def _build_subtitle(comparison: Comparison) -> str:
    num_runs = format_count(len(comparison.runs), "run")
    labels = " and ".join(shorten(name, 40) for name in comparison.group_by)
    groups = format_count(len(comparison.groups), "group")
    subtitle = f"{num_runs} in {groups} by {labels}" if labels else f"{num_runs}, not grouped"
    if len(comparison.conditions) == 1:
        subtitle += f". {describe_conditions(comparison.conditions[0])}"
    return subtitle


def _sort_metrics(comparison: Comparison) -> list[str]:
    """Return all metrics by family, the family of the ranking first."""
    ranked = comparison.ranked_by
    families = [metric.partition("/")[0] for metric in comparison.metrics]
    first_family = ranked.partition("/")[0] if ranked else None

    def get_order(metric: str) -> tuple[bool, int, bool]:
        family = metric.partition("/")[0]
        return family != first_family, families.index(family), metric != ranked

    return sorted(comparison.metrics, key=get_order)


def _build_matrices(comparison: Comparison) -> dict[str, Any]:
    """Return the template's variables for the first groups' mean matrices."""
    scales = build_matrix_scales(comparison)
    first_scale = scales[comparison.conditions[0]]
    averaged = [group for group in comparison.groups if len(group.members) > 1]
    sentences = ["Cells are means over seeds."] if averaged else []
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in averaged):
        sentences.append(
            "A dotted underline marks cells that some seeds did not measure; the mean is over the "
            "others."
        )
    num_cells = accumulate(group.grid.size for group in comparison.groups)
    num_maps = max(1, sum(total <= _MAX_CELLS for total in num_cells))
    maps = [
        build_matrix_map(
            group.grid,
            group.conditions.buckets,
            seeds=group.seeds_per_cell,
            num_members=len(group.members),
            scale=scales[group.conditions],
        )
        for group in comparison.groups[:num_maps]
    ]
    if len(maps) < len(comparison.groups):
        count = format_count(len(maps), "group is", "groups are")
        sentences.append(f"The first {count} shown, in the order of the leaderboard.")
    ends = first_scale.ends
    if len(scales) > 1 and not comparison.score.is_accuracy:
        sentences.append("Each test set has its own colour scale.")
        ends = ("worst", "best")
    return {
        "ends": ends,
        "matrices_note": " ".join(filter(None, [*sentences, first_scale.note])),
        "maps": maps,
    }
