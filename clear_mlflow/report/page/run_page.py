"""A run as a page, and as a part of another page such as a notebook."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.matrix import TEST, AccuracyMatrix, stack_all_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count, one_line
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import (
    DEFAULT_TITLES,
    METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
    MetricResult,
    MetricResults,
    Predictions,
    adapt_metrics,
)
from clear_mlflow.report.colours import build_cell_scale
from clear_mlflow.report.page import load_page, render_fragment, render_page
from clear_mlflow.report.page.line_charts import (
    Line,
    LinePoint,
    build_curves,
    compute_future_means,
    compute_past_means,
)
from clear_mlflow.report.page.matrix_map import (
    MAX_SHOWN,
    build_class_map,
    build_matrix_map,
    choose_rows,
    sample_evenly,
    shorten_key,
)
from clear_mlflow.report.page.within_bucket import build_within_bucket_charts

_PAGE = "clear_mlflow.report.page/run"
# Raised when the page changes, so that stored pages are written again.
PAGE_VERSION = 4
_DIGITS = 6  # of the fractions that the script reads
# Base64 characters of stored predictions: a page stays below two megabytes.
MAX_PREDICTION_CHARACTERS = 1_500_000
MAX_CLASSES = 1000  # of a confusion table that a person can read
_MAX_CLASS_NAME = 60  # characters


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The content of a run's page. All texts may be untrusted."""

    name: str
    run_id: str
    record: Record
    results: MetricResults
    predictions: Predictions | None = None  # None: not stored, or not read
    without_predictions: str = ""  # a sentence with the reason
    configuration: Mapping[str, str] = field(default_factory=dict)  # parameters as used
    requested: Mapping[str, str] = field(default_factory=dict)  # requested values that differ
    dataset: Mapping[str, str] = field(default_factory=dict)  # more than the rows contain
    num_train: Mapping[str, int] = field(default_factory=dict)  # images of each bucket
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()  # warnings at the top of the page
    tests: AnytimeMatrix | None = None  # within buckets; None: none, or not read


def load_run_page() -> None:
    """Read the page's files now, before the installed package may change."""
    load_page(_PAGE)


def render_run_page(report: RunReport, *, extension: str | None = None, **content: Any) -> str:
    """Return the HTML page of a run.

    extension: template that extends the page, or None. content: variables of that template.
    """
    record, score = report.record, report.record.matrix.score
    keys, counts = record.matrix.buckets, record.matrix.num_instances
    grid = stack_all_rows(record.masked_matrix)
    rows, columns = choose_rows(grid), sample_evenly(len(keys))
    scale = build_cell_scale(score, [grid])
    predictions, predictions_note = _pack_predictions(report.predictions)
    tiles = _select_results(adapt_metrics(METRICS, score), report.results)
    within_bucket = None if report.tests is None else build_within_bucket_charts(report.tests)
    within_bucket_results = [
        result
        for result in _select_results(WITHIN_BUCKET_METRICS, report.results)
        if report.tests is not None and result.value is not None
    ]
    on_tiles = {result.name for result in (*tiles, *within_bucket_results)}
    return render_page(
        _PAGE,
        extension=extension,
        report=report,
        title=one_line(report.name, 160),
        subtitle=_build_subtitle(report),
        warnings=_list_warnings(report),
        footer=f"Run {one_line(report.run_id, 80)}, computed from its stored rows by clear_mlflow "
        f"{__version__}.",
        map=build_matrix_map(grid, keys, scale=scale),
        score=score,
        scale=scale,
        max_shown=MAX_SHOWN,
        without_predictions=report.without_predictions if predictions is None else "",
        predictions_note=predictions_note,
        families={
            title: [tile for tile in tiles if tile.name.startswith(f"{family}/")]
            for family, title in DEFAULT_TITLES.items()
        },
        within_bucket_results=within_bucket_results,
        other_results=[r for r in report.results.values() if r.name not in on_tiles],
        curves=_build_curves(grid, columns, record),
        within_bucket=within_bucket,
        dataset=_describe_dataset(report),
        classes=None if report.predictions is None else build_class_map(report.predictions.images),
        instances=_name_instances(record),
        keys=keys,
        counts=counts,
        columns=columns,
        data={
            "rows": rows,
            "columns": columns,
            "keys": [shorten_key(key) for key in keys],
            "cells": [[_round(grid[i, j], score) for j in columns] for i in rows],
            "means": [_format_mean(grid[i], score) for i in rows],
            "accuracy": score.is_accuracy,
            "unit": score.unit,
            "images": None if counts is None else counts.tolist(),
            "noun": _name_instances(record),
            "streaming": record.dataset.protocol == "streaming",
            "predictions": predictions,
            # The row that is shown first: the last one with a measured cell.
            "start": max(np.flatnonzero(~np.isnan(grid).all(axis=1)).tolist(), default=None),
        },
        **content,
    )


