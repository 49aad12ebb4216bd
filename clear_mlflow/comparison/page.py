"""The comparison as one HTML page that needs nothing but itself.

Names come from outside: autoescape is on, no value is ever marked as safe, and every name is cut to
one line of a bounded length. The only texts that are not escaped are the page's own style and
script, which come with the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison, PairTest, is_higher_better
from clear_mlflow.comparison.colours import DIVERGING, SCALE
from clear_mlflow.comparison.curves import Curve, CurveChart, bucket_charts, mean_charts
from clear_mlflow.comparison.groups import Group
from clear_mlflow.report.rows import ending, percent, printable, shortened
from clear_mlflow.statistics import Interval, SeedSummary

LARGEST_NAME = 80
_LONGEST_KEY = 8
# Groups whose curves can be told apart in one chart, and whose dots fit beside their names.
MOST_CURVES = 8
_MOST_DOTS = 24
# Cells of single runs' matrices: about 40 bytes each, twice.
_MOST_CELLS = 12_000
_COLOURS = 8
_STEPS = (2, 5, 10, 20, 30, 50, 100)  # ends of the scale of differences, percentage points
_WORDS = {"different": "different", "not shown": "not shown", "too few": "too little to say"}
_SIGNS = {"different": "✓", "not shown": "–", "too few": "?"}
_DIGITS = 6  # of the fractions that the script subtracts; shown with three


def comparison_page(comparison: Comparison, *, title: str, footer: str) -> str:
    """The whole page.

    Args:
        comparison: what is shown.
        title: its heading; any text.
        footer: who made it, and when.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_text_of("page.html"))
    page = template.render(
        # Not escaped by the template: see _Own.
        css=_Own(_text_of("page.css") + SCALE.css("v") + DIVERGING.css("w")),
        js=_Own(_text_of("page.js")),
        title=_one_line(title, 160),
        subtitle=_subtitle(comparison),
        footer=footer,
        warnings=comparison.warnings,
        ramp=SCALE.gradient(),
        diverging=DIVERGING.gradient(),
        **_verdicts(comparison),
        board=_board(comparison),
        plots=list(_plots(comparison)),
        plots_about=_plots_about(comparison),
        curves=list(_curve_parts(comparison)),
        **_matrices(comparison),
        **_differences(comparison),
        runs=list(_runs(comparison)),
        settings=[_setting(comparison, i) for i in range(len(comparison.settings))],
    )
    return page.rstrip() + "\n"


