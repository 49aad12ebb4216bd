"""The comparison as one HTML page that needs nothing but itself.

Names come from outside: autoescape is on, no value is ever marked as safe, and every name is cut to
one line of a bounded length. The only texts that are not escaped are the page's own style and
script, which come with the package; a content security policy names their hashes, so that a browser
runs no other script and loads nothing, whatever got into the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.charts import curve_parts, metric_plots, plots_about
from clear_mlflow.comparison.page.matrices_section import differences, matrices
from clear_mlflow.comparison.page.tables import across, leaderboard, verdicts
from clear_mlflow.comparison.page.wording import group_name, many, setting_text, short
from clear_mlflow.report.colours import DIVERGING, GROUPS, SCALE


def comparison_page(
    comparison: Comparison,
    *,
    title: str,
    footer: str,
    more_seeds: str | None = None,
    chosen: str | None = None,
) -> str:
    """The whole page.

    Args:
        comparison: what is shown.
        title: its heading; any text.
        footer: who made it, and when.
        more_seeds: name of the artifact that trains the seeds that are needed; None: none is.
        chosen: name of the artifact that tests what leads each method; None: nothing was chosen.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["policy"] = _hash_for_policy
    template = environment.from_string(_text_of("page.html"))
    page = template.render(
        # Not escaped by the template: see _Own.
        css=_Own(
            # First, for the style sheet has others for dark ground.
            ":root{"
            + "".join(f"--g{i}:{colour};" for i, colour in enumerate(GROUPS))
            + "}"
            + _text_of("page.css")
            + SCALE.css("v", "scale")
            + DIVERGING.css("w", "diverging")
        ),
        js=_Own(_text_of("page.js")),
        title=short(title, 160),
        subtitle=_subtitle(comparison),
        footer=footer,
        more_seeds=more_seeds,
        chosen=chosen,
        warnings=comparison.warnings,
        **verdicts(comparison),
        across=across(comparison),
        board=leaderboard(comparison),
        plots=list(metric_plots(comparison)),
        plots_about=plots_about(comparison),
        curves=list(curve_parts(comparison)),
        **matrices(comparison),
        **differences(comparison),
        runs=list(_runs(comparison)),
        settings=[setting_text(comparison, i) for i in range(len(comparison.settings))],
    )
    return page.rstrip() + "\n"


class _Own(str):
    """A text of this package's own, which the page takes as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def _hash_for_policy(own: str) -> str:
    """How a content security policy names the one style, or script, that may be in the page."""
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    return _Own(f"'sha256-{digest}'")


def _text_of(name: str) -> str:
    return files("clear_mlflow.comparison.page").joinpath(name).read_text(encoding="utf-8")


def _subtitle(comparison: Comparison) -> str:
    runs = len(comparison.subjects)
    by = " and ".join(short(name, 40) for name in comparison.group_by)
    subtitle = f"{many(runs, 'run')} in {many(len(comparison.groups), 'group')}"
    subtitle += f" by {by}" if by else ", each for itself"
    if len(comparison.settings) == 1:
        subtitle += f". {setting_text(comparison, 0)}"
    return subtitle


def _runs(comparison: Comparison) -> Iterator[dict[str, str]]:
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
            }
