"""Average incremental accuracy, which class-incremental papers since iCaRL report for a run.

Source: Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017,
arXiv:1611.07725, section 4.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import level, select_trained_values


def average_incremental_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over rows of the mean accuracy on the buckets trained on by then.

    Formula: mean over i < k of (mean of R[i, j] over j <= i). Defined when k >= 1.

    All buckets have the same weight. iCaRL's accuracy is the one on all test images of the classes
    so far, which is equal if every bucket has the same number. Some papers omit the first row.

    >>> round(average_incremental_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.75
    """
    accuracies = select_trained_values(matrix)
    # Row i has i + 1 of them, each with the weight 1 / (i + 1).
    weights = np.repeat(1 / np.arange(1, matrix.num_rows + 1), np.arange(1, matrix.num_rows + 1))
    return float((accuracies * weights).sum() / matrix.num_rows)


METRICS = (level(average_incremental_accuracy, "average_incremental_{score}"),)
