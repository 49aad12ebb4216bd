"""The comparison as an HTML page, in the frame of :mod:`clear_mlflow.report.page`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.charts import (
    cost_plots,
    curve_parts,
    describe_metric_plots,
    metric_plots,
)
from clear_mlflow.comparison.page.matrices_section import build_matrices
from clear_mlflow.comparison.page.tables import build_leaderboard, build_verdicts
from clear_mlflow.comparison.page.wording import (
    describe_conditions,
    format_count,
    format_interval,
    name_group,
    shorten,
)
from clear_mlflow.metrics import format_value
from clear_mlflow.report.page import render_page


def comparison_page(
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

    more_seeds, chosen: artifacts with grids to continue with, or None. run_address: returns the
    address of a run's page for a run id. extension: template that extends the page, or None.
    content: variables of that template.
    """
    return render_page(
        "clear_mlflow.comparison.page/page",
        extension=extension,
        title=shorten(title, 160),
        subtitle=_build_subtitle(comparison),
        footer=footer,
        more_seeds=more_seeds,
        chosen=chosen,
        run_address=run_address,
        warnings=comparison.warnings,
        groups=comparison.groups,
        num_runs=len(comparison.runs),
        name_group=partial(name_group, comparison),
        format_number=partial(format_value, score=comparison.score),
        format_interval=partial(format_interval, score=comparison.score),
        **build_verdicts(comparison),
        board=build_leaderboard(comparison),
        plots=list(metric_plots(comparison)),
        plots_note=describe_metric_plots(comparison),
        cost_plots=list(cost_plots(comparison)),
        curves=list(curve_parts(comparison)),
        **build_matrices(comparison),
        conditions=[describe_conditions(comparison, i) for i in range(len(comparison.conditions))],
        **content,
    )


def _build_subtitle(comparison: Comparison) -> str:
    num_runs = format_count(len(comparison.runs), "run")
    labels = " and ".join(shorten(name, 40) for name in comparison.group_by)
    groups = format_count(len(comparison.groups), "group")
    subtitle = f"{num_runs} in {groups} by {labels}" if labels else f"{num_runs}, not grouped"
    if len(comparison.conditions) == 1:
        subtitle += f". {describe_conditions(comparison, 0)}"
    return subtitle
