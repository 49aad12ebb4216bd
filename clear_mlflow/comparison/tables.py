"""The comparison for programs and papers: as JSON, in pandas, and as a table to be typeset."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from typing import TYPE_CHECKING, Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import seeds_text
from clear_mlflow.comparison.verdicts import Verdict
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.metrics import format_value
from clear_mlflow.report.exports import csv_text, disarm_formula
from clear_mlflow.report.markdown import escape

if TYPE_CHECKING:
    from pandas import DataFrame

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
    }
)


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """All of it as JSON has it; a metric that no seed of a group defines is not in that group."""
    return {
        "group_by": list(comparison.group_by),
        "rank_by": comparison.ranked_by,
        "score": comparison.score.name,
        "lower_is_better": not comparison.score.higher_is_better,
        "level": comparison.level,
        "groups": [
            {
                "name": group.name,
                "labels": dict(group.labels),
                "seeds": len(group.counted),
                "runs": [{"run_id": m.run_id, "run_name": m.name} for m in group.members],
                "diverged": [run.run_id for run in group.diverged],
                "mixed": {name: list(values) for name, values in group.mixed_params.items()},
                "metrics": {
                    name: {
                        "mean": found.mean,
                        "std": found.std,
                        "interval": None if found.interval is None else list(found.interval),
                        "n": found.n,
                        "higher_is_better": comparison.is_higher_better(name),
                    }
                    for name, found in group.metrics.items()
                },
            }
            for group in comparison.groups
        ],
        "verdicts": [_verdict_dict(comparison, verdict) for verdict in comparison.verdicts],
        "exploratory": comparison.exploratory_text or None,
        "warnings": list(comparison.warnings),
    }


def _verdict_dict(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Interval and p are adjusted for all comparisons: these are to be cited."""
    found: dict[str, Any] = {
        "a": comparison.groups[verdict.a].name,
        "b": comparison.groups[verdict.b].name,
        "metric": verdict.metric,
        "higher_is_better": comparison.is_higher_better(verdict.metric),
        "outcome": verdict.outcome,
        "sentence": verdict.sentence,
        "beside": list(verdict.beside),
        "equivalence": None if verdict.equivalence is None else asdict(verdict.equivalence),
        "hedges_g": verdict.hedges_g,
        "more_seeds": verdict.more_seeds,
    }
    if (test := verdict.test) is not None:
        found |= {
            "difference": test.difference,
            "interval": verdict.adjusted_interval,
            "p": test.adjusted,
            "test": test.method,
            "unit": test.unit,
            "n": [test.n_a, test.n_b],
            "unadjusted": {"interval": list(test.interval), "p": test.p_value},
        }
    return found


def metrics_frame(comparison: Comparison) -> DataFrame:
    """Return a line per group and metric, with the number of seeds that define it."""
    from pandas import DataFrame

    lines = [
        (
            g.name,
            *g.labels.values(),
            name,
            s.mean,
            s.std,
            *(s.interval or (nan, nan)),
            s.n,
            len(g.counted),
        )
        for g in comparison.groups
        for name, s in g.metrics.items()
    ]
    by = list(comparison.groups[0].labels)
    columns = ["group", *by, "metric", "mean", "std", "low", "high", "n", "seeds"]
    return DataFrame(lines, columns=columns)


