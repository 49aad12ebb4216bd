"""Write a comparison as JSON, CSV, Markdown, LaTeX, data frames, and an MLflow description."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from textwrap import wrap
from typing import Any
from urllib.parse import quote

from pandas import DataFrame

from clear_mlflow.comparison.groups import LEVEL, MAX_NAME, Group
from clear_mlflow.comparison.result import DIFFERENT, Comparison, build_frame
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import NOT_MEASURED, format_count, safe_repr, truncate
from clear_mlflow.metrics import ALL_METRICS, SCRATCH_METRICS, adapt_metrics, format_value
from clear_mlflow.report.exports import disarm_formula
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        # In LaTeX's default font, these are other characters.
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # At the start of a cell, these are arguments of the line break before it.
        **{c: f"{{{c}}}" for c in "[*"},
    }
)
_MAX_RUN_LINKS = 10  # of each group in a description


def build_comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON, without metrics that no seed defines."""
    groups = []
    for index, group in enumerate(comparison.groups):
        metrics = {
            name: {**asdict(summary), "higher_is_better": comparison.is_higher_better(name)}
            for name, summary in group.metrics.items()
        }
        groups.append(
            {
                "name": group.name,
                "labels": dict(group.labels),
                **_get_values(comparison, index),
                "runs": [{"run_id": run.run_id, "run_name": run.name} for run in group.members],
                "diverged": [run.run_id for run in group.diverged],
                "mixed": {name: list(values) for name, values in group.mixed_params.items()},
                "metrics": metrics,
            }
        )
    return {
        "group_by": list(comparison.group_by),
        "rank_by": comparison.ranked_by,
        "score": comparison.score.name,
        "lower_is_better": not comparison.score.higher_is_better,
        "level": LEVEL,
        "groups": groups,
        "verdicts": [pair.to_dict() for pair in comparison.pairs],
        "across": comparison.across and comparison.across.to_dict(),
        "published": [asdict(result) for result in comparison.published],
        "exploratory": comparison.exploratory or None,
        "warnings": list(comparison.warnings),
    }


def build_metrics_frame(comparison: Comparison) -> DataFrame:
    """Return a row for each group and each metric that it defines.

    n is the number of seeds that define the metric.
    """
    rows = []
    for index, group in enumerate(comparison.groups):
        labels, values = group.labels.values(), _get_values(comparison, index).values()
        for metric in comparison.metrics:
            if (summary := group.metrics.get(metric)) is None:
                continue
            std = nan if summary.std is None else summary.std
            numbers = summary.mean, std, *(summary.interval or (nan, nan)), summary.n
            rows.append(dict(enumerate((group.name, *labels, metric, *numbers, *values))))
    names = ["group", *comparison.group_by, "metric", "mean", "std", "low", "high", "n"]
    # Labels may have the same name as another column.
    names += comparison.columns
    return build_frame(rows).set_axis(names if rows else [], axis="columns")


def build_leaderboard_frame(
    comparison: Comparison, metrics: str | Sequence[str] | None = None
) -> DataFrame:
    """Return a row for each group, best first: means of metrics.

    A metric that some seeds do not define has a second column, with the number of seeds that do.

    metrics: names, or None for the headline metrics. Raises ConfigError if no run defines one.
    """
    names = _choose_metrics(comparison, metrics)
    partial_names = {n for n in names if any(g.format_partial_seeds(n) for g in comparison.groups)}
    rows = []
    for index, group in enumerate(comparison.groups):
        row: dict[str, Any] = {"group": group.name, **_get_values(comparison, index)}
        for name in names:
            summary = group.metrics.get(name)
            row[name] = nan if summary is None else summary.mean
            if name in partial_names:
                row[f"{name} (seeds)"] = 0 if summary is None else summary.n
        rows.append(row)
    return build_frame(rows)


def _get_values(comparison: Comparison, index: int) -> dict[str, Any]:
    """Return a group's values of the columns next to metrics."""
    return {name: pairs[index][0] for name, pairs in comparison.columns.items()}


def build_leader_metrics(comparison: Comparison) -> dict[str, float]:
    """Return the headline metrics of the best group, rounded to 12 digits.

    Returns {} for several test conditions, or if the group lacks the metric of the ranking.
    """
    metrics = comparison.groups[0].metrics
    if len(comparison.conditions) > 1 or comparison.ranked_by not in metrics:
        return {}
    # Without the last digits: 0.918 instead of 0.9179999999999999.
    return {
        name: float(f"{metrics[name].mean:.12g}")
        for name in comparison.headline_metrics
        if name in metrics
    }


def format_leaderboard_json(comparison: Comparison) -> str:
    """Return the leaderboard as MLflow's table artifact, null where undefined."""
    frame = _truncate_cells(build_leaderboard_frame(comparison))
    return str(frame.to_json(orient="split", index=False, double_precision=15))


