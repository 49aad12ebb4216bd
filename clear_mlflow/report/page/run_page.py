"""One run as a page: its matrix down to each class, its metrics, its curves, where it is from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.matrix import TEST, whole_grid
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import one_line
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import (
    DEFAULT_TITLES,
    METRICS,
    WITHIN_BUCKET_METRICS,
    MetricResult,
    MetricResults,
    Predictions,
    adapt_metrics,
)
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
    classes_map,
    matrix_map,
    short_key,
    shown_rows,
    spread_positions,
)

_PAGE = "clear_mlflow.report.page/run"
# Raised when the page changes, so that stored ones are written again.
PAGE_VERSION = 2
_DIGITS = 6  # of the fractions that the script reads


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What the page of a run shows; a run with some of its rows has one, too. Texts may be any."""

    name: str
    run_id: str
    record: Record
    results: MetricResults
    predictions: Predictions | None = None  # None: not kept, or not read
    without_predictions: str = ""  # a sentence on why there are none
    configuration: Mapping[str, str] = field(default_factory=dict)  # parameters as used
    requested: Mapping[str, str] = field(default_factory=dict)  # requested values that differ
    dataset: Mapping[str, str] = field(default_factory=dict)  # more than its rows say
    num_train: Mapping[str, int] = field(default_factory=dict)  # images of each bucket
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()  # what a reader has to know first
    tests: AnytimeMatrix | None = None  # inside its buckets; None: none, or not read


def load_run_page() -> None:
    """Read the files that pages are made of; what becomes of the package then does not matter."""
    load(_PAGE)


