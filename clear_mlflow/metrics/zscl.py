"""The metrics of ZSCL: transfer, average and last, each a mean over buckets.

Source: Zheng et al., ZSCL, ICCV 2023, arXiv:2303.06628; ``statistics`` in ``mtil/results.ipynb`` of
Thunderbeee/ZSCL, b96e714.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import count_steps_ahead, level, require_future, select_values


def transfer(matrix: AccuracyMatrix) -> float:
    """Mean accuracy on future buckets, bucket by bucket.

    Formula: mean over j = 1 .. T - 1 of (mean of R[i, j] over i < min(j, k)). Defined when k >= 1
    and T >= 2. Unlike `clear/forward_transfer`, it weights every bucket equally, not every R[i, j].

    >>> rows = [[0.9, 0.6, 0.2], [0.8, 0.9, 0.4], [0.7, 0.8, 0.9]]
    >>> round(transfer(AccuracyMatrix(rows)), 6)
    0.45
    """
    require_future(matrix)
    future = count_steps_ahead(matrix) > 0
    rows_per_bucket = np.broadcast_to(future.sum(axis=0), future.shape)[future]
    return float((select_values(matrix, future) / rows_per_bucket).sum() / (matrix.num_buckets - 1))


METRICS = (level(transfer, "transfer_{score}"),)