class _Own(str):
    """A text of this package's own, which the page takes as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def _text_of(name: str) -> str:
    return files("clear_mlflow.comparison").joinpath(name).read_text(encoding="utf-8")


def _one_line(text: str, limit: int = LARGEST_NAME) -> str:
    return shortened(printable(" ".join(text.split())), limit)


def _subtitle(comparison: Comparison) -> str:
    runs = len(comparison.subjects)
    by = " and ".join(_one_line(name, 40) for name in comparison.group_by)
    told = f"{_many(runs, 'run')} in {_many(len(comparison.groups), 'group')}"
    told += f" by {by}" if by else ", each for itself"
    if len(comparison.settings) == 1:
        told += f". {_setting(comparison, 0)}"
    return told


def _setting(comparison: Comparison, position: int) -> str:
    setting = comparison.settings[position]
    told = f"{_one_line(setting.dataset)}, {_many(len(setting.buckets), 'bucket')}"
    if setting.num_instances is not None:
        told += f", {sum(setting.num_instances):,} test images"
    return f"{told}, protocol {setting.protocol}, digest {_one_line(setting.digest, 24)}"


# Verdicts


def _verdicts(comparison: Comparison) -> dict[str, Any]:
    headline = [test for test in comparison.tests if test.metric == comparison.ranked_by]
    units = {test.unit for test in headline}
    how = {
        frozenset({"seeds"}): "The unit is the seed: permutation tests over seeds.",
        frozenset({"images"}): (
            "The unit is the test image: a paired bootstrap of two trained models; it says nothing "
            "of other seeds."
        ),
    }.get(
        frozenset(units),
        "The unit is the seed where both sides have several, else the test image of two single "
        "models.",
    )
    level = 100 * comparison.level
    how += f" Intervals are of {level:g} %; p is adjusted by Holm over the pairs of one metric."
    return {
        "headline": [_sentence(test) for test in headline],
        "headline_metric": comparison.ranked_by,
        "how": how,
        "nothing_to_test": (
            "There is one group: nothing to test it against."
            if len(comparison.groups) == 1
            else "No two groups could be tested against each other: that needs two seeds or more "
            "on both sides, or stored predictions of one run on each, and the same test set."
        ),
        "others": [
            {
                "a": _one_line(comparison.groups[test.a].name, 40),
                "b": _one_line(comparison.groups[test.b].name, 40),
                "metric": test.metric,
                "difference": _signed(test.difference),
                "interval": _interval(test.interval),
                "p": _p(test.p_value),
                "adjusted": _p(test.adjusted),
                "word": _WORDS[test.outcome],
            }
            for test in comparison.tests
            if test.metric != comparison.ranked_by
        ],
    }


def _sentence(test: PairTest) -> dict[str, Any]:
    return {
        "sign": _SIGNS[test.outcome],
        "real": test.outcome == "different",
        "sentence": test.sentence,
        "pair": f"{test.a}-{test.b}",
    }


# Leaderboard


def _board(comparison: Comparison) -> dict[str, Any]:
    metrics = comparison.metrics
    level = f"{100 * comparison.level:g} %"
    best = _best(comparison)
    columns = [
        {
            "name": metric.split("/", 1)[-1].replace("_", " "),
            "full": metric,
            "first": "descending" if is_higher_better(metric) else "ascending",
            "sorted": metric == comparison.ranked_by and len(comparison.settings) == 1,
        }
        for metric in metrics
    ]
    families = [
        {"name": family, "span": len(list(members))}
        for family, members in groupby(metrics, key=lambda metric: metric.split("/", 1)[0])
    ]
    about = (
        f"Mean over seeds, ± standard deviation, [{level} interval of the mean, Student's t]. "
        "★: the best mean of a column. Empty: not defined. A click on a name sorts."
    )
    rows = []
    for position, group in enumerate(comparison.groups):
        cells = []
        for metric in metrics:
            found = group.metrics.get(metric)
            cells.append(
                {
                    "value": "" if found is None else repr(found.mean),
                    "text": "" if found is None else f"{found.mean:.4f}",
                    "best": position in best.get(metric, ()),
                    "spread": _spread(group, found),
                    "interval": "" if found is None else _interval(found.interval, 3),
                    "sorted": metric == comparison.ranked_by,
                }
            )
        rows.append({"name": _name(comparison, group), "seeds": len(group.counted), "cells": cells})
    return {"about": about, "columns": columns, "families": families, "rows": rows}


def _best(comparison: Comparison) -> dict[str, set[int]]:
    """Metric to the positions of its best groups, one of each setting that has more than one."""
    best: dict[str, set[int]] = {}
    for setting in range(len(comparison.settings)):
        for metric in comparison.metrics:
            means = {
                position: group.metrics[metric].mean
                for position, group in enumerate(comparison.groups)
                if group.setting == setting and metric in group.metrics
            }
            if len(means) > 1:
                top = (max if is_higher_better(metric) else min)(means.values())
                best.setdefault(metric, set()).update(p for p, m in means.items() if m == top)
    return best


def _spread(group: Group, found: SeedSummary | None) -> str:
    if found is None or found.std is None:
        return ""
    of = "" if found.n == len(group.counted) else f" ({found.n} of {len(group.counted)})"
    return f"± {found.std:.4f}{of}"


def _name(comparison: Comparison, group: Group) -> str:
    name = _one_line(group.name)
    if len(comparison.settings) > 1:
        name += f" [{comparison.settings[group.setting].protocol}, test set {group.setting + 1}]"
    return name


# Metrics with intervals


def _plots_about(comparison: Comparison) -> str:
    level = f"{100 * comparison.level:g} %"
    told = f"Dot: mean. Line: {level} interval of the mean over seeds."
    if comparison.image_intervals:
        told += (
            f" Dotted line, at groups of one run: {level} interval over test images, of that one "
            "trained model; other seeds may lie outside of it."
        )
    if len(comparison.groups) > _MOST_DOTS:
        told += f" The first {_MOST_DOTS} groups of the leaderboard."
    return told


def _plots(comparison: Comparison) -> Iterator[dict[str, Any]]:
    shown = list(enumerate(comparison.groups))[:_MOST_DOTS]
    longest = max(len(shortened(_one_line(group.name), 20)) for _, group in shown)
    width, left, right, line = 420, 24 + 6 * longest, 404, 22
    for metric in comparison.metrics:
        found = [
            (position, group, group.metrics[metric], *_reach(comparison, position, group, metric))
            for position, group in shown
            if metric in group.metrics
        ]
        if not found:
            continue
        ends = [e for _, _, s, interval, _ in found for e in (s.mean, *(interval or ()))]
        low, high, ticks = _axis(min(ends), max(ends))

        def at(value: float, low: float = low, high: float = high) -> float:
            return round(left + (right - left) * (value - low) / (high - low), 1)

        dots = []
        for row, (position, group, summary, interval, images) in enumerate(found):
            name = _one_line(group.name)
            told = f"{name}: {summary.mean:.4f}"
            if interval is not None:
                told += f" {_interval(interval)}"
            dots.append(
                {
                    "colour": position % _COLOURS,
                    "name": shortened(name, 20),
                    "title": f"{told}; {'test images' if images else _many(summary.n, 'seed')}",
                    "x": at(summary.mean),
                    "y": 16 + line * row,
                    "low": None if interval is None else at(interval.low),
                    "high": None if interval is None else at(interval.high),
                    "images": images,
                }
            )
        yield {
            "title": metric,
            "lower": not is_higher_better(metric),
            "width": width,
            "left": left,
            "height": 16 + line * len(dots) + 16,
            "ticks": [{"at": at(tick), "text": text} for tick, text in ticks],
            "dots": dots,
        }


def _reach(
    comparison: Comparison, position: int, group: Group, metric: str
) -> tuple[Interval | None, bool]:
    """The interval to draw, and whether it is over test images."""
    over_seeds = group.metrics[metric].interval
    if over_seeds is not None:
        return over_seeds, False
    over_images = comparison.image_intervals.get(position, {}).get(metric)
    return over_images, over_images is not None


def _axis(low: float, high: float) -> tuple[float, float, list[tuple[float, str]]]:
    """Ends a little outside, and three to six round numbers between them."""
    span = max(high - low, 0.01)
    low, high = low - 0.06 * span, high + 0.06 * span
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (step / power == 2.5))
    ticks = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return low, high, [(tick, f"{tick:.{decimals}f}") for tick in ticks]


# Curves


def _curve_parts(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for setting in range(len(comparison.settings)):
        groups = [(p, g) for p, g in enumerate(comparison.groups) if g.setting == setting]
        shown = groups[:MOST_CURVES]
        buckets = bucket_charts(shown, comparison.level)
        about = "Across: buckets trained on. Up: test accuracy in %; mind where the axis begins."
        if any(len(group.members) > 1 for _, group in shown):
            about += f" Band: {100 * comparison.level:g} % interval of the mean over seeds."
        if len(groups) > len(shown):
            about += f" The first {len(shown)} of {len(groups)} groups of the leaderboard."
        yield {
            "setting": _setting(comparison, setting) if len(comparison.settings) > 1 else "",
            "about": about,
            "legend": [
                {
                    "colour": position % _COLOURS,
                    "dash": position // _COLOURS % 3,
                    "name": _one_line(group.name),
                }
                for position, group in shown
            ],
            "means": [
                _chart(chart, comparison, 560, 300, _lowest([chart]), dots=True)
                for chart in mean_charts(shown, comparison.level)
            ],
            "buckets": [
                _chart(chart, comparison, 240, 165, _lowest(buckets), dots=False)
                for chart in buckets
            ],
        }


def _lowest(charts: Sequence[CurveChart]) -> float:
    """Where the axis begins: the quarter below all that is drawn."""
    found = [
        s.mean if s.interval is None else min(s.mean, s.interval.low)
        for chart in charts
        for curve in chart.curves
        for _, s in curve.points
    ]
    return max(0.0, min(0.75, math.floor(4 * min(found)) / 4))


def _chart(
    chart: CurveChart,
    comparison: Comparison,
    width: int,
    height: int,
    lowest: float,
    *,
    dots: bool,
) -> dict[str, Any]:
    left, right, top, bottom = 34, width - 10, 8, height - 22
    group = comparison.groups[chart.curves[0].group]
    last = len(group.grid) - 1

    def x(k: int) -> float:
        return round(left + (right - left) * k / last, 1)

    def y(value: float) -> float:
        share = (min(max(value, lowest), 1.0) - lowest) / (1 - lowest)
        return round(bottom - (bottom - top) * share, 1)

    def drawn(curve: Curve) -> dict[str, Any]:
        name = _one_line(comparison.groups[curve.group].name, 60)
        line = " ".join(f"{x(k)} {y(s.mean)}" for k, s in curve.points)
        spread = [(k, s.interval) for k, s in curve.points if s.interval is not None]
        band = ""
        if len(spread) > 1:
            upper = [f"{x(k)} {y(ends.high)}" for k, ends in spread]
            lower = [f"{x(k)} {y(ends.low)}" for k, ends in reversed(spread)]
            band = f"M{'L'.join([*upper, *lower])}Z"
        return {
            "colour": curve.group % _COLOURS,
            "dash": curve.group // _COLOURS % 3,
            "line": f"M{line}",
            "band": band,
            "dots": [
                {
                    "x": x(k),
                    "y": y(s.mean),
                    "title": f"{name}, after {k}: {_with_spread(s)}",
                }
                for k, s in curve.points
                if dots or len(curve.points) == 1
            ],
        }

    every = max(1, math.ceil(last / (10 if dots else 5)))
    # Steps of a round number, whatever quarter the axis begins at.
    ticks = {0.0: 4, 0.25: 3, 0.5: 5, 0.75: 5}[lowest] if dots else 2
    return {
        "title": _one_line(chart.title),
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "dot": 3.5 if dots else 2.5,
        "across": [{"at": x(k), "text": str(k)} for k in range(0, last + 1, every)],
        "up": [
            {"at": y(lowest + (1 - lowest) * i / ticks), "text": _share(lowest, i / ticks)}
            for i in range(ticks + 1)
        ],
        "curves": [drawn(curve) for curve in chart.curves],
    }


def _share(lowest: float, part: float) -> str:
    return f"{100 * (lowest + (1 - lowest) * part):g}"


def _with_spread(summary: SeedSummary) -> str:
    spread = "" if summary.std is None else f" ± {percent(summary.std)}"
    return f"{percent(summary.mean)} %{spread} ({_many(summary.n, 'seed')})"


# Matrices and their differences


def _matrices(comparison: Comparison) -> dict[str, Any]:
    subjects = comparison.subjects
    cells = sum(subject.grid.size for subject in subjects)
    several = [group for group in comparison.groups if len(group.members) > 1]
    about = "Means over seeds." if several else ""
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in several):
        about += " Dotted underline: not all seeds measured this cell; the mean is over the others."
    maps = [
        _map(
            group.grid,
            group.members[0].record.matrix.buckets,
            title=_name(comparison, group),
            detail=f"mean of {len(group.members)} runs" if len(group.members) > 1 else "one run",
            seeds=group.seeds_per_cell,
            members=len(group.members),
        )
        for group in _few(comparison)
    ]
    if len(maps) < len(comparison.groups):
        about += f" The first {len(maps)} groups of the leaderboard."
    run_maps = []
    if several and cells <= _MOST_CELLS:
        run_maps = [
            _map(
                subject.grid,
                subject.record.matrix.buckets,
                title=_one_line(subject.name),
                detail=_seed_of(subject.record.seed),
            )
            for subject in subjects
        ]
    return {"matrices_about": about.strip(), "maps": maps, "run_maps": run_maps}


def _few(comparison: Comparison) -> list[Group]:
    """As many groups as their matrices fit on a page of two megabytes."""
    found: list[Group] = []
    cells = 0
    for group in comparison.groups:
        cells += group.grid.size
        if found and cells > _MOST_CELLS:
            break
        found.append(group)
    return found


def _map(
    grid: NDArray[np.float64],
    buckets: Sequence[str],
    *,
    title: str,
    detail: str,
    seeds: NDArray[np.int64] | None = None,
    members: int = 1,
) -> dict[str, Any]:
    return {
        "title": title,
        "detail": detail,
        "columns": _columns(buckets),
        "rows": [
            {
                "first": i == 0,
                "label": _row_label(i, buckets),
                "cells": [
                    _cell(
                        float(value),
                        "d" if i == j + 1 else "",
                        members if seeds is None else int(seeds[i, j]),
                        members,
                    )
                    for j, value in enumerate(row)
                ],
            }
            for i, row in enumerate(grid)
            if i > 0 or not np.isnan(row).all()
        ],
    }


def _columns(buckets: Sequence[str]) -> list[dict[str, str]]:
    return [{"short": ending(key, _LONGEST_KEY), "full": printable(key)} for key in buckets]


def _row_label(i: int, buckets: Sequence[str]) -> str:
    return "initial" if i == 0 else f"after {ending(buckets[i - 1], _LONGEST_KEY)}"


def _cell(value: float, diagonal: str, seeds: int, members: int) -> dict[str, str]:
    if math.isnan(value):
        return {"style": "x", "text": "", "title": ""}
    few = "few" if seeds < members else ""
    return {
        "style": " ".join(filter(None, [f"v{round(100 * value)}", diagonal, few])),
        "text": percent(value),
        "title": f"mean of {seeds} of {members} seeds" if few else "",
    }


@dataclass(frozen=True)
class _Item:
    """What may be chosen as A or B."""

    name: str
    setting: int
    grid: NDArray[np.float64]
    is_run: bool


def _items(comparison: Comparison) -> list[_Item]:
    items = [
        _Item(_name(comparison, group), group.setting, group.grid, False)
        for group in comparison.groups
    ]
    if any(len(group.members) > 1 for group in comparison.groups):
        items += [
            _Item(
                f"{_one_line(run.name, 60)} ({_one_line(run.run_id[:8])})",
                group.setting,
                run.grid,
                True,
            )
            for group in comparison.groups
            for run in group.members
        ]
    total = 0
    kept: list[_Item] = []
    for item in items:
        total += item.grid.size
        if kept and total > 2 * _MOST_CELLS:
            break
        kept.append(item)
    return kept


def _differences(comparison: Comparison) -> dict[str, Any]:
    items = _items(comparison)
    alpha = round(1 - comparison.level, 6)
    data: dict[str, Any] = {
        "items": [{"setting": item.setting, "cells": _rounded(item.grid)} for item in items],
        "keys": [
            [ending(key, _LONGEST_KEY) for key in setting.buckets]
            for setting in comparison.settings
        ],
        "marks": {f"{a}-{b}": _rounded(p) for (a, b), p in comparison.cells.items()},
        "unlike": [f"{a}-{b}" for a, b in sorted(comparison.unlike)],
        "scales": list(_STEPS),
        "alpha": alpha,
    }
    first = _first_pair(comparison, items)
    starts = next((i for i, item in enumerate(items) if item.is_run), len(items))
    return {
        "data": data,
        "choices": [{"name": item.name, "runs_begin": i == starts} for i, item in enumerate(items)],
        "choices_have_runs": starts < len(items),
        "first_difference": None
        if first is None
        else _difference(comparison, items, *first, alpha),
    }


def _first_pair(comparison: Comparison, items: Sequence[_Item]) -> tuple[int, int] | None:
    for a, one in enumerate(items):
        for b in range(a + 1, len(items)):
            if one.setting == items[b].setting and (a, b) not in comparison.unlike:
                return a, b
    return None


def _difference(
    comparison: Comparison, items: Sequence[_Item], a: int, b: int, alpha: float
) -> dict[str, Any]:
    """The table that is there without a script; the script draws the same for every other pair."""
    buckets = comparison.settings[items[a].setting].buckets
    change = items[a].grid - items[b].grid
    largest = float(np.nanmax(np.abs(change))) if (~np.isnan(change)).any() else 0.0
    scale = next((step for step in _STEPS if 100 * largest <= step + 1e-9), 100)
    p_values = comparison.cells.get((a, b))
    about = (
        f"A − B in percentage points; colours from −{scale} (B is better) to +{scale} (A is "
        "better)."
    )
    rows = []
    for i, row in enumerate(change):
        if np.isnan(row).all():
            continue
        cells = []
        for j, value in enumerate(row):
            if math.isnan(value):
                cells.append({"style": "x", "text": "", "title": ""})
                continue
            p_value = math.nan if p_values is None else float(p_values[i, j])
            mark = " s" if p_value < alpha else ""
            cells.append(
                {
                    "style": f"w{50 + math.floor(50 * 100 * value / scale + 0.5)}{mark}",
                    "text": _points(float(value)),
                    "title": "" if math.isnan(p_value) else f"adjusted p = {_p(p_value)}",
                }
            )
        rows.append({"first": i == 0, "label": _row_label(i, buckets), "cells": cells})
    return {
        "a": a,
        "b": b,
        "a_name": items[a].name,
        "b_name": items[b].name,
        "pair": f"{a}-{b}",
        "about": about,
        "columns": _columns(buckets),
        "rows": rows,
    }


def _rounded(grid: NDArray[np.float64]) -> list[list[float | None]]:
    return [
        [None if math.isnan(value) else round(value, _DIGITS) for value in row]
        for row in grid.tolist()
    ]


def _points(fraction: float) -> str:
    text = f"{100 * fraction:.1f}"
    return "0.0" if text == "-0.0" else text if fraction < 0 else f"+{text}"


# Runs


def _runs(comparison: Comparison) -> Iterator[dict[str, str]]:
    for group in comparison.groups:
        for run in group.members:
            record = run.record
            stored = sum(row > 0 for row in record.rows)
            yield {
                "name": _one_line(run.name),
                "group": _name(comparison, group),
                "seed": "" if record.seed is None else str(record.seed),
                "rows": f"{stored} of {record.matrix.num_buckets}",
                "id": _one_line(run.run_id),
            }


def _seed_of(seed: int | None) -> str:
    return "no seed" if seed is None else f"seed {seed}"


def _interval(interval: Interval | None, decimals: int = 4) -> str:
    if interval is None:
        return ""
    return f"[{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]"


def _signed(value: float) -> str:
    return f"{value:+.4f}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
