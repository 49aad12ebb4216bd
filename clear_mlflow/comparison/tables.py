"""Write a comparison as JSON, CSV, Markdown, LaTeX, data frames, and an MLflow description."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from pandas import DataFrame, Series, concat

from clear_mlflow.comparison.build import GROUP_COLUMNS, Comparison, build_frame
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.wording import DIFFERENT
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import NOT_MEASURED, safe_repr, truncate
from clear_mlflow.metrics import ALL_METRICS, adapt_metrics, format_value
from clear_mlflow.report.exports import disarm_formula, format_csv
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
    }
)
_MAX_RUN_LINKS = 10  # of each group in a description


def build_comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON. A group lacks the metrics that no seed defines."""
    frame = comparison.groups_frame
    groups = []
    for index, group in enumerate(comparison.groups):
        metrics = {}
        for name in group.metrics:
            cell = _convert_missing(frame[name].iloc[index].to_dict())
            metrics[name] = {
                "mean": cell["mean"],
                "std": cell["std"],
                "interval": None if cell["low"] is None else [cell["low"], cell["high"]],
                "n": int(cell["n"]),
                "higher_is_better": comparison.is_higher_better(name),
            }
        groups.append(
            {
                "name": group.name,
                "labels": dict(group.labels),
                **{column.name: column.compute(group) for column in GROUP_COLUMNS},
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
        "level": comparison.level,
        "groups": groups,
        "verdicts": [_build_pair_dict(comparison, pair) for pair in comparison.list_pairs()],
        "exploratory": comparison.exploratory_text or None,
        "warnings": list(comparison.warnings),
    }


def _build_pair_dict(comparison: Comparison, pair: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a compared pair as a JSON object.

    Leaves out the numbers of a test if the pair was not tested. Interval and p are adjusted for all
    comparisons, except in the field "unadjusted".
    """
    fields = {"higher_is_better": comparison.is_higher_better(pair["metric"]), **pair}
    del fields["a_index"], fields["b_index"]
    fields["beside"] = fields.pop("details")
    margin, *equivalence = (
        fields.pop(name)
        for name in ("margin", "equivalence_p", "equivalence_low", "equivalence_high")
    )
    fields["equivalence"] = None
    if margin is not None:
        p_value, *ends = equivalence
        fields["equivalence"] = {"margin": margin, "p_value": p_value, "interval": ends}
    fields["interval"] = [fields.pop("low"), fields.pop("high")]
    fields["n"] = [fields.pop("n_a"), fields.pop("n_b")]
    unadjusted = [fields.pop("unadjusted_low"), fields.pop("unadjusted_high")]
    fields["unadjusted"] = {"interval": unadjusted, "p": fields.pop("unadjusted_p")}
    if pair["p"] is None:
        for name in ("difference", "interval", "p", "test", "unit", "n", "unadjusted"):
            del fields[name]
    return fields


def build_metrics_frame(comparison: Comparison) -> DataFrame:
    """Return a row for each group and metric, n being the seeds in which it is defined."""
    frame = comparison.groups_frame
    parts = []
    for metric in comparison.metrics:
        columns = [
            frame["group", "name"].rename("group"),
            *(frame["label", name].rename(name) for name in comparison.group_by),
            Series(metric, frame.index, name="metric"),
            *(frame[metric, value].rename(value) for value in ("mean", "std", "low", "high", "n")),
            *(frame[column.name, "value"].rename(column.name) for column in GROUP_COLUMNS),
        ]
        # Labels may have the same name as another column.
        parts.append(concat(columns, axis="columns")[frame[metric, "n"] > 0])
    rows: DataFrame = concat(parts) if parts else DataFrame()
    return rows.sort_index(kind="stable").reset_index(drop=True)


def build_leaderboard_frame(
    comparison: Comparison, metrics: str | Sequence[str] | None = None
) -> DataFrame:
    """Return a row for each group, best first, with the mean of each metric.

    A metric that some seeds do not define has a second column, with the number of other seeds.
    """
    frame = comparison.groups_frame
    columns: dict[str, Any] = {"group": frame["group", "name"]}
    columns |= {column.name: frame[column.name, "value"] for column in GROUP_COLUMNS}
    for name in _choose_metrics(comparison, metrics):
        columns[name] = frame[name, "mean"]
        if frame[name, "partial"].any():
            columns[f"{name} (seeds)"] = frame[name, "n"]
    return DataFrame(columns)


def build_pairs_frame(comparison: Comparison) -> DataFrame:
    """Return a row for each pair that was tested, or has too few seeds."""
    pairs = comparison.pairs.drop(columns=["a_index", "b_index"])
    return build_frame(pairs.to_dict("records")).reindex(columns=pairs.columns)


def build_leader_metrics(comparison: Comparison) -> dict[str, float]:
    """Return the headline metrics of the best group, or {} for several test conditions."""
    first = build_leaderboard_frame(comparison, comparison.headline_metrics).iloc[0]
    if len(comparison.conditions) > 1 or comparison.ranked_by not in comparison.groups[0].metrics:
        return {}
    return {n: _round(first[n]) for n in comparison.headline_metrics if first[n] == first[n]}


def format_leaderboard_json(comparison: Comparison) -> str:
    """Return the leaderboard as a table artifact of MLflow."""
    frame = build_leaderboard_frame(comparison)
    return json.dumps({"columns": [*frame.columns], "data": [*_convert_rows(frame)]})


def format_leaderboard_csv(comparison: Comparison) -> str:
    """Return all groups and metrics for spreadsheets, where no cell is read as a formula."""
    frame = build_metrics_frame(comparison)
    cells = (
        ["" if c is None else disarm_formula(c) if isinstance(c, str) else repr(c) for c in row]
        for row in _convert_rows(frame)
    )
    return format_csv([[*map(disarm_formula, frame.columns)], *cells])


def _convert_rows(frame: DataFrame) -> Iterator[list[Any]]:
    """Yield rows for files: truncated strings, numbers of 12 digits, and None for NaN."""
    for row in frame.astype(object).itertuples(index=False):
        cells = (truncate(cell, 200) if isinstance(cell, str) else cell for cell in row)
        yield [
            None if cell != cell else _round(cell) if isinstance(cell, float) else cell
            for cell in cells
        ]


def _convert_missing(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in cell.items()}


def _round(value: float) -> float:
    """Return a number without the last digits: 0.918 instead of 0.9179999999999999."""
    return float(f"{value:.12g}")


def format_latex(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """Return the leaderboard for a paper (package booktabs).

    Mean ± standard deviation, fractions in percent, the best mean in bold. Arrows show whether
    higher or lower values are better.
    """
    frame, names = comparison.groups_frame, _choose_metrics(comparison, metrics)
    percent = set[str]()
    if comparison.score.is_accuracy:
        percent = {m.name for m in adapt_metrics(ALL_METRICS, comparison.score) if not m.unit}
    titles = _build_titles(names)
    header = ["Method", *(column.name.capitalize() for column in GROUP_COLUMNS)]
    columns = [[name.translate(_LATEX) for name in frame["group", "name"]]]
    columns += [
        [text.translate(_LATEX) for text in frame[column.name, "text"]] for column in GROUP_COLUMNS
    ]
    for name in names:
        arrow = {True: r" $\uparrow$", False: r" $\downarrow$", None: ""}
        unit = r" (\%)" if name in percent else ""
        header.append(
            titles[name].translate(_LATEX) + unit + arrow[comparison.is_higher_better(name)]
        )
        number: Callable[[float], str] = partial(format_value, name, score=comparison.score)
        if name in percent:
            number = _format_percent
        columns.append([_format_latex_mean(c, number) for c in frame[name].itertuples()])
    rows = [" & ".join(row) + r" \\" for row in (header, *zip(*columns, strict=True))]
    opening = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
    lines = [
        opening,
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _format_latex_mean(cell: Any, number: Callable[[float], str]) -> str:
    """Format mean and standard deviation of a group in LaTeX, the best mean in bold.

    Adds the number of partial seeds. Returns ``--`` if no seed defines the metric.

    cell: a metric of a group in :attr:`Comparison.groups_frame`. number: formats a number.
    """
    if not cell.n:
        return "--"
    mean = rf"\mathbf{{{number(cell.mean)}}}" if cell.best else number(cell.mean)
    formula = f"${mean}$" if cell.std != cell.std else rf"${mean} \pm {number(cell.std)}$"
    return _format_powers(formula) + (f" ({cell.partial})" if cell.partial else "")


def _format_powers(formula: str) -> str:
    """Replace numbers such as 3.68e+11 in a formula by powers of ten."""
    return re.sub(r"e([+-]\d+)", lambda m: rf" \times 10^{{{int(m[1])}}}", formula)


def _build_titles(names: Sequence[str]) -> dict[str, str]:
    """Return a readable title of each metric, with its family if two have the same title."""
    titles = {}
    for name in names:
        words = name.partition("/")[2] or name
        title = words.replace("_", " ").replace("flops", "FLOPs")
        titles[name] = title[:1].upper() + title[1:]
    counts = Counter(titles.values())
    return {
        name: title if counts[title] == 1 else f"{title} ({name.partition('/')[0]})"
        for name, title in titles.items()
    }


def format_markdown(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """Return the leaderboard in Markdown: mean ± standard deviation, the best mean in bold."""
    return "\n".join(_format_markdown_rows(comparison, metrics)) + "\n"


def _format_markdown_rows(
    comparison: Comparison, metrics: str | Sequence[str] | None = None
) -> list[str]:
    frame, names = comparison.groups_frame, _choose_metrics(comparison, metrics)
    columns = [[escape(name, 60) for name in frame["group", "name"]]]
    columns += [[*frame[column.name, "text"]] for column in GROUP_COLUMNS]
    for name in names:
        number = partial(format_value, name, score=comparison.score)
        cells = []
        for cell in frame[name].itertuples():
            mean = number(cell.mean) if cell.n else "–"
            std = f" ± {number(cell.std)}" if cell.std == cell.std else ""
            format_partial_seeds = f" ({cell.partial})" if cell.partial else ""
            cells.append((f"**{mean}**" if cell.best else mean) + std + format_partial_seeds)
        columns.append(cells)
    header = ["group", *(column.name for column in GROUP_COLUMNS), *names]
    rows = [" | ".join(row) for row in (header, *zip(*columns, strict=True))]
    return [f"| {rows[0]} |", f"|:--|{'--:|' * (len(header) - 1)}", *(f"| {r} |" for r in rows[1:])]


def format_mean(mean: float, std: float, number: Callable[[float], str], sign: str = "± ") -> str:
    """Return a mean with its standard deviation, or a dash if the mean is NaN."""
    if mean != mean:
        return NOT_MEASURED
    return number(mean) + ("" if std != std else f" {sign}{number(std)}")


def _choose_metrics(comparison: Comparison, metrics: str | Sequence[str] | None) -> list[str]:
    """Return requested metrics, or the headline metrics. Raises ConfigError for undefined ones."""
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
    heading = f"### {len(comparison.runs)} runs in {len(groups)} groups compared"
    if comparison.is_validation:
        heading += ", on validation images"
    # Differences first, because the end of a long list is truncated.
    pairs = sorted(comparison.list_pairs(), key=lambda pair: bool(pair["outcome"] != DIFFERENT))
    verdicts = [f"- {escape(pair['sentence'], 500)}" for pair in pairs]
    warnings = [f"- {escape(warning, 400)}" for warning in comparison.warnings]
    if comparison.exploratory_text:
        verdicts.insert(1, f"- {escape(comparison.exploratory_text, 700)}")
    link = f"[**Everything on one page**]({page})"
    lines = [heading, "", link, "", *_format_leaders(comparison), *verdicts[:1], ""]
    ends = ["runs |", ":--|", *(f"{_format_run_links(group)} |" for group in groups)]
    table = zip(_format_markdown_rows(comparison), ends, strict=True)
    # Up to half of the description is the table; the rest is for verdicts, then for warnings.
    table_rows = [f"{row} {end}" for row, end in table]
    lines = append_lines(lines, table_rows, MAX_NOTE_BYTES // 2, "more groups in `leaderboard.csv`")
    if verdicts[1:]:
        lines = append_lines([*lines, "", ""], verdicts[1:], 6_500, "more verdicts on the page")
    if warnings:
        lines = [*lines, "", "**Read this first**", ""]
        lines = append_lines(lines, warnings, MAX_NOTE_BYTES, "more warnings")
    return "\n".join(lines) + "\n"


def _format_leaders(comparison: Comparison) -> list[str]:
    """Return the best groups on one line, because MLflow folds descriptions after four lines."""
    metric = comparison.ranked_by
    if metric is None:
        return []
    number = partial(format_value, metric, score=comparison.score)
    cells = zip(comparison.groups[:4], comparison.groups_frame[metric].itertuples(), strict=False)
    leaders = [
        f"{escape(group.name, 40)} **{format_mean(cell.mean, cell.std, number)}**"
        + (f" ({cell.partial})" if cell.partial else "")
        for group, cell in cells
        if cell.n
    ]
    ellipsis = ", …" if len(comparison.groups) > 4 else ""
    return [f"`{metric}`, mean ± standard deviation: {', '.join(leaders)}{ellipsis}", ""]


def _format_run_links(group: Group) -> str:
    """Return a link to each run of a group, labelled by its seed."""
    links = []
    for run in group.members[:_MAX_RUN_LINKS]:
        label = "run" if run.seed is None else str(run.seed)
        links.append(f"[{label}](#/runs/{quote(run.run_id, safe='', errors='replace')})")
    return " ".join([*links, *(["…"] if group.members[_MAX_RUN_LINKS:] else [])])
