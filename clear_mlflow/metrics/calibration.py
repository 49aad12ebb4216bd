"""How far a model's probabilities can be believed, on the buckets it has learned.

All are of the last row, over the test images of the buckets trained on, taken together; so, at
step k of a series, of row k over buckets 1 to k. Lower is better. They need a trained bucket and
probabilities, which a run keeps with ``predictions=probs``; stored ones are of half precision: one
below 2**-25 is stored as 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import PREDICTIONS, Metric
from clear_mlflow.metrics._predictions import Predictions

# Half the smallest number that half precision holds: what is stored as 0 is at most this.
_SMALLEST = 2.0**-25
_BINS = 15


def expected_calibration_error(predictions: Predictions) -> float:
    """How far confidence and accuracy lie apart, on average; 0 to 1.

    Confidence is the probability of the predicted class. Images are put into 15 bins of equal width
    by their confidence, (0, 1/15] to (14/15, 1]; the error is the mean over images of
    |accuracy - mean confidence| of their bin. Source: Guo et al. 2017, On calibration of modern
    neural networks, equation 3, with their 15 bins.
    """
    count, accuracy, mean = _bin_by_confidence(*_confidences(predictions))
    filled = count > 0
    gaps = np.abs(accuracy[filled] - mean[filled])
    return float((count[filled] * gaps).sum() / count.sum())


def negative_log_likelihood(predictions: Predictions) -> float:
    """Mean of -log(probability of the true class), natural logarithm; 0 or more.

    A probability stored as 0 counts as 2**-25, the largest that is stored so: the worst that one
    image can add is 17.3.
    """
    probabilities, labels = _learned(predictions)
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(true, _SMALLEST)).mean())


def brier_score(predictions: Predictions) -> float:
    """Mean squared distance between the probabilities and the truth, summed over classes; 0 to 2.

    Source: Brier 1950, Verification of forecasts expressed in terms of probability.
    """
    probabilities, labels = _learned(predictions)
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    # sum of (p - t)^2 = sum of p^2 - 2 p[true] + 1, without a second array of that size.
    squares = np.einsum("nc,nc->n", probabilities, probabilities, dtype=np.float64)
    return float((squares - 2 * true + 1).mean())


def _bin_by_confidence(
    right: NDArray[np.bool_], confidence: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """(15,) each: images by confidence in bins of equal width, the right share, mean confidence.

    Bins are closed above; the shares and means of one without images are NaN.
    """
    place = np.clip(np.ceil(confidence * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    count = np.bincount(place, minlength=_BINS)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(place, weights=right, minlength=_BINS) / count
        mean = np.bincount(place, weights=confidence, minlength=_BINS) / count
    return count, accuracy, mean


def _confidences(predictions: Predictions) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(n,) each: whether the answers are right, and the probability of what was answered."""
    probabilities, labels = _learned(predictions)
    said = predictions.get_row(predictions.k).labels[predictions.trained_images()]
    confidence = probabilities[np.arange(len(said)), said].astype(np.float64)
    return np.equal(said, labels), confidence


def _learned(predictions: Predictions) -> tuple[NDArray[np.float16], NDArray[np.uint16]]:
    """(n, classes), (n,): probabilities and truth of the images of the buckets trained on."""
    where = predictions.trained_images()
    probabilities = predictions.get_row(predictions.k).probabilities
    if probabilities is None:
        raise UndefinedMetricError("needs stored probabilities: predictions=probs")
    return probabilities[where], predictions.images.label[where]


METRICS = tuple(
    Metric(
        name=f"calibration/{function.__name__}",
        function=function,
        needs=PREDICTIONS,
        higher_is_better=False,
    )
    for function in (expected_calibration_error, negative_log_likelihood, brier_score)
)
