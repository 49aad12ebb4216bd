"""Families of one to three metrics, each from a paper or program, and metrics under further names.

A metric is named after its family and its function, for example ``zscl/transfer``.

- ``capymoa``: ``capymoa.ocl.evaluation.OCLMetrics``, fields of the same names, and what fills it
  (``_evaluator.py``, ``_metrics.py`` of adaptive-machine-learning/CapyMOA, 095caba). Its anytime
  and test-then-train accuracies need more than the matrix.
- ``chaudhry``: Chaudhry et al., Riemannian Walk for Incremental Learning, ECCV 2018,
  arXiv:1801.10112; ``compute_fgt`` in ``utils/utils.py`` of facebookresearch/agem, 4542149;
  ``forgetting`` in ``continuum/metrics/metrics.py`` of Continvvm/continuum, 43ba009. Their
  intransigence compares two runs.
- ``coda_prompt``: Smith et al., CODA-Prompt, CVPR 2023, arXiv:2211.13218;
  ``utils/calc_forgetting.py`` of GT-RIPL/CODA-Prompt, 6417d4f.
- ``diaz_rodriguez``: Diaz-Rodriguez et al., Don't forget, there is more than forgetting: new
  metrics for Continual Learning, arXiv:1810.13166. Continuum uses its definitions, except that its
  ``forward_transfer`` is another quantity. The paper's other criteria need more than the matrix.
- ``gem``: Lopez-Paz & Ranzato, NeurIPS 2017, arXiv:1706.08840, equations 2 to 4. The authors'
  program divides backward and forward transfer by T instead of T - 1 (``metrics/metrics.py`` of
  facebookresearch/GradientEpisodicMemory, 34c6b8e); Renate, mammoth and Avalanche do not.
- ``icarl``: Rebuffi et al., iCaRL, CVPR 2017, arXiv:1611.07725, section 4.
- ``tic``: TiC-CLIP, Garg et al., ICLR 2024, arXiv:2310.16226: CLEAR's regions. TiC-LM (Li et al.,
  ACL 2025, arXiv:2504.02107) takes the same means of log-perplexities minus the means of an oracle.
- ``worst_bucket``: the worst-group accuracy of Sagawa et al., Distributionally Robust Neural
  Networks for Group Shifts, ICLR 2020, arXiv:1911.08731, with buckets as the groups.
- ``zscl``: Zheng et al., ZSCL, ICCV 2023, arXiv:2303.06628; ``statistics`` in
  ``mtil/results.ipynb`` of Thunderbeee/ZSCL, b96e714.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import clear, renate
from clear_mlflow.metrics._metric import (
    Value,
    change,
    compute_mean,
    count_steps_ahead,
    declare,
    level,
    require_future,
    require_trained,
    select_last_row,
    select_past_diagonal,
    select_row,
    select_trained_values,
    select_values,
    to_value,
)


def accuracy_all_avg(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on all buckets, future ones included, over all rows.

    Formula: mean of R[i, j] over i < k and j < T. Defined when k >= 1.

    >>> round(accuracy_all_avg(AccuracyMatrix([[0.8, 0.1], [0.5, 0.8]])), 6)
    0.55
    """
    require_trained(matrix, 1, "a trained bucket")
    everything = np.ones((matrix.num_rows, matrix.num_buckets), dtype=np.bool_)
    return compute_mean(select_values(matrix, everything))