def leaders_frame(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> DataFrame:
    """Return a line for each group, best first: seeds, and the mean of each metric.

    A metric that some seeds do not define has a second column, with the seeds that define it.
    """
    from pandas import DataFrame

    groups = comparison.groups
    columns: dict[str, list[Any]] = {"group": [group.name for group in groups]}
    columns["seeds"] = [len(group.counted) for group in groups]
    for name in _columns(comparison, metrics):
        summaries = [group.metrics.get(name) for group in groups]
        columns[name] = [summary and summary.mean for summary in summaries]
        if any(group.partial_seeds(name) for group in groups):
            columns[f"{name} (seeds)"] = [summary.n if summary else 0 for summary in summaries]
    return DataFrame(columns)


def leader_numbers(comparison: Comparison) -> dict[str, float]:
    """The leader's means of the metrics named most often; none where there are several settings."""
    leader = comparison.groups[0].metrics
    if len(comparison.settings) > 1 or comparison.ranked_by not in leader:
        return {}
    return {n: _digits(leader[n].mean) for n in comparison.headline_metrics if n in leader}


def leaderboard_json(comparison: Comparison) -> str:
    """:func:`leaders_frame` as MLflow's table artifact."""
    frame = leaders_frame(comparison)
    return json.dumps({"columns": [*frame.columns], "data": [*_plain_lines(frame)]})


def leaderboard_csv(comparison: Comparison) -> str:
    """:func:`metrics_frame` for spreadsheets: empty where undefined, no text a formula."""
    frame = metrics_frame(comparison)
    cells = (
        ["" if c is None else disarm_formula(c) if isinstance(c, str) else repr(c) for c in line]
        for line in _plain_lines(frame)
    )
    return csv_text([[*map(disarm_formula, frame.columns)], *cells])


def _plain_lines(frame: DataFrame) -> Iterator[list[str | float | None]]:
    """Cells as files have them: short texts, numbers of 12 digits, None where none is defined."""
    for line in frame.itertuples(index=False):
        texts = (truncate(c, 200) if isinstance(c, str) else c for c in line)
        yield [None if c != c else _digits(c) if isinstance(c, float) else c for c in texts]


def verdicts_frame(comparison: Comparison) -> DataFrame:
    """A line for each pair that was tested, or that has too few seeds to be."""
    from pandas import DataFrame

    columns = ["a", "b", "metric", "outcome", "difference", "low", "high", "p", "test", "sentence"]
    lines = []
    for found in (_verdict_dict(comparison, verdict) for verdict in comparison.verdicts):
        ends = dict(zip(("low", "high"), found.get("interval") or (), strict=False))
        lines.append({**found, **ends})
    return DataFrame(lines, columns=columns)


def latex_table(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """The leaderboard for a paper (package booktabs): mean ± deviation, the best mean in bold."""
    heads, lines = _cells(comparison, metrics)
    rows = [
        [text.translate(_LATEX) for text in (name, seeds)]
        + [
            _powers(rf"$\mathbf{{{mean}}}{spread}$" if best else f"${mean}{spread}$") + seed_count
            if mean
            else "--"
            for mean, spread, seed_count, best in values
        ]
        for name, seeds, values in lines
    ]
    columns = "lr" + "r" * (len(heads) - 2)
    body = [" & ".join(row) + r" \\" for row in ([h.translate(_LATEX) for h in heads], *rows)]
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*begin, *body[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def markdown_table(comparison: Comparison, metrics: str | Sequence[str] | None = None) -> str:
    """The leaderboard in Markdown: mean ± deviation, the best mean in bold."""
    heads, lines = _cells(comparison, metrics)
    text = [f"| {' | '.join(heads)} |", f"|:--|{'--:|' * (len(heads) - 1)}"]
    for name, seeds, values in lines:
        cells = [
            (f"**{mean}**{_plain(spread)}" if best else f"{mean}{_plain(spread)}" or "–")
            + seed_count
            for mean, spread, seed_count, best in values
        ]
        text.append(f"| {' | '.join([escape(name, 60), seeds, *cells])} |")
    return "\n".join(text) + "\n"


def _cells(
    comparison: Comparison, metrics: str | Sequence[str] | None
) -> tuple[list[str], Iterator[tuple[str, str, list[tuple[str, str, str, bool]]]]]:
    """Return heads and rows of values: mean, spread, seeds if partial, True if the best."""
    names = _columns(comparison, metrics)
    several = len(comparison.groups) > 1 and len(comparison.settings) == 1
    best = {}
    for name in names:
        means = [g.metrics[name].mean for g in comparison.groups if name in g.metrics]
        higher = comparison.is_higher_better(name)
        best[name] = None if higher is None else (max if higher else min)(means)

    def lines() -> Iterator[tuple[str, str, list[tuple[str, str, str, bool]]]]:
        for group in comparison.groups:
            values = []
            for name in names:
                found = group.metrics.get(name)
                number = partial(format_value, name, score=comparison.score)
                mean = "" if found is None else number(found.mean)
                std = None if found is None else found.std
                spread = "" if std is None else rf" \pm {number(std)}"
                is_best = several and found is not None and found.mean == best[name]
                seed_count = group.partial_seeds(name)
                values.append((mean, spread, seed_count and f" ({seed_count})", is_best))
            yield group.name, seeds_text(group), values

    return ["group", "seeds", *names], lines()


def _powers(formula: str) -> str:
    """Numbers such as 3.68e+11 as a formula has them."""
    return re.sub(r"e([+-]\d+)", lambda m: rf" \times 10^{{{int(m[1])}}}", formula)


def _plain(spread: str) -> str:
    return spread.replace(r"\pm", "±")


def _digits(value: float) -> float:
    """A number without the last digits, which are rounding: .918 and not .9179999999999999."""
    return float(f"{value:.12g}")


def _columns(comparison: Comparison, metrics: str | Sequence[str] | None) -> list[str]:
    """The metrics of a table: those asked for, else the usual ones."""
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
