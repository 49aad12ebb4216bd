"""Calibration: how well a model's probabilities agree with its accuracy, on trained buckets.

Each metric uses the last row and the test images of all buckets trained on: at step k of a series,
row k and buckets 1 to k. Lower is better. Stored probabilities have half precision: a probability
below 2**-25 is stored as 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import PREDICTIONS, declare
from clear_mlflow.metrics._predictions import Predictions

_MIN_PROBABILITY = 2.0**-25  # half of the smallest number in half precision
_NUM_BINS = 15


def expected_calibration_error(predictions: Predictions) -> float:
    """Mean difference between confidence and accuracy.

    Formula: mean over images of abs(accuracy - mean confidence) of the image's bin. Defined when
    k >= 1 and probabilities are stored.

    Confidence is the probability of the predicted class. The 15 bins of confidence have equal
    width, (0, 1/15] to (14/15, 1]. Source: Guo et al. 2017, On calibration of modern neural
    networks, equation 3, with their 15 bins.
    """
    probabilities, labels = _get_probabilities(predictions)
    predicted = predictions.get_row(predictions.k).labels[predictions.mask_trained_images()]
    confidence = probabilities[np.arange(len(predicted)), predicted].astype(np.float64)
    count, accuracy, confidence = _bin_by_confidence(np.equal(predicted, labels), confidence)
    filled = count > 0
    gaps = np.abs(accuracy[filled] - confidence[filled])
    return float((count[filled] * gaps).sum() / count.sum())


def negative_log_likelihood(predictions: Predictions) -> float:
    """Mean negative natural logarithm of the probability of the true class.

    Formula: mean of -log p(true class), natural logarithm. Defined when k >= 1 and probabilities
    are stored.

    A probability stored as 0 counts as 2**-25, the largest that is stored as 0: one image adds at
    most 17.3.
    """
    probabilities, labels = _get_probabilities(predictions)
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(true, _MIN_PROBABILITY)).mean())


def brier_score(predictions: Predictions) -> float:
    """Mean squared distance between the probabilities and the truth, from 0 to 2.

    Formula: mean over images of the sum over classes of (p(class) - is true)^2, up to 2. Defined
    when k >= 1 and probabilities are stored.

    Source: Brier 1950, Verification of forecasts expressed in terms of probability.
    """
    probabilities, labels = _get_probabilities(predictions)
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    # sum of (p - t)^2 = sum of p^2 - 2 p[true] + 1, without a second array of that size.
    squares = np.einsum("nc,nc->n", probabilities, probabilities, dtype=np.float64)
    return float((squares - 2 * true + 1).mean())


def _bin_by_confidence(
    is_correct: NDArray[np.bool_], confidence: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return count, accuracy and confidence of 15 bins, NaN if empty."""
    bins = np.clip(np.ceil(confidence * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    count = np.bincount(bins, minlength=_NUM_BINS)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(bins, weights=is_correct, minlength=_NUM_BINS) / count
        mean = np.bincount(bins, weights=confidence, minlength=_NUM_BINS) / count
    return count, accuracy, mean


def _get_probabilities(
    predictions: Predictions,
) -> tuple[NDArray[np.float16], NDArray[np.uint16]]:
    """Return (n, classes) probabilities and (n,) labels of trained buckets."""
    mask = predictions.mask_trained_images()
    probabilities = predictions.get_row(predictions.k).probabilities
    if probabilities is None:
        raise UndefinedMetricError("needs stored probabilities: predictions=probs")
    return probabilities[mask], predictions.images.label[mask]


METRICS = tuple(
    declare(function, needs=PREDICTIONS, higher_is_better=False)
    for function in (expected_calibration_error, negative_log_likelihood, brier_score)
)
