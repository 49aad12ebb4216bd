"""The comparison as one HTML page, in the frame that :mod:`clear_mlflow.report.page` gives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.charts import cost_plots, curve_parts, metric_plots, plots_about
from clear_mlflow.comparison.page.matrices_section import matrices
from clear_mlflow.comparison.page.tables import leaderboard, verdicts
from clear_mlflow.comparison.page.wording import (
    group_name,
    interval_text,
    many,
    setting_text,
    short,
)
from clear_mlflow.metrics import format_value
from clear_mlflow.report.page import rendered


def comparison_page(
    comparison: Comparison,
    *,
    title: str,
    footer: str,
    more_seeds: str | None = None,
    chosen: str | None = None,
    run_address: Callable[[str], str] | None = None,
    over: str | None = None,
    **more: Any,
) -> str:
    """The whole page; *over* is a template that extends it, *more* what that one names."""
    return rendered(
        "clear_mlflow.comparison.page/page",
        over=over,
        title=short(title, 160),
        subtitle=_subtitle(comparison),
        footer=footer,
        more_seeds=more_seeds,
        chosen=chosen,
        run_address=run_address,
        warnings=comparison.warnings,
        groups=comparison.groups,
        num_runs=len(comparison.subjects),
        named=partial(group_name, comparison),
        number=partial(format_value, score=comparison.score),
        interval=partial(interval_text, score=comparison.score),
        **verdicts(comparison),
        board=leaderboard(comparison),
        plots=list(metric_plots(comparison)),
        plots_about=plots_about(comparison),
        prices=list(cost_plots(comparison)),
        curves=list(curve_parts(comparison)),
        **matrices(comparison),
        settings=[setting_text(comparison, i) for i in range(len(comparison.settings))],
        **more,
    )


def _subtitle(comparison: Comparison) -> str:
    runs = len(comparison.subjects)
    by = " and ".join(short(name, 40) for name in comparison.group_by)
    subtitle = f"{many(runs, 'run')} in {many(len(comparison.groups), 'group')}"
    subtitle += f" by {by}" if by else ", each for itself"
    if len(comparison.settings) == 1:
        subtitle += f". {setting_text(comparison, 0)}"
    return subtitle
