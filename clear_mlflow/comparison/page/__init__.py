"""The comparison as one HTML page, in the frame that :mod:`clear_mlflow.report.page` gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.charts import curve_parts, metric_plots, plots_about
from clear_mlflow.comparison.page.matrices_section import differences, matrices
from clear_mlflow.comparison.page.tables import leaderboard, verdicts
from clear_mlflow.comparison.page.wording import group_name, many, setting_text, short
from clear_mlflow.report.colours import DIVERGING
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
    """The whole page.

    Args:
        comparison: what is shown.
        title: its heading; any text.
        footer: the program that made it, and when.
        more_seeds: name of the artifact that trains the seeds that are needed; None: none is.
        chosen: name of the artifact that tests what leads each method; None: nothing was chosen.
        run_address: where a run of an id is seen; None: not known.
        over: a template that extends the page's: see :func:`~clear_mlflow.report.page.rendered`.
        more: what that one names.
    """
    return rendered(
        "clear_mlflow.comparison.page/page",
        over=over,
        colours=DIVERGING.css("w", "diverging"),
        title=short(title, 160),
        subtitle=_subtitle(comparison),
        footer=footer,
        more_seeds=more_seeds,
        chosen=chosen,
        warnings=comparison.warnings,
        **verdicts(comparison),
        board=leaderboard(comparison),
        plots=list(metric_plots(comparison)),
        plots_about=plots_about(comparison),
        curves=list(curve_parts(comparison)),
        **matrices(comparison),
        **differences(comparison),
        runs=list(_runs(comparison, run_address)),
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


def _runs(comparison: Comparison, address: Callable[[str], str] | None) -> Iterator[dict[str, str]]:
    for group in comparison.groups:
        for run in group.members:
            record = run.record
            stored = sum(row > 0 for row in record.rows)
            yield {
                "name": short(run.name),
                "group": group_name(comparison, group),
                "seed": "" if record.seed is None else str(record.seed),
                "rows": f"{stored} of {record.matrix.num_buckets}",
                "id": short(run.run_id),
                "address": "" if address is None else address(run.run_id),
            }
