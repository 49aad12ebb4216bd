"""Accuracy on classes that come and go: known, new, vanished and unseen classes.

A bucket has a class if it has test images of it. Emerging and disappearing classes come from CaMiT
(arXiv:2510.17626), the formulas from this package. The metrics are undefined if the predictions of
a row that is needed were not stored, and under ``streaming``. They are left out if all buckets have
the same classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import PREDICTIONS, declare
from clear_mlflow.metrics._predictions import Predictions


def known(predictions: Predictions) -> float:
    """Mean accuracy on the bucket just trained, on classes of earlier buckets.

    Formula: mean over 0 < i < k of the accuracy in R[i, i] on classes of buckets before i. Defined
    when such a bucket exists.
    """
    return _average_just_trained(predictions, has_new_classes=False)


def new(predictions: Predictions) -> float:
    """Mean accuracy on the bucket just trained, on classes of no earlier bucket.

    Formula: mean over 0 < i < k of the accuracy in R[i, i] on classes of no bucket before i.
    Defined when such a bucket exists.
    """
    return _average_just_trained(predictions, has_new_classes=True)


def vanished(predictions: Predictions) -> float:
    """Accuracy at the end on images of past buckets, on classes that the last bucket lacks.

    Formula: accuracy in the last row on the images of past buckets of classes that bucket k - 1
    lacks. Defined when it lacks a class.
    """
    has_class, images, last = _get_class_mask(predictions), predictions.images, predictions.k - 1
    mask = (images.bucket < last) & ~has_class[last][images.label]
    if not np.any(mask):
        raise UndefinedMetricError("needs a class that the last bucket trained on lacks")
    return float(predictions.get_row(predictions.k).find_hits(images)[mask].mean())


def unseen_auroc(predictions: Predictions) -> float:
    """Area under the ROC curve of a low largest probability as a sign of an unseen class.

    Formula: mean over rows of the AUROC, over all test images, of 1 - max p for classes of no
    bucket trained on. Defined when a class comes after the first bucket and probabilities are
    stored.

    Rows after which no new class comes do not count.
    """
    has_class, areas = _get_class_mask(predictions), []
    for row in range(1, predictions.k + 1):
        is_unseen = ~has_class[:row].max(axis=0)[predictions.images.label]
        if not is_unseen.any():
            continue
        probabilities = predictions.get_row(row).probabilities
        if probabilities is None:
            raise UndefinedMetricError("needs stored probabilities: predictions=probs")
        doubt = -probabilities.max(axis=1)
        _, rank_index, ties = np.unique(doubt, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(ties) - (ties - 1) / 2)[rank_index]  # ties share their mean rank
        positives, negatives = is_unseen.sum(), (~is_unseen).sum()
        rank_sum = ranks[is_unseen].sum() - positives * (positives + 1) / 2
        areas.append(rank_sum / (positives * negatives))
    if not areas:
        raise UndefinedMetricError("needs a class that comes after the first bucket")
    return float(np.mean(areas))


def _has_constant_classes(predictions: Predictions) -> bool:
    has_class = predictions.images.class_counts > 0
    return bool((has_class == has_class[0]).all())


def _get_class_mask(predictions: Predictions) -> NDArray[np.bool_]:
    """Return a (T, classes) mask of buckets' classes, or raise without differences."""
    predictions.mask_trained_images()  # raises if the protocol excludes all trained buckets
    if _has_constant_classes(predictions):
        raise UndefinedMetricError("needs classes that some buckets have and others lack")
    return predictions.images.class_counts > 0


def _average_just_trained(predictions: Predictions, *, has_new_classes: bool) -> float:
    """Average the accuracy just after training, on new or old classes."""
    has_class, images, accuracies = _get_class_mask(predictions), predictions.images, []
    for bucket in range(1, predictions.k):
        is_known = has_class[:bucket].max(axis=0)[images.label]
        mask = (images.bucket == bucket) & (is_known != has_new_classes)
        if np.any(mask):
            accuracies.append(predictions.get_row(bucket + 1).find_hits(images)[mask].mean())
    if not accuracies:
        condition = "no bucket before has" if has_new_classes else "came before"
        raise UndefinedMetricError(f"needs a bucket after the first with a class that {condition}")
    return float(np.mean(accuracies))


METRICS = tuple(
    declare(function, needs=PREDICTIONS, skip_if=_has_constant_classes)
    for function in (known, new, vanished, unseen_auroc)
)
