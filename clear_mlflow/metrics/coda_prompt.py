"""The forgetting of CODA-Prompt, between consecutive rows.

Source: Smith et al., CODA-Prompt, CVPR 2023, arXiv:2211.13218; ``utils/calc_forgetting.py`` of
GT-RIPL/CODA-Prompt, 6417d4f.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import change, require_trained, select_values


def forgetting(matrix: AccuracyMatrix) -> float:
    """Mean of the drops from row to row on the buckets trained on before.

    Formula: mean over 0 < i < k of (mean of R[i - 1, j] - R[i, j] over j < i). Defined when k >= 2.
    Lower is better.

    >>> rows = [[0.9, 0.1, 0.1], [0.8, 0.9, 0.1], [0.6, 0.8, 0.9]]
    >>> round(forgetting(AccuracyMatrix(rows)), 6)
    0.125
    """
    require_trained(matrix, 2, "a past bucket")
    past = matrix.num_rows - 1
    select_values(matrix, np.tri(past + 1, past, dtype=np.bool_))
    drops = np.tril(-np.diff(matrix.values[:, :past], axis=0))
    return float((drops.sum(axis=1) / np.arange(1, past + 1)).mean())


METRICS = (change(forgetting, higher_is_better=False),)
