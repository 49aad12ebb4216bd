"""Accuracy on classes that come and go: known, new and vanished ones, and those still unseen.

A class is in a bucket where the bucket has test images of it. Emerging and disappearing classes are
those of CaMiT (arXiv:2510.17626); the formulas are ours. Fractions in [0, 1], higher is better;
undefined where all buckets have the same classes, where the predictions of a row that is needed
were not stored, and under ``streaming``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import PREDICTIONS, Metric
from clear_mlflow.metrics._predictions import Predictions


def known(predictions: Predictions) -> float:
    """Mean accuracy on a bucket just trained on, its images of classes that came before it."""
    return _just_trained(predictions, is_new=False)


def new(predictions: Predictions) -> float:
    """Mean accuracy on a bucket just trained on, its images of classes that none before has."""
    return _just_trained(predictions, is_new=True)


def vanished(predictions: Predictions) -> float:
    """Accuracy at the end on all images of past buckets of classes that the last one lacks."""
    there, images, last = _presence(predictions), predictions.images, predictions.k - 1
    where = (images.bucket < last) & ~there[last][images.label]
    if not np.any(where):
        raise UndefinedMetricError("needs a class that the last bucket trained on lacks")
    return float(predictions.get_row(predictions.k).hits(images)[where].mean())


def unseen_auroc(predictions: Predictions) -> float:
    """How well a low largest probability shows a class not seen yet: area under the ROC curve.

    A mean over rows, each over all test images; rows after which no class is left to come do not
    count.
    """
    there, areas = _presence(predictions), []
    for row in range(1, predictions.k + 1):
        unseen = ~there[:row].max(axis=0)[predictions.images.label]
        if not unseen.any():
            continue
        probabilities = predictions.get_row(row).probabilities
        if probabilities is None:
            raise UndefinedMetricError("needs stored probabilities: predictions=probs")
        doubt = -probabilities.max(axis=1)
        _, place, ties = np.unique(doubt, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # equal ones share the mean of theirs
        positive, negative = unseen.sum(), (~unseen).sum()
        above = ranks[unseen].sum() - positive * (positive + 1) / 2
        areas.append(above / (positive * negative))
    if not areas:
        raise UndefinedMetricError("needs a class that comes after the first bucket")
    return float(np.mean(areas))


def _has_constant_classes(predictions: Predictions) -> bool:
    """Whether all buckets have test images of the same classes."""
    there = predictions.images.class_counts > 0
    return bool((there == there[0]).all())


def _presence(predictions: Predictions) -> NDArray[np.bool_]:
    """(T, classes): which bucket has test images of which class."""
    predictions.trained_images()  # raises where nothing that was trained on is evidence
    if _has_constant_classes(predictions):
        raise UndefinedMetricError("needs classes that some buckets have and others lack")
    return predictions.images.class_counts > 0


def _just_trained(predictions: Predictions, *, is_new: bool) -> float:
    there, images, found = _presence(predictions), predictions.images, []
    for position in range(1, predictions.k):
        came_before = there[:position].max(axis=0)[images.label]
        where = (images.bucket == position) & (came_before != is_new)
        if np.any(where):
            found.append(predictions.get_row(position + 1).hits(images)[where].mean())
    if not found:
        kind = "no bucket before has" if is_new else "came before"
        raise UndefinedMetricError(f"needs a bucket after the first with a class that {kind}")
    return float(np.mean(found))


METRICS = tuple(
    Metric(
        name=f"class_changes/{function.__name__}",
        function=function,
        needs=PREDICTIONS,
        skip_if=_has_constant_classes,
    )
    for function in (known, new, vanished, unseen_auroc)
)