def run_page(report: RunReport, *, over: str | None = None, **more: Any) -> str:
    """The whole page; *over* is a template that extends it, *more* what that one names."""
    record, score = report.record, report.record.matrix.score
    keys, counts = record.matrix.buckets, record.matrix.num_instances
    grid = whole_grid(record.masked_matrix)
    rows, columns = shown_rows(grid), spread_positions(len(keys))
    scale = scale_over(score, [grid])
    answers, answers_about = _answers(report.predictions)
    families, inside, others = _metrics(report)
    return rendered(
        _PAGE,
        over=over,
        report=report,
        title=one_line(report.name, 160),
        subtitle=_subtitle(report),
        warnings=_warnings(report),
        footer=f"Run {one_line(report.run_id, 80)}, from its stored rows, by clear_mlflow "
        f"{__version__}.",
        map=matrix_map(grid, keys, scale=scale),
        score=score,
        ends=scale.ends,
        matrix_about=_matrix_about(report, scale.about),
        without_predictions=report.without_predictions if answers is None else "",
        answers_about=answers_about,
        families=families,
        inside_metrics=inside,
        others=others,
        curves=_curves(grid, keys, columns, record.times, score),
        across="the dates of the buckets, true to scale" if record.times else "buckets trained on",
        inside=None if report.tests is None else inside_charts(report.tests),
        dataset=_dataset(report),
        classes=None if report.predictions is None else classes_map(report.predictions.images),
        instances="Images" if score.is_accuracy else "Instances",
        buckets=[
            (keys[j], report.num_train.get(keys[j]), None if counts is None else int(counts[j]))
            for j in columns
        ],
        data={
            "rows": rows,
            "columns": columns,
            "keys": [short_key(key) for key in keys],
            "cells": [[_rounded(grid[i, j], score) for j in columns] for i in rows],
            "means": [_mean(grid[i], score) for i in rows],
            "accuracy": score.is_accuracy,
            "unit": score.unit,
            "images": None if counts is None else counts.tolist(),
            "what": _measured_on(record),
            "streaming": record.protocol == "streaming",
            "answers": answers,
            # The row that is looked at first: the last one with a measured cell.
            "start": max(np.flatnonzero(~np.isnan(grid).all(axis=1)).tolist(), default=None),
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
    if missing := record.missing:
        more = f" and {len(missing) - 20} more" if missing[20:] else ""
        found.append(f"Rows that are not stored: {', '.join(map(str, missing[:20]))}{more}.")
    if record.split != TEST:
        found.append(f"Measured on {record.split} images: to choose by, not to report.")
    if record.protocol == "streaming":
        found.append(
            "Protocol streaming: a bucket is tested on its own training images, so cells of "
            "buckets trained on are no evidence and are not shown."
        )
    return found


def _matrix_about(report: RunReport, colours: str) -> str:
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
    return f"{about} {colours}".rstrip()


def _answers(predictions: Predictions | None) -> tuple[dict[str, Any] | None, str]:
    """The predictions as the page holds them, and a sentence on what it does not hold."""
    if predictions is None:
        return None, ""
    if len(predictions.images.class_names) > MOST_CLASSES:
        return None, f"Of more than {MOST_CLASSES} classes, no table of classes is shown."
    packed = packed_answers(predictions)
    held, there = len(packed["rows"]), len(predictions.rows)
    if held == there:
        return packed, ""
    return packed, (
        f"The page has room for the predictions of {held} of {there} rows, the last ones; all are "
        "in the artifacts in predictions."
    )


def _metrics(
    report: RunReport,
) -> tuple[dict[str, list[MetricResult]], list[MetricResult], list[MetricResult]]:
    """The families of tiles, whole, the tiles of tests inside buckets, and all other metrics."""
    results, score = report.results, report.record.matrix.score
    families: dict[str, list[MetricResult]] = {title: [] for title in DEFAULT_TITLES.values()}
    for metric in adapt_metrics(METRICS, score):
        absent = MetricResult(
            name=metric.name,
            value=None,
            reason="not computed",
            higher_is_better=metric.higher_is_better is not False,
            meaning=metric.meaning,
            score=score,
        )
        families[DEFAULT_TITLES[metric.family]].append(results.get(metric.name, absent))
    inside = [
        results[metric.name]
        for metric in WITHIN_BUCKET_METRICS
        if report.tests is not None
        and metric.name in results
        and results[metric.name].value is not None
    ]
    tiles = {line.name for of_family in [inside, *families.values()] for line in of_family}
    return families, inside, [line for line in results.values() if line.name not in tiles]


def _curves(
    grid: NDArray[np.float64],
    keys: Sequence[str],
    shown: Sequence[int],
    times: Sequence[date],
    score: Score,
) -> dict[str, Any] | None:
    last = len(keys)

    def line(colour: int, name: str, values: Iterable[float]) -> Line:
        points = [
            LinePoint(k, float(value), f"{name}, after {k}: {score.cell(value)}{score.unit}")
            for k, value in enumerate(values)
            if not math.isnan(value)
        ]
        return Line(colour, points)

    named = {
        "the buckets trained on so far": [past_mean(grid, k) for k in range(last + 1)],
        "the bucket just trained on": [math.nan, *np.diag(grid[1:])],
        "the buckets still to come": [future_mean(grid, k) for k in range(last + 1)],
    }
    means = [line(i, name, values) for i, (name, values) in enumerate(named.items())]
    means = [found for found in means if found.points]
    if not means:
        return None
    titles = [f"Bucket {short_key(keys[j])}" for j in shown]
    buckets = [line(0, title, grid[:, j]) for title, j in zip(titles, shown, strict=True)]
    axis, of_means = axis_over(buckets, score), axis_over(means, score)
    chart = partial(line_chart, last=last, times=times)
    return {
        "about": of_means.about,
        "legend": [
            {"colour": found.colour, "dash": 0, "name": [*named][found.colour]} for found in means
        ],
        "mean": chart(f"Mean {score.name} on", means, size=(720, 300), axis=of_means, dots=True),
        "buckets": [
            chart(title, [found], size=(240, 165), axis=axis, dots=False)
            for title, found in zip(titles, buckets, strict=True)
            if found.points
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