def accuracy_final(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy, at the end, on all buckets, including those not trained on.

    Formula: mean of R[last, j] over j < T. Defined when k >= 1.

    >>> round(accuracy_final(AccuracyMatrix([[0.8, 0.1]])), 6)
    0.45
    """
    return compute_mean(select_row(matrix, -1, slice(None)))


def backward_transfer(matrix: AccuracyMatrix) -> Value:
    """Mean change on past buckets since each was trained on, over all rows.

    Formula: mean of R[i, j] - R[j, j] over j < i < k. Defined when k >= 2. Negative
    if the model has forgotten.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    require_trained(matrix, 2, "a past bucket")
    past = select_values(matrix, count_steps_ahead(matrix) < 0)
    # Bucket j is in the past of k - 1 - j rows.
    num_later_rows = np.arange(matrix.num_rows - 1, 0, -1)
    own_rows = (select_past_diagonal(matrix) * num_later_rows).sum(axis=-1)
    return to_value((past.sum(axis=-1) - own_rows) / past.shape[-1])


def forgetting_since_trained(matrix: AccuracyMatrix) -> Value:
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
    past = np.where(is_trained, matrix.values[..., : matrix.num_rows - 1], -np.inf)
    return compute_mean(past[..., :-1, :].max(axis=-2) - past[..., -1, :])


def forgetting(matrix: AccuracyMatrix) -> Value:
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
    drops = np.tril(-np.diff(matrix.values[..., :past], axis=-2))
    return compute_mean(drops.sum(axis=-1) / np.arange(1, past + 1))


def remembering(matrix: AccuracyMatrix) -> Value:
    """REM: one minus the mean loss on past buckets, over all rows.

    Formula: 1 - abs(min(B, 0)) with B the mean of R[i, j] - R[j, j] over j < i < k. Defined when
    k >= 2. 1 if B >= 0.

    >>> round(remembering(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.7
    """
    return to_value(1 + np.minimum(backward_transfer(matrix), 0.0))


def positive_backward_transfer(matrix: AccuracyMatrix) -> Value:
    """BWT+: the mean gain on past buckets, over all rows, or 0 if there is a loss.

    Formula: max(B, 0) with B the mean of R[i, j] - R[j, j] over j < i < k. Defined when k >= 2. A
    gain in [0, 1].

    >>> round(positive_backward_transfer(AccuracyMatrix([[0.5, 0.1], [0.8, 0.9]])), 6)
    0.3
    """
    return to_value(np.maximum(backward_transfer(matrix), 0.0))


def average_incremental_accuracy(matrix: AccuracyMatrix) -> Value:
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
    return to_value((accuracies * weights).sum(axis=-1) / matrix.num_rows)


def final_accuracy(matrix: AccuracyMatrix) -> Value:
    """The worst accuracy, at the end, on a bucket trained on.

    Formula: min of R[last, j] over j <= last. Defined when k >= 1.

    >>> final_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.5
    """
    return to_value(select_last_row(matrix).min(axis=-1))


def lowest_accuracy(matrix: AccuracyMatrix) -> Value:
    """The worst accuracy that the run ever had on a bucket trained on by then.

    Formula: min of R[i, j] over j <= i < k. Defined when k >= 1.

    >>> lowest_accuracy(AccuracyMatrix([[0.4, 0.1], [0.5, 0.9]]))
    0.4
    """
    return to_value(select_trained_values(matrix).min(axis=-1))


def transfer(matrix: AccuracyMatrix) -> Value:
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
    weighted = select_values(matrix, future) / rows_per_bucket
    return to_value(weighted.sum(axis=-1) / (matrix.num_buckets - 1))


_DECLARED = (
    level(accuracy_all_avg, "{score}_all_avg", family="capymoa"),
    level(accuracy_final, "{score}_final", family="capymoa"),
    change(backward_transfer, family="capymoa"),
    change(forgetting_since_trained, family="chaudhry", higher_is_better=False),
    change(forgetting, family="coda_prompt", higher_is_better=False),
    declare(remembering, family="diaz_rodriguez"),
    change(positive_backward_transfer, family="diaz_rodriguez"),
    level(average_incremental_accuracy, "average_incremental_{score}", family="icarl"),
    level(final_accuracy, "final_{score}", family="worst_bucket"),
    level(lowest_accuracy, "{lowest}_{score}", family="worst_bucket"),
    level(transfer, "transfer_{score}", family="zscl"),
)
# Name, original, and name for another score than accuracy (the same if empty).
ALIASES = (
    ("gem/average_accuracy", "renate/average_accuracy", "gem/average_{score}"),
    ("gem/backward_transfer", "renate/backward_transfer", ""),
    ("gem/forward_transfer", "renate/forward_transfer", ""),
    ("tic/in_domain", "clear/in_domain_accuracy", ""),
    ("tic/backward_transfer", "clear/backward_transfer", "tic/backward_{score}"),
    ("tic/forward_transfer", "clear/forward_transfer", "tic/forward_{score}"),
    ("chaudhry/average_accuracy", "renate/average_accuracy", "chaudhry/average_{score}"),
    ("chaudhry/forgetting", "renate/forgetting", ""),
    ("diaz_rodriguez/accuracy", "clear/accuracy", "diaz_rodriguez/{score}"),
    ("diaz_rodriguez/forward_transfer", "clear/forward_transfer", "diaz_rodriguez/forward_{score}"),
    ("capymoa/accuracy_seen_avg", "icarl/average_incremental_accuracy", "capymoa/{score}_seen_avg"),
    ("capymoa/forward_transfer", "clear/forward_transfer", "capymoa/forward_{score}"),
    ("zscl/average", "capymoa/accuracy_all_avg", "zscl/average_{score}"),
    ("zscl/last", "capymoa/accuracy_final", "zscl/last_{score}"),
)
_ORIGINALS = {m.name: m for m in (*clear.METRICS, *renate.METRICS, *_DECLARED)}
METRICS = (
    *_DECLARED,
    *(
        replace(
            _ORIGINALS[original], name=name, score_name=score_name, headline="", rank_priority=0
        )
        for name, original, score_name in ALIASES
    ),
)