def _select_results(metrics: Sequence[Metric], results: MetricResults) -> list[MetricResult]:
    return [results[metric.name] for metric in metrics if metric.name in results]


def _round(value: float, score: Score) -> float | None:
    """Round a cell for the page's script. Returns None for NaN."""
    if math.isnan(value):
        return None
    return round(float(value), _DIGITS) if score.is_accuracy else float(f"{value:.{_DIGITS}g}")


def _format_mean(cells: NDArray[np.float64], score: Score) -> tuple[str, int]:
    """Return the mean of the measured cells as text, and their number."""
    measured = cells[~np.isnan(cells)]
    return (score.format_cell(float(measured.mean())) if measured.size else ""), measured.size


def _name_instances(record: Record) -> str:
    """Return what was measured on, such as "test images"."""
    # A score that is not an accuracy may be measured on anything.
    return f"{record.dataset.split} {'images' if record.matrix.score.is_accuracy else 'data'}"


def _build_subtitle(report: RunReport) -> str:
    record = report.record
    parts = [one_line(record.dataset.name, 80)]
    parts += [
        f"{name} {one_line(report.configuration[name], 60)}"
        for name in ("strategy", "model")
        if name in report.configuration
    ]
    parts.append("no seed" if record.seed is None else f"seed {record.seed}")
    buckets = format_count(record.matrix.num_buckets, "bucket")
    parts.append(f"{record.rows[-1]} of {buckets} trained")
    return " · ".join(parts)


def _list_warnings(report: RunReport) -> list[str]:
    record = report.record
    warnings = [one_line(note, 400) for note in report.notes]
    if missing := record.missing:
        rest = f" and {len(missing) - 20} more" if missing[20:] else ""
        rows = f"{'rows' if missing[1:] else 'row'} {', '.join(map(str, missing[:20]))}{rest}"
        warnings.append(f"Not stored: {rows}.")
    if record.dataset.split != TEST:
        warnings.append(
            f"Measured on {record.dataset.split} images: use these numbers to choose parameters, "
            "and report numbers on test images."
        )
    if record.dataset.protocol == "streaming":
        warnings.append(
            "Protocol streaming: each bucket is tested on its own training images, so cells of "
            "buckets that were already trained on are not shown."
        )
    return warnings


def _pack_predictions(predictions: Predictions | None) -> tuple[dict[str, Any] | None, str]:
    """Return classes, image counts and compressed predictions for the page.

    The second value is a sentence on what is missing, or "". The first is None without predictions,
    or with too many classes.

    The page shows how many images of each bucket and true class got each predicted class, not which
    images. So the predicted classes of a row are sorted by bucket, true class and predicted class,
    which compresses well; the counts of images, the same in all rows, show where a class begins.
    If the page would become too large, the first rows are left out.
    """
    if predictions is None:
        return None, ""
    images = predictions.images
    num_classes = len(images.class_names)
    if num_classes > MAX_CLASSES:
        return None, f"Accuracy per class is not shown for more than {MAX_CLASSES} classes."
    dtype = "<u2" if num_classes > 256 else "u1"
    group = images.bucket.astype(np.int64) * num_classes + images.label
    totals = _compress(images.class_counts.astype("<u4"))
    rows: dict[int, str] = {}
    num_free = MAX_PREDICTION_CHARACTERS - len(totals)
    for row in sorted(predictions.rows, reverse=True):
        labels = np.sort(group * num_classes + predictions.rows[row].labels) % num_classes
        packed = _compress(labels.astype(dtype))
        num_free -= len(packed)
        if num_free < 0:
            break
        rows[row] = packed
    note = ""
    if len(rows) < len(predictions.rows):
        note = (
            f"The page contains the predictions of the last {len(rows)} of "
            f"{format_count(len(predictions.rows), 'row')}; all are in the artifacts in "
            "predictions."
        )
    names = [one_line(name, _MAX_CLASS_NAME) for name in images.class_names]
    return {"classes": names, "wide": num_classes > 256, "totals": totals, "rows": rows}, note


