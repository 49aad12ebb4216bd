"""Metrics of Chaudhry et al. 2018 that need only one run: accuracy and forgetting after bucket k.

Their intransigence compares two runs: the advantage on bucket k of a run that is trained on all
buckets so far at once, J[k, k] - R[k, k]. Other metrics of this family are in ``aliases.py``.

Source: Chaudhry et al., Riemannian Walk for Incremental Learning: Understanding Forgetting and
Intransigence, ECCV 2018, arXiv:1801.10112; ``compute_fgt`` in ``utils/utils.py`` of
facebookresearch/agem, 4542149; ``forgetting`` in ``continuum/metrics/metrics.py`` of
Continvvm/continuum, 43ba009.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import change, require_trained, select_values


def forgetting_since_trained(matrix: AccuracyMatrix) -> float:
    """Mean drop from each earlier bucket's best accuracy since it was trained.

    Formula: mean over j < last of (max over j <= i < last of R[i, j]) - R[last, j]. Defined when
    k >= 2. Lower is better. It needs no test of a future bucket.

    `chaudhry/forgetting` and `renate/forgetting` take the maximum over every earlier row,
    including those before bucket j was trained. mammoth and PyCIL include the last row in the
    maximum, so that a gain counts as 0.

    >>> round(forgetting_since_trained(AccuracyMatrix([[0.8, float("nan")], [0.5, 0.9]])), 6)
    0.3
    """
    require_trained(matrix, 2, "a past bucket")
    is_trained = np.tri(matrix.num_rows, matrix.num_rows - 1, dtype=np.bool_)
    select_values(matrix, is_trained)
    past = np.where(is_trained, matrix.values[:, : matrix.num_rows - 1], -np.inf)
    return float((past[:-1].max(axis=0) - past[-1]).mean())


METRICS = (change(forgetting_since_trained, higher_is_better=False),)
