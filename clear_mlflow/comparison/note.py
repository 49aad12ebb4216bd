"""The description of a comparison run: what MLflow's page about it shows first."""

from __future__ import annotations

from functools import partial
from urllib.parse import quote

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group, mean_text
from clear_mlflow.comparison.tables import markdown_table
from clear_mlflow.metrics import format_value
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape

_MOST_LINKED = 10  # runs of one group with a link of their own


def comparison_note(comparison: Comparison, *, page: str) -> str:
    """Leaderboard, verdicts and warnings as Markdown below MLflow's limit; *page* is an address."""
    groups = comparison.groups
    heading = f"### {len(comparison.subjects)} runs in {len(groups)} groups compared"
    if comparison.is_validation:
        heading += ", on validation images"
    # What is real before what is not: a long list is cut off at its end.
    ordered = sorted(comparison.verdicts, key=lambda verdict: verdict.outcome != "different")
    verdicts = [f"- {escape(verdict.sentence, 500)}" for verdict in ordered]
    warnings = [f"- {escape(warning, 400)}" for warning in comparison.warnings]
    # The table gets what it needs first, up to half of the room; then verdicts, then warnings.
    link = f"[**Everything on one page**]({page})"
    if comparison.exploratory:
        verdicts.insert(1, f"- {escape(comparison.exploratory_text, 700)}")
    lines = [heading, "", link, "", *_leaders(comparison), *verdicts[:1], ""]
    lines = append_lines(
        lines, _table(comparison), MAX_NOTE_BYTES // 2, "more groups in `leaderboard.csv`"
    )
    if verdicts[1:]:
        lines = append_lines([*lines, "", ""], verdicts[1:], 6_500, "more verdicts on the page")
    if warnings:
        lines = append_lines(
            [*lines, "", "**Read this first**", ""], warnings, MAX_NOTE_BYTES, "more warnings"
        )
    return "\n".join(lines) + "\n"


def _leaders(comparison: Comparison) -> list[str]:
    """The first groups in one line: MLflow's page folds a description after some four lines."""
    ranked = comparison.ranked_by
    if ranked is None:
        return []
    number = partial(format_value, ranked, score=comparison.score)
    leaders = [
        f"{escape(group.name, 40)} **{mean_text(group.metrics[ranked], number)}**"
        + (f" ({seeds})" if (seeds := group.partial_seeds(ranked)) else "")
        for group in comparison.groups[:4]
        if ranked in group.metrics
    ]
    more = ", …" if len(comparison.groups) > 4 else ""
    return [f"`{ranked}`, mean ± standard deviation: {', '.join(leaders)}{more}", ""]


def _table(comparison: Comparison) -> list[str]:
    lines = markdown_table(comparison).splitlines()
    ends = ["runs |", ":--|", *(f"{_links(group)} |" for group in comparison.groups)]
    return [f"{line} {end}" for line, end in zip(lines, ends, strict=True)]


def _links(group: Group) -> str:
    """A link to each run of a group, by its seed."""
    links = []
    for run in group.members[:_MOST_LINKED]:
        text = "run" if run.record.seed is None else str(run.record.seed)
        links.append(f"[{text}](#/runs/{quote(run.run_id, safe='', errors='replace')})")
    return " ".join([*links, *(["…"] if group.members[_MOST_LINKED:] else [])])
