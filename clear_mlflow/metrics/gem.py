"""The metrics of GEM: what the last row says, and how it came to be.

They are Renate's of the same name, under the name that papers cite them by. The authors' program
is not quite their paper: its means of backward and forward transfer count the one bucket that has
none as 0 (``bwt.mean()``, ``fwt.mean()`` over all T buckets), so they are (T - 1) / T of what
equations 3 and 4 say. Here is what the equations say, as in Renate, mammoth and Avalanche.

Source: Lopez-Paz & Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017,
arXiv:1706.08840; ``metrics/metrics.py`` of facebookresearch/GradientEpisodicMemory, 34c6b8e.
"""

from __future__ import annotations

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import renate
from clear_mlflow.metrics._base import Metric


def average_accuracy(matrix: AccuracyMatrix) -> float:
    """ACC: mean accuracy, at the end, on all buckets trained on.

    Formula: mean of R[last, j] over j <= last. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        Lopez-Paz & Ranzato 2017, equation 2.

    >>> round(average_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.7
    """
    return renate.average_accuracy(matrix)


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """BWT: mean change on each earlier bucket since it was trained on.

    Formula: mean over j < last of R[last, j] - R[j, j]. Defined when k >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; higher is better. Negative: the model has forgotten.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.

    Source:
        Lopez-Paz & Ranzato 2017, equation 3; their program's number is (T - 1) / T of it.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    return renate.backward_transfer(matrix)


def forward_transfer(matrix: AccuracyMatrix) -> float:
    """FWT: mean gain over the untrained model on each bucket, just before it is trained on.

    Formula: mean over j = 1 .. last of R[j - 1, j] - b[j]. Defined when k >= 2 and the
    initialisation row is known.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; higher is better.

    Raises:
        UndefinedMetricError: fewer than two buckets were trained, there is no initialisation row,
            or a cell was not measured.

    Source:
        Lopez-Paz & Ranzato 2017, equation 4; their program's number is (T - 1) / T of it.

    >>> rows = [[0.8, 0.5], [0.5, 0.9]]
    >>> round(forward_transfer(AccuracyMatrix(rows, initial=[0.1, 0.2])), 6)
    0.3
    """
    return renate.forward_transfer(matrix)


METRICS = (
    Metric(name="gem/average_accuracy", function=average_accuracy),
    Metric(name="gem/backward_transfer", function=backward_transfer),
    Metric(name="gem/forward_transfer", function=forward_transfer),
)