def format_leaderboard_csv(comparison: Comparison) -> str:
    """Return all groups and metrics as CSV without formulas."""
    frame = _truncate_cells(build_metrics_frame(comparison))
    frame = frame.map(lambda cell: disarm_formula(cell) if isinstance(cell, str) else cell)
    frame.columns = [disarm_formula(name) for name in frame.columns]
    return str(frame.to_csv(index=False, lineterminator="\n", float_format="%.12g"))


def _truncate_cells(frame: DataFrame) -> DataFrame:
    """Cut texts in cells to 200 characters."""
    return frame.map(lambda cell: truncate(cell, 200) if isinstance(cell, str) else cell)


def build_text_columns(
    comparison: Comparison, metrics: Sequence[str], format_cell: Callable[[str, Group], str]
) -> dict[str, list[str]]:
    """Return a leaderboard's cells by column.

    format_cell: returns the text for the name of a metric, and a group.
    """
    columns = {"group": [group.name for group in comparison.groups]}
    columns |= {name: [text for _, text in pairs] for name, pairs in comparison.columns.items()}
    for metric in metrics:
        columns[metric] = [format_cell(metric, group) for group in comparison.groups]
    return columns


def format_latex(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """Return the leaderboard for a paper, with a caption (package booktabs).

    metrics: as in :func:`build_leaderboard_frame`, but by default at most five.
    """
    names = comparison.table_metrics if metrics is None else _choose_metrics(comparison, metrics)
    percent = list_percent_metrics(comparison)

    def format_number(name: str, value: float) -> str:
        if name in percent:
            return f"{round(100 * value, 1) + 0.0:.1f}"  # never -0.0
        return format_value(name, value, comparison.score)

    def format_cell(name: str, group: Group) -> str:
        if (summary := group.metrics.get(name)) is None:
            return "--"
        mean = format_number(name, summary.mean)
        std = rf" \pm {format_number(name, summary.std)}" if summary.std else ""
        is_best, partial_seeds = comparison.is_best(group, name), group.format_partial_seeds(name)
        formula = rf"$\mathbf{{{mean}}}{std}$" if is_best else f"${mean}{std}$"
        return _format_powers(formula) + (f" ({partial_seeds})" if partial_seeds else "")

    columns = build_text_columns(comparison, names, format_cell)
    titles = {name: name.capitalize() for name in columns} | {"group": "Method"}
    arrows = {True: r" $\uparrow$", False: r" $\downarrow$", None: ""}
    for name, title in build_titles(comparison, names).items():
        lines = r" \\ ".join(wrap(title.translate(_LATEX), 16, break_on_hyphens=False))
        titles[name] = rf"\shortstack[r]{{{lines}{arrows[comparison.is_higher_better(name)]}}}"
    table = DataFrame(
        {
            titles[name]: cells if name in names else [cell.translate(_LATEX) for cell in cells]
            for name, cells in columns.items()
        },
        dtype=object,
    )
    caption = (
        r"Mean $\pm$ standard deviation over seeds. Values without $\pm$ have one seed, or are "
        "equal for all seeds."
    )
    if comparison.best and comparison.ranked_by in names:
        caption += f" Bold: significantly better than all others ($p < {1 - LEVEL:.2g}$, adjusted)."
    column_format = f"l{'r' * (len(columns) - 1)}"
    return str(
        table.to_latex(
            index=False, column_format=column_format, caption=caption, label="tab:leaderboard"
        )
    )


def format_difference(comparison: Comparison, difference: float | None) -> str:
    """Return a signed difference, in points if a fraction, or ""."""
    if difference is None:
        return ""
    if comparison.ranked_by in list_percent_metrics(comparison):
        return f"{round(100 * difference, 1) + 0.0:+.1f}"  # never -0.0
    return f"{difference:+.4g}"


def list_percent_metrics(comparison: Comparison) -> set[str]:
    """Return the metrics that papers report in percent: accuracies and their differences."""
    if not comparison.score.is_accuracy:
        return set()
    metrics = (*adapt_metrics(ALL_METRICS, comparison.score), *SCRATCH_METRICS)
    return {metric.name for metric in metrics if not metric.unit}


def _format_powers(formula: str) -> str:
    """Replace numbers such as 3.68e+11 in a formula by powers of ten."""
    return re.sub(r"e([+-]\d+)", lambda m: rf" \times 10^{{{int(m[1])}}}", formula)


def build_titles(comparison: Comparison, names: Sequence[str]) -> dict[str, str]:
    """Return each metric's title with unit, and family if necessary."""
    percent = list_percent_metrics(comparison)
    titles = {}
    for name in names:
        words = name.partition("/")[2] or name
        title = words.replace("_", " ").replace("flops", "FLOPs")
        title = re.sub(r"\b(in|next) domain", r"\1-domain", title)
        titles[name] = title[:1].upper() + title[1:]
    counts = Counter(titles.values())
    return {
        name: title
        + ("" if counts[title] == 1 else f" ({name.partition('/')[0]})")
        + (" (%)" if name in percent else "")
        for name, title in titles.items()
    }


def format_markdown(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """Return the leaderboard in Markdown. metrics: as in :func:`build_leaderboard_frame`."""
    return "\n".join(_format_markdown_rows(comparison, metrics)) + "\n"


def _format_markdown_rows(
    comparison: Comparison, metrics: str | Sequence[str] | None = None
) -> list[str]:
    def format_cell(name: str, group: Group) -> str:
        text = format_mean(group, name, partial(format_value, name, score=comparison.score))
        text = f"**{text}**" if comparison.is_best(group, name) else text
        partial_seeds = group.format_partial_seeds(name)
        return text + (f" ({partial_seeds})" if partial_seeds else "")

    columns = build_text_columns(comparison, _choose_metrics(comparison, metrics), format_cell)
    columns["group"] = [escape(name, MAX_NAME) for name in columns["group"]]
    header, *rows = (
        f"| {' | '.join(row)} |" for row in (columns, *zip(*columns.values(), strict=True))
    )
    return [header, f"|:--|{'--:|' * (len(columns) - 1)}", *rows]


def format_mean(group: Group, metric: str, number: Callable[[float], str], sign: str = "± ") -> str:
    """Return a group's mean and standard deviation, a dash without mean.

    number: formats a number. sign: text before the standard deviation.
    """
    if (summary := group.metrics.get(metric)) is None:
        return NOT_MEASURED
    return number(summary.mean) + (f" {sign}{number(summary.std)}" if summary.std else "")


def _choose_metrics(comparison: Comparison, metrics: str | Sequence[str] | None) -> list[str]:
    if metrics is None:
        return comparison.headline_metrics
    metrics = metrics.split(",") if isinstance(metrics, str) else metrics
    for name in metrics:
        if name not in comparison.metrics:
            raise ConfigError(
                f"metrics names {safe_repr(name)}, which no run defines; there are "
                f"{', '.join(comparison.metrics)}"
            )
    return list(metrics)


def format_description(comparison: Comparison, *, page: str) -> str:
    """Return the description of a comparison run in Markdown, below MLflow's limit.

    It has leaderboard, verdicts and warnings. page: URL of the comparison's page.
    """
    groups = comparison.groups
    runs = format_count(len(comparison.runs), "run")
    heading = f"### {runs} in {format_count(len(groups), 'group')} compared"
    if comparison.is_validation:
        heading += ", on validation images"
    # Differences first, because the end of a long list is truncated.
    pairs = sorted(comparison.pairs, key=lambda pair: pair.outcome != DIFFERENT)
    verdicts = [f"- {escape(pair.sentence, 500)}" for pair in pairs]
    warnings = [f"- {escape(warning, 400)}" for warning in comparison.warnings]
    if comparison.exploratory:
        verdicts.insert(1, f"- {escape(comparison.exploratory, 700)}")
    link = f"[**Everything on one page**]({page})"
    lines = [heading, "", link, "", *_format_leaders(comparison), *verdicts[:1], ""]
    ends = ["runs |", ":--|", *(f"{_format_run_links(group)} |" for group in groups)]
    table = zip(_format_markdown_rows(comparison), ends, strict=True)
    # Up to half of the description is the table; the rest is for verdicts, then for warnings.
    table_rows = [f"{row} {end}" for row, end in table]
    lines = append_lines(
        lines, table_rows, MAX_NOTE_BYTES // 2, "more group", "in `leaderboard.csv`"
    )
    if verdicts[1:]:
        lines = append_lines([*lines, "", ""], verdicts[1:], 6_500, "more verdict", "on the page")
    if warnings:
        lines = [*lines, "", "**Read this first**", ""]
        lines = append_lines(lines, warnings, MAX_NOTE_BYTES, "more warning")
    return "\n".join(lines) + "\n"


def _format_leaders(comparison: Comparison) -> list[str]:
    """Return four groups on one line: MLflow folds descriptions after four."""
    metric = comparison.ranked_by
    if metric is None:
        return []
    number = partial(format_value, metric, score=comparison.score)
    leaders = [
        f"{escape(group.name, MAX_NAME)} **{format_mean(group, metric, number)}**"
        + (f" ({seeds})" if (seeds := group.format_partial_seeds(metric)) else "")
        for group in comparison.groups[:4]
        if metric in group.metrics
    ]
    ellipsis = ", …" if len(comparison.groups) > 4 else ""
    return [f"`{metric}`, mean ± standard deviation: {', '.join(leaders)}{ellipsis}", ""]


def _format_run_links(group: Group) -> str:
    links = []
    for run in group.members[:_MAX_RUN_LINKS]:
        label = "run" if run.seed is None else str(run.seed)
        links.append(f"[{label}](#/runs/{quote(run.run_id, safe='', errors='replace')})")
    return " ".join([*links, *(["…"] if group.members[_MAX_RUN_LINKS:] else [])])