def _compress(numbers: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(numbers.tobytes(), 9)).decode("ascii")


def _build_curves(
    grid: NDArray[np.float64], columns: Sequence[int], record: Record
) -> dict[str, Any] | None:
    score, keys = record.matrix.score, record.matrix.buckets

    def build_lines(colour: int, name: str, values: Iterable[float]) -> list[Line]:
        points = [
            LinePoint(k, float(value), f"{name}, after {k}: {score.format_cell(value)}{score.unit}")
            for k, value in enumerate(values)
            if not math.isnan(value)
        ]
        return [Line(colour, points, name=name)] if points else []

    values_by_name: dict[str, Iterable[float]] = {
        "buckets trained so far (mean)": compute_past_means(grid),
        "bucket trained last": [math.nan, *np.diag(grid[1:])],
        "buckets still to come (mean)": compute_future_means(grid),
    }
    means = []
    for colour, (name, values) in enumerate(values_by_name.items()):
        means += build_lines(colour, name, values)
    titles = [f"Bucket {shorten_key(keys[j])}" for j in columns]
    buckets = [(t, build_lines(0, t, grid[:, j])) for t, j in zip(titles, columns, strict=True)]
    heading = f"{score.heading} on past, current and future buckets"
    curves = build_curves(
        [(heading, means)],
        buckets,
        score,
        last=len(keys),
        times=record.dataset.times,
        size=(720, 320),
    )
    return curves and {**curves, "legend": means}


def _describe_dataset(report: RunReport) -> dict[str, str]:
    record = report.record
    counts = record.matrix.num_instances
    instances = _name_instances(record)
    return {
        "name": record.dataset.name,
        "digest": record.dataset.digest,
        "protocol": record.dataset.protocol,
        "measured on": instances,
        "buckets": str(record.matrix.num_buckets),
        **({} if counts is None else {instances: f"{int(counts.sum()):,}"}),
        **report.dataset,
    }


def render_run_html(
    title: str,
    matrix: AccuracyMatrix | None,
    metrics: Iterable[MetricResult] = (),
    links: Sequence[str] = (),
    *,
    progress: Mapping[str, str] | None = None,
) -> str:
    """Return a run as HTML for a notebook.

    links: lines. A name, spaces and a web address become a link; any other line is shown as text.
    progress: ``text``, ``done`` and ``total`` of the progress bar, or None for no bar.
    """
    return render_fragment(
        "clear_mlflow.report.page/fragment",
        title=one_line(title, 160),
        progress=progress,
        map=None if matrix is None else _build_inline_map(matrix),
        metrics=list(metrics),
        links=[_split_link(line) for line in links],
    )


def render_progress_html(
    text: str, done: float, total: float, matrix: AccuracyMatrix | None
) -> str:
    """Return a run in training as HTML for a notebook.

    text: next to the bar. matrix: None before the first row.
    """
    progress = {"text": one_line(text, 160), "done": f"{done:g}", "total": f"{total:g}"}
    return render_run_html("", matrix, progress=progress)


def _build_inline_map(matrix: AccuracyMatrix) -> dict[str, Any]:
    grid = stack_all_rows(matrix)
    scale = build_cell_scale(matrix.score, [grid])
    note = f"Rows: bucket trained last. Columns: bucket tested. Cells: {matrix.score.label}."
    grid = grid[: matrix.num_rows + 1]
    return {
        **build_matrix_map(grid, matrix.buckets, scale=scale, inline_style=True),
        "note": note,
    }


def _split_link(line: str) -> dict[str, str]:
    """Split "NAME ADDRESS". Without a web address, ``name`` is the line, cut."""
    name, _, rest = line.partition(" ")
    address = rest.strip()
    if address.startswith(("http://", "https://")) and " " not in address:
        return {"name": name, "address": address}
    return {"name": one_line(line, 400), "address": ""}
