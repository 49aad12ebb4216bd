"""One run as a page: its matrix down to each class, its metrics, its curves, where it is from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.matrix import TEST, whole_grid
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import one_line
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import ALL_METRICS, METRICS, anytime, of_score
from clear_mlflow.metrics.from_predictions import Predictions
from clear_mlflow.report.cell_scale import scale_over
from clear_mlflow.report.page import load, rendered
from clear_mlflow.report.page.answers import MOST_CLASSES, packed_answers
from clear_mlflow.report.page.inside import inside_charts
from clear_mlflow.report.page.line_chart import (
    Line,
    LinePoint,
    axis_over,
    future_mean,
    line_chart,
    past_mean,
)
from clear_mlflow.report.page.matrix_map import (
    MOST_SHOWN,
    matrix_map,
    short_key,
    shown_rows,
    spread_positions,
)
from clear_mlflow.report.score_lines import ScoreLine, score_lines

_PAGE = "clear_mlflow.report.page/run"
# Raised when the page changes, so that stored ones are written again.
PAGE_VERSION = 1
_MOST_FACTS = 200
_LONGEST_FACT = 200
_DIGITS = 6  # of the fractions that the script reads
_FAMILIES = {"clear": "CLEAR", "renate": "Renate"}


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What the page of a run shows; a run with some of its rows has one, too.

    Args:
        name: of the run; any text.
        run_id: of the run.
        record: its rows.
        summary: metric name to value, as from ``summarize``.
        reasons: metric name to reason, as from ``explain``.
        predictions: what it answered; None where they were not kept, or not read.
        without_predictions: why there are none, where there are none; a sentence.
        lower_is_better: names of a user's own metrics of which less is better.
        configuration: parameter to what was used.
        asked: parameter to what was asked for, where that is another text.
        dataset: more of the dataset than its rows say; name to text.
        num_train: bucket to training images.
        environment: what trained it; name to text.
        notes: what a reader has to know first, beside what the rows say.
        tests: its tests inside the buckets; None where there are none, or they were not read.
    """

    name: str
    run_id: str
    record: Record
    summary: Mapping[str, float]
    reasons: Mapping[str, str]
    predictions: Predictions | None = None
    without_predictions: str = ""
    lower_is_better: Set[str] = frozenset()
    configuration: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, str] = field(default_factory=dict)
    num_train: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tests: AnytimeMatrix | None = None

    def stamp(self, rows: str) -> str:
        """A short text that changes with the page, but for predictions and tests inside buckets.

        It is known without reading any: they are stored once, beside their rows, of which *rows* is
        a digest.
        """
        score = self.record.matrix.score
        built_in = {metric.name for metric in of_score(ALL_METRICS, score)}
        content = [
            PAGE_VERSION,
            rows,
            self.name,
            sorted(self.summary.items()),
            sorted(item for item in self.reasons.items() if item[0] in built_in),
            *(
                sorted(facts.items())
                for facts in (
                    self.configuration,
                    self.asked,
                    self.dataset,
                    self.num_train,
                    self.environment,
                )
            ),
            list(self.notes),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def load_run_page() -> None:
    """Read the files that pages are made of; what becomes of the package then does not matter."""
    load(_PAGE)


def run_page(report: RunReport, *, over: str | None = None, **more: Any) -> str:
    """The whole page; the same report gives the same text.

    *over* is a template that extends the page's, *more* what that one names: see
    :func:`~clear_mlflow.report.page.rendered`.
    """
    record, score = report.record, report.record.matrix.score
    keys, counts = record.matrix.buckets, record.matrix.num_instances
    grid = whole_grid(record.evidence)
    scale = scale_over(score, [grid])
    answers = _answers(report.predictions)
    lines = {
        line.name: line
        for line in score_lines(
            report.summary, report.reasons, lower_is_better=report.lower_is_better, score=score
        )
    }
    families = [(label, _family(family, lines, score)) for family, label in _FAMILIES.items()]
    inside = [] if report.tests is None else _tiles([m.name for m in anytime.METRICS], lines)
    inside = [tile for tile in inside if tile["value"]]
    in_tiles = {tile["full"] for tile in [*inside, *(t for _, tiles in families for t in tiles)]}
    return rendered(
        _PAGE,
        over=over,
        title=one_line(report.name, 160),
        subtitle=_subtitle(report),
        warnings=_warnings(report),
        footer=f"Run {one_line(report.run_id, 80)}, from its stored rows, by clear_mlflow "
        f"{__version__}.",
        map=matrix_map(grid, keys, scale=scale),
        score=score,
        ends=scale.ends,
        matrix_about=" ".join(filter(None, [_matrix_about(report), scale.about])),
        without_predictions=report.without_predictions if answers is None else "",
        answers_about=_answers_about(report.predictions, answers),
        families=[{"name": label, "tiles": tiles} for label, tiles in families],
        inside_metrics=inside,
        others=_others([line for line in lines.values() if line.name not in in_tiles]),
        curves=_curves(grid, keys, record.times, score),
        across="the dates of the buckets, true to scale" if record.times else "buckets trained on",
        inside=None if report.tests is None else inside_charts(report.tests),
        configuration=_facts(report.configuration, report.asked),
        dataset=_facts(_dataset(report)),
        instances="Images" if score.is_accuracy else "Instances",
        buckets=_buckets(report),
        has_num_train=bool(report.num_train),
        environment=_facts(report.environment),
        data={
            "rows": shown_rows(grid),
            "columns": spread_positions(len(keys)),
            "keys": [short_key(key) for key in keys],
            "cells": [
                [_rounded(grid[i, j], score) for j in spread_positions(len(keys))]
                for i in shown_rows(grid)
            ],
            "means": [_mean(grid[i], score) for i in shown_rows(grid)],
            "accuracy": score.is_accuracy,
            "unit": score.unit,
            "images": None if counts is None else counts.tolist(),
            "what": _measured_on(record),
            "streaming": record.protocol == "streaming",
            "answers": answers,
            "start": _start(grid),
        },
        **more,
    )


def _rounded(value: float, score: Score) -> float | None:
    if math.isnan(value):
        return None
    return round(float(value), _DIGITS) if score.is_accuracy else float(f"{value:.{_DIGITS}g}")


def _mean(cells: NDArray[np.float64], score: Score) -> tuple[str, int]:
    """Mean over the buckets that were measured, and how many these are."""
    measured = cells[~np.isnan(cells)]
    return (score.cell(float(measured.mean())) if measured.size else ""), measured.size


def _measured_on(record: Record) -> str:
    """What the run was measured on: only of accuracies it is known to be images."""
    return f"{record.split} {'images' if record.matrix.score.is_accuracy else 'data'}"


def _start(grid: NDArray[np.float64]) -> int | None:
    """The row that is looked at first: the last one with a measured cell."""
    measured = np.flatnonzero(~np.isnan(grid).all(axis=1))
    return int(measured[-1]) if measured.size else None


def _subtitle(report: RunReport) -> str:
    record = report.record
    parts = [one_line(record.dataset.name, 80)]
    parts += [
        f"{name} {one_line(report.configuration[name], 60)}"
        for name in ("strategy", "model")
        if name in report.configuration
    ]
    parts.append("no seed" if record.seed is None else f"seed {record.seed}")
    parts.append(f"{record.rows[-1]} of {record.matrix.num_buckets} buckets trained")
    return " · ".join(parts)


def _warnings(report: RunReport) -> list[str]:
    record = report.record
    found = [one_line(note, 400) for note in report.notes]
    if record.missing:
        found.append(f"Rows that are not stored: {_listed(record.missing)}.")
    if record.split != TEST:
        found.append(f"Measured on {record.split} images: to choose by, not to report.")
    if record.protocol == "streaming":
        found.append(
            "Protocol streaming: a bucket is tested on its own training images, so cells of "
            "buckets trained on are no evidence and are not shown."
        )
    return found


def _listed(numbers: Sequence[int]) -> str:
    few = ", ".join(map(str, numbers[:20]))
    return few if len(numbers) <= 20 else f"{few} and {len(numbers) - 20} more"


def _matrix_about(report: RunReport) -> str:
    matrix = report.record.matrix
    about = (
        f"Row: trained through; column: tested on; {report.record.split} {matrix.score.label}. "
        "The diagonal is outlined."
    )
    if matrix.num_buckets >= MOST_SHOWN:
        about += (
            f" {MOST_SHOWN} rows and columns of {matrix.num_buckets} buckets, "
            "spread evenly; all are in the artifact accuracy_matrix/matrix.csv."
        )
    return about


def _answers(predictions: Predictions | None) -> dict[str, Any] | None:
    if predictions is None or len(predictions.images.class_names) > MOST_CLASSES:
        return None
    return packed_answers(predictions)


def _answers_about(predictions: Predictions | None, answers: Mapping[str, Any] | None) -> str:
    """What of the predictions the page does not hold."""
    if predictions is None:
        return ""
    if answers is None:
        return f"Of more than {MOST_CLASSES} classes, no table of classes is shown."
    if len(answers["rows"]) < len(predictions.answers):
        return (
            f"The page has room for the predictions of {len(answers['rows'])} of "
            f"{len(predictions.answers)} rows, the last ones; all are in the artifacts in "
            "predictions."
        )
    return ""


def _family(family: str, lines: Mapping[str, ScoreLine], score: Score) -> list[dict[str, Any]]:
    """The tiles of a family's metrics, those that were not computed among them."""
    of_family = [m for m in of_score(METRICS, score) if m.name.startswith(f"{family}/")]
    missing = {
        m.name: ScoreLine(m.name, None, "not computed", m.meaning, True, m.higher_is_better)
        for m in of_family
    }
    return _tiles([m.name for m in of_family], {**missing, **lines})


def _tiles(names: Sequence[str], lines: Mapping[str, ScoreLine]) -> list[dict[str, Any]]:
    return [
        {
            "name": name.partition("/")[2].replace("_", " "),
            "full": name,
            "value": lines[name].value or "",
            "reason": one_line(lines[name].reason, 200),
            "meaning": one_line(lines[name].meaning, 200),
            "lower": not lines[name].higher_is_better,
        }
        for name in names
        if name in lines
    ]


def _others(lines: Sequence[ScoreLine]) -> list[dict[str, str]]:
    """Metrics beside the tiles: other families, of predictions, a user's own."""
    return [
        {
            "name": one_line(line.name, 80),
            "value": line.text,
            "meaning": line.meaning,
            "reason": one_line(line.reason, 200) if line.value is None else "",
            "better": "" if line.higher_is_better else "lower is better",
        }
        for line in lines
    ]


def _curves(
    grid: NDArray[np.float64], keys: Sequence[str], times: Sequence[date], score: Score
) -> dict[str, Any] | None:
    last = len(keys)

    def line(colour: int, name: str, value: Callable[[int], float]) -> Line:
        values = [(k, value(k)) for k in range(last + 1)]
        return Line(
            colour,
            [
                LinePoint(k, found, f"{name}, after {k}: {score.cell(found)}{score.unit}")
                for k, found in values
                if not math.isnan(found)
            ],
        )

    named = {
        "the buckets trained on so far": lambda k: past_mean(grid, k),
        "the bucket just trained on": lambda k: float(grid[k, k - 1]) if k else math.nan,
        "the buckets still to come": lambda k: future_mean(grid, k),
    }
    means = [line(i, name, value) for i, (name, value) in enumerate(named.items())]
    means = [found for found in means if found.points]
    if not means:
        return None
    of_buckets = []
    for j in spread_positions(last):
        title = f"Bucket {short_key(keys[j])}"
        found = line(0, title, lambda k, j=j: float(grid[k, j]))  # type: ignore[misc]
        if found.points:
            of_buckets.append((title, found))
    axis, of_means = axis_over([found for _, found in of_buckets], score), axis_over(means, score)
    return {
        "about": of_means.about,
        "legend": [
            {"colour": found.colour, "dash": 0, "name": name}
            for i, name in enumerate(named)
            for found in means
            if found.colour == i
        ],
        "mean": line_chart(
            f"Mean {score.name} on",
            means,
            last,
            size=(720, 300),
            axis=of_means,
            dots=True,
            times=times,
        ),
        "buckets": [
            line_chart(title, [found], last, size=(240, 165), axis=axis, dots=False, times=times)
            for title, found in of_buckets
        ],
    }


def _dataset(report: RunReport) -> dict[str, str]:
    record = report.record
    counts = record.matrix.num_instances
    return {
        "name": record.dataset.name,
        "digest": record.dataset.digest,
        "protocol": record.protocol,
        "measured on": _measured_on(record),
        "buckets": str(record.matrix.num_buckets),
        **({} if counts is None else {_measured_on(record): f"{int(counts.sum()):,}"}),
        **report.dataset,
    }


def _facts(
    facts: Mapping[str, str], asked: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    return [
        {
            "name": one_line(name, 60),
            "text": one_line(text, _LONGEST_FACT),
            "asked": one_line((asked or {}).get(name, ""), _LONGEST_FACT),
        }
        for name, text in list(facts.items())[:_MOST_FACTS]
    ]


def _buckets(report: RunReport) -> list[dict[str, str]]:
    matrix = report.record.matrix
    counts = matrix.num_instances
    return [
        {
            "key": one_line(matrix.buckets[j], 40),
            "train": f"{report.num_train[matrix.buckets[j]]:,}"
            if matrix.buckets[j] in report.num_train
            else "",
            "test": "" if counts is None else f"{int(counts[j]):,}",
        }
        for j in spread_positions(matrix.num_buckets)
    ]
