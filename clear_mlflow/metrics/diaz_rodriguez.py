"""Metrics of Diaz-Rodriguez et al. 2018 that can be computed from the matrix.

Unlike GEM's metrics, each uses every row. The paper's other criteria (model size, memory,
computation) and the score that combines them need more than the matrix. A and FWT are in
``aliases.py``.

Source: Diaz-Rodriguez et al., Don't forget, there is more than forgetting: new metrics for
Continual Learning, arXiv:1810.13166. Continuum (``continuum/metrics/metrics.py``, 43ba009) uses its
definitions, except that its ``forward_transfer`` is another quantity.
"""

from __future__ import annotations

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import change, compute_change_on_past, declare


def remembering(matrix: AccuracyMatrix) -> float:
    """REM: one minus the mean loss on past buckets, over all rows.

    Formula: 1 - abs(min(B, 0)) with B the mean of R[i, j] - R[j, j] over j < i < k. Defined when
    k >= 2. 1 if B >= 0.

    >>> round(remembering(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.7
    """
    return 1 + min(compute_change_on_past(matrix), 0.0)


def positive_backward_transfer(matrix: AccuracyMatrix) -> float:
    """BWT+: the mean gain on past buckets, over all rows, or 0 if there is a loss.

    Formula: max(B, 0) with B the mean of R[i, j] - R[j, j] over j < i < k. Defined when k >= 2. A
    gain in [0, 1].

    >>> round(positive_backward_transfer(AccuracyMatrix([[0.5, 0.1], [0.8, 0.9]])), 6)
    0.3
    """
    return max(compute_change_on_past(matrix), 0.0)


METRICS = (declare(remembering), change(positive_backward_transfer))
