"""What stored predictions say, as CSV: per class, which class is taken for which, calibration."""

from __future__ import annotations

import math

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.text import one_line
from clear_mlflow.metrics.from_predictions import Predictions, class_accuracies, confusion
from clear_mlflow.metrics.from_predictions.calibration import reliability
from clear_mlflow.report.exports import csv_text, inert

_LONGEST_NAME = 200


def per_class_csv(predictions: Predictions) -> str:
    """Accuracy per class, a line for each cell of the accuracy matrix, a column for each class.

    Empty where the bucket has no test image of the class; cells without evidence have no line.
    """
    images = predictions.images
    cells = class_accuracies(predictions)
    header = ["trained_through", "tested_on", *map(_class_label, images.class_names)]
    lines = [
        [_trained_through(predictions, row), inert(key), *map(_number, cells[row, j].tolist())]
        for row in predictions.answers
        for j, key in enumerate(images.buckets)
        if not all(map(math.isnan, cells[row, j].tolist()))
    ]
    return csv_text([header, *lines])


def confusion_csv(predictions: Predictions, row: int) -> str:
    """How many test images of each true class, a line each, got each predicted class."""
    names = [_class_label(name) for name in predictions.images.class_names]
    counts = confusion(predictions, row).tolist()
    lines = [[name, *map(str, line)] for name, line in zip(names, counts, strict=True)]
    return csv_text([["true_class", *names], *lines])


def calibration_csv(predictions: Predictions) -> str | None:
    """What a reliability diagram shows after each row, bin by bin; None without probabilities."""
    lines: list[list[str]] = []
    for row in predictions.answers:
        try:
            found = reliability(predictions.after(row))
        except UndefinedMetricError:
            continue
        for i, (count, accuracy, confidence) in enumerate(found):
            ends = [f"{i / len(found):.4f}", f"{(i + 1) / len(found):.4f}"]
            values = [str(count), _number(accuracy), _number(confidence)]
            lines.append([_trained_through(predictions, row), *ends, *values])
    header = ["trained_through", "above", "up_to", "images", "accuracy", "mean_confidence"]
    return csv_text([header, *lines]) if lines else None


def _trained_through(predictions: Predictions, row: int) -> str:
    return "initial" if row == 0 else inert(predictions.images.buckets[row - 1])


def _class_label(name: str) -> str:
    """A class's name as a cell: names come from folders and files of other people."""
    return inert(one_line(name, _LONGEST_NAME))


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
