"""Variants of forgetting, transfer and average accuracy that published numbers were computed with.

Each docstring names the repository, commit and file that computes the variant. Programs that test
past buckets only have zeros above the diagonal, so that their maximum over all rows starts at the
bucket's own row. ``clear-mlflow identify`` searches this family like all others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import renate
from clear_mlflow.metrics._metric import (
    Value,
    change,
    compute_mean,
    declare,
    get_test_counts,
    level,
    require_trained,
    select_columns,
    select_last_row,
    select_past_diagonal,
    select_row,
    select_trained_values,
    select_values,
    to_value,
)
from clear_mlflow.metrics.papers import forgetting_since_trained


def forgetting_with_last(matrix: AccuracyMatrix) -> Value:
    """Mean drop from each earlier bucket's best accuracy, the last row included.

    Formula: mean over j < last of (max over j <= i <= last of R[i, j]) - R[last, j]. Defined when
    k >= 2. Lower is better. A bucket that is best at the end counts as 0.

    Source: ``train_continual.py`` of google-research/l2p, dd8836e; the same line in KU-VGI/VIL (its
    issue 1) and in ``trainer.py`` of Estrella-fugaz/CVPR25-DUCT, ecfb579.
    """
    return compute_mean(_compute_drops(matrix)[..., :-1])


def forgetting_of_all_buckets(matrix: AccuracyMatrix) -> Value:
    """Mean drop from the best accuracy over all buckets, the last one included.

    Formula: mean over j <= last of (max over j <= i <= last of R[i, j]) - R[last, j]. Defined when
    k >= 2. Lower is better. The last bucket's drop is 0.

    Source: ``experiment/metrics.py`` of RaptorMai/online-continual-learning, 6175ca0, which its
    pull request 23 corrects.
    """
    return compute_mean(_compute_drops(matrix))


def forgetting_over_all_rows(matrix: AccuracyMatrix) -> Value:
    """Mean drop from the best of all rows, those before the bucket was trained included.

    Formula: mean over j < last of (max over i <= last of R[i, j]) - R[last, j]. Defined when
    k >= 2. Lower is better.

    Source: the line of `published/forgetting_with_last`, where future buckets are tested as well.
    """
    require_trained(matrix, 2, "a past bucket")
    past = select_columns(matrix, matrix.num_rows - 1)
    return compute_mean(past.max(axis=-2) - past[..., -1, :])


def forgetting_since_own_row(matrix: AccuracyMatrix) -> Value:
    """Mean drop of each earlier bucket since it was trained.

    Formula: mean over j < last of R[j, j] - R[last, j]. Defined when k >= 2. Lower is better. It is
    minus `renate/backward_transfer`.

    Source: KU-VGI/VIL, issue 1, and tmtuan1307/LANDER, issue 4, which ask for it; ``main.py`` of
    divyam3897/UCL (its issue 4).
    """
    return 0.0 - renate.backward_transfer(matrix)


def forgetting_over_steps(matrix: AccuracyMatrix) -> Value:
    """Mean forgetting after each bucket, the first one excluded.

    Formula: mean over 0 < i < k of (mean over j < i of (max over j <= h < i of R[h, j]) - R[i, j]).
    Defined when k >= 2. Lower is better.

    Source: ``AFC/train_incremental_afc.py`` of weiguoPian/AV-CIL_ICCV2023, 6dd105d.
    """
    require_trained(matrix, 2, "a past bucket")
    steps = range(2, matrix.num_rows + 1)
    by_step = [forgetting_since_trained(matrix.after(k)) for k in steps]
    return compute_mean(np.stack(by_step, axis=-1))


def weighted_forgetting(matrix: AccuracyMatrix) -> Value:
    """Mean drop since each bucket was trained, weighted with its test images.

    Formula: sum of n[j] ((max over j <= i < last of R[i, j]) - R[last, j]) / sum of n[j], over
    j < last. Defined when k >= 2 and the number of test images per bucket is known. Lower is
    better; in [-1, 1].

    Source: xialeiliu/GFR-IL, issue 7, which states the weighting without code.
    """
    drops = _compute_earlier_drops(matrix)
    return compute_mean(drops, get_test_counts(matrix, matrix.num_rows - 1))


def podnet_forgetting(matrix: AccuracyMatrix) -> Value:
    """Sum of the drops, minus the accuracy on the newest bucket, over k + 1.

    Formula: ((sum over j < last of (max over j <= i < last of R[i, j]) - R[last, j]) -
    R[last, last]) / (k + 1). Defined when k >= 2. Lower is better; in [-1, 1]. The newest bucket's
    earlier accuracy counts as 0, and the accuracy on all images as one more bucket.

    Source: ``inclearn/lib/metrics.py`` of arthurdouillard/incremental_learning.pytorch, 0738da5,
    if a bucket has ten classes.
    """
    drops, newest = _compute_earlier_drops(matrix), matrix.values[..., -1, matrix.num_rows - 1]
    return to_value((drops.sum(axis=-1) - newest) / (matrix.num_rows + 1))


def evoprompt_forgetting(matrix: AccuracyMatrix) -> Value:
    """Sum of the drops, minus the accuracy on the newest bucket, over k + 2.

    Formula: ((sum over j < last of (max over j <= i < last of R[i, j]) - R[last, j]) -
    R[last, last]) / (k + 2). Defined when k >= 2. Lower is better; in [-1, 1]. Compared with
    `published/podnet_forgetting`, the average accuracy counts as one more bucket.

    Source: ``inclearn/lib/metrics.py`` of MIV-XJTU/EvoPrompt, c5b4323 (its issue 2).
    """
    return podnet_forgetting(matrix) * (matrix.num_rows + 1) / (matrix.num_rows + 2)


def lander_forgetting(matrix: AccuracyMatrix) -> Value:
    """Mean of the best accuracy in each row, minus the last row's on the row's bucket.

    Formula: mean over i <= last of (max over j <= i of R[i, j]) - R[last, i]. Defined when k >= 1.
    Lower is better; in [-1, 1]. The maximum is over buckets, not over rows.

    Source: ``forgetting_calculator/forgetting_cal.py`` of tmtuan1307/LANDER, 44d7acc (its issue 4).
    """
    values = _select_triangle(matrix)
    return compute_mean(values.max(axis=-1) - values[..., -1, :])


def continuum_forgetting(matrix: AccuracyMatrix) -> Value:
    """Sum of the drops of all buckets except the last two, over k - 1.

    Formula: (sum over j < k - 2 of (max over j <= i < k - 2 of R[i, j]) - R[last, j]) / (k - 1).
    Defined when k >= 2. Lower is better. It is 0 after two buckets.

    Source: releases 1.2.4 to 1.2.7 of Continvvm/continuum (its issues 281 and 291), which
    arthurdouillard/dytox logs (its issue 12). `chaudhry/forgetting_since_trained` is its main
    branch, 43ba009.
    """
    require_trained(matrix, 2, "a past bucket")
    values, past = _select_triangle(matrix), matrix.num_rows - 2
    best = values[..., :past, :past].max(axis=-2, initial=-np.inf)
    return to_value((best - values[..., -1, :past]).sum(axis=-1) / (matrix.num_rows - 1))


def continuum_backward_transfer(matrix: AccuracyMatrix) -> Value:
    """Sum of the changes since a bucket was trained, over the number of all pairs.

    Formula: (sum over j < i - 1 and i < k of R[i, j] - R[j, j]) / (k (k - 1) / 2). Defined when
    k >= 2. It is 0 after two buckets, since the row after a bucket's own row is left out.

    Source: releases 1.2.4 to 1.2.7 of Continvvm/continuum, as for `published/continuum_forgetting`.
    Their forward transfer is `clear/backward_transfer`.
    """
    require_trained(matrix, 2, "a past bucket")
    values, k = _select_triangle(matrix), matrix.num_rows
    own_rows = np.diagonal(values, axis1=-2, axis2=-1)[..., np.newaxis, :]
    changes = np.tril(values - own_rows, -2)
    return to_value(changes.sum(axis=(-2, -1)) / (k * (k - 1) / 2))


def gem_backward_transfer(matrix: AccuracyMatrix) -> Value:
    """Sum of the changes of the earlier buckets since trained, over k instead of k - 1.

    Formula: (sum over j < last of R[last, j] - R[j, j]) / k. Defined when k >= 2.

    Source: ``metrics/metrics.py`` of facebookresearch/GradientEpisodicMemory, 34c6b8e.
    """
    return renate.backward_transfer(matrix) * (matrix.num_rows - 1) / matrix.num_rows


def incremental_accuracy_after_first(matrix: AccuracyMatrix) -> Value:
    """Mean of the mean accuracy on the buckets trained so far over all rows except the first.

    Formula: mean over 0 < i < k of (mean of R[i, j] over j <= i). Defined when k >= 2.

    Source: papers that exclude the base session; `icarl/average_incremental_accuracy` includes it.
    """
    require_trained(matrix, 2, "a second trained bucket")
    values, k = _select_triangle(matrix, fill=0.0), matrix.num_rows
    return compute_mean((values.sum(axis=-1) / np.arange(1, k + 1))[..., 1:])


def weighted_incremental_accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean over rows of the accuracy on all test images of the buckets trained so far.

    Formula: mean over i < k of (sum of n[j] R[i, j] / sum of n[j], over j <= i). Defined when
    k >= 1 and the number of test images per bucket is known.

    Source: the mean of "Weighted Average" in ``test.py`` of xialeiliu/GFR-IL, 4b33a69; "Average
    top1" in ``trainer.py`` of Estrella-fugaz/CVPR25-DUCT, ecfb579.
    """
    counts = get_test_counts(matrix, matrix.num_rows)
    values = _select_triangle(matrix, fill=0.0)
    return compute_mean((values * counts).sum(axis=-1) / counts.cumsum())


def old_accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy, at the end, on the buckets before the last.

    Formula: mean of R[last, j] over j < last. Defined when k >= 2.

    Source: papers that report old and new tasks apart. Their new accuracy is R[last, last].
    """
    require_trained(matrix, 2, "a past bucket")
    return compute_mean(select_row(matrix, -1, slice(matrix.num_rows - 1)))


def new_accuracy_after_first(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on each bucket when it was new, without the first.

    Formula: mean of R[i, i] over 0 < i < k. Defined when k >= 2.

    Source: papers that exclude the base session; `clear/in_domain_accuracy` includes it.
    """
    require_trained(matrix, 2, "a second trained bucket")
    diagonal = select_values(matrix, np.eye(matrix.num_rows, dtype=np.bool_))
    return compute_mean(diagonal[..., 1:])


def largest_forgetting(matrix: AccuracyMatrix) -> Value:
    """Largest drop of an earlier bucket from its best accuracy since trained.

    Formula: max over j < last of (max over j <= i < last of R[i, j]) - R[last, j]. Defined when
    k >= 2. Lower is better.

    Source: papers that report the worst task; `chaudhry/forgetting_since_trained` is the mean.
    """
    return to_value(_compute_earlier_drops(matrix).max(axis=-1))


def relative_forgetting(matrix: AccuracyMatrix) -> Value:
    """Mean share that each earlier bucket lost of its accuracy when it was new.

    Formula: mean over j < last of (R[j, j] - R[last, j]) / R[j, j]. Defined when k >= 2 and each
    R[j, j] is above 0. Lower is better.

    Source: papers that report forgetting in % of what was learned; one minus it is retention.
    """
    require_trained(matrix, 2, "a past bucket")
    own = select_past_diagonal(matrix)
    end = select_row(matrix, -1, slice(matrix.num_rows - 1))
    if not own.all(axis=-1).any():
        raise UndefinedMetricError("needs an accuracy above 0 on each new bucket")
    return compute_mean(1 - end / np.where(own > 0, own, np.nan))


def first_bucket_drop(matrix: AccuracyMatrix) -> Value:
    """Drop of the accuracy on the first bucket, from its own row to the last.

    Formula: R[0, 0] - R[last, 0]. Defined when k >= 2. Lower is better.

    Source: papers that report how much of task 1 is forgotten.
    """
    require_trained(matrix, 2, "a past bucket")
    return compute_mean(select_row(matrix, 0, slice(1)) - select_row(matrix, -1, slice(1)))


def average_drop(matrix: AccuracyMatrix) -> Value:
    """Drop of the average accuracy, from the first row to the last.

    Formula: R[0, 0] - (mean of R[last, j] over j <= last). Defined when k >= 2. Lower is better.

    Source: the performance dropping rate (PD) of few-shot class-incremental learning, Zhang et
    al., Continually Evolved Classifiers, CVPR 2021, if all buckets have as many test images.
    """
    require_trained(matrix, 2, "a second trained bucket")
    return compute_mean(select_row(matrix, 0, slice(1))) - renate.average_accuracy(matrix)


def weighted_average_drop(matrix: AccuracyMatrix) -> Value:
    """Drop of the accuracy on all test images so far, from the first row to the last.

    Formula: R[0, 0] - (sum of n[j] R[last, j] / sum of n[j], over j <= last). Defined when k >= 2
    and the number of test images per bucket is known. Lower is better.

    Source: as for `published/average_drop`, whose base session has more classes than the others.
    """
    require_trained(matrix, 2, "a second trained bucket")
    return compute_mean(select_row(matrix, 0, slice(1))) - renate.micro_average_accuracy(matrix)


def old_new_harmonic_mean(matrix: AccuracyMatrix) -> Value:
    """Harmonic mean, at the end, of the accuracies on old buckets and the new one.

    Formula: 2 O N / (O + N) with O the mean of R[last, j] over j < last and N = R[last, last].
    Defined when k >= 2. 0 if one of them is 0.

    Source: papers that report old, new and their harmonic mean.
    """
    return _compute_harmonic_mean(matrix, matrix.num_rows - 1)


def base_harmonic_mean(matrix: AccuracyMatrix) -> Value:
    """Harmonic mean, at the end, of the first bucket's accuracy and the others'.

    Formula: 2 B N / (B + N) with B = R[last, 0] and N the mean of R[last, j] over 0 < j <= last.
    Defined when k >= 2. 0 if one of them is 0.

    Source: papers on few-shot class-incremental learning that report base and novel classes, if
    all later buckets have as many test images.
    """
    return _compute_harmonic_mean(matrix, 1)


def _compute_harmonic_mean(matrix: AccuracyMatrix, num_old: int) -> Value:
    """Return the harmonic mean of means on old and new buckets."""
    require_trained(matrix, 2, "a past bucket")
    row = select_last_row(matrix)
    old, new = row[..., :num_old].mean(axis=-1), row[..., num_old:].mean(axis=-1)
    return to_value(2 * old * new / np.where(old + new > 0, old + new, 1))


def _select_triangle(matrix: AccuracyMatrix, fill: float = -np.inf) -> NDArray[np.float64]:
    """Return (..., k, k) values, and *fill* above the diagonal, or raise."""
    select_trained_values(matrix)
    k = matrix.num_rows
    return np.where(np.tri(k, dtype=np.bool_), matrix.values[..., :k], fill)


def _compute_drops(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return (..., k) drops from each bucket's best accuracy, at least 0."""
    require_trained(matrix, 2, "a past bucket")
    values = _select_triangle(matrix)
    drops: NDArray[np.float64] = values.max(axis=-2) - values[..., -1, :]
    return drops


def _compute_earlier_drops(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the earlier buckets' drops from their best previous accuracy."""
    require_trained(matrix, 2, "a past bucket")
    values = _select_triangle(matrix)[..., :-1]
    drops: NDArray[np.float64] = values[..., :-1, :].max(axis=-2) - values[..., -1, :]
    return drops


METRICS = (
    change(forgetting_with_last, higher_is_better=False),
    change(forgetting_of_all_buckets, higher_is_better=False),
    change(forgetting_over_all_rows, higher_is_better=False),
    change(forgetting_since_own_row, higher_is_better=False),
    change(forgetting_over_steps, higher_is_better=False),
    change(continuum_forgetting, higher_is_better=False),
    declare(weighted_forgetting, higher_is_better=False),
    declare(podnet_forgetting, higher_is_better=False),
    declare(evoprompt_forgetting, higher_is_better=False),
    declare(lander_forgetting, higher_is_better=False),
    change(continuum_backward_transfer),
    change(gem_backward_transfer),
    level(incremental_accuracy_after_first, "incremental_{score}_after_first"),
    declare(weighted_incremental_accuracy, sensitivity=1.0),
    level(old_accuracy, "old_{score}"),
    level(new_accuracy_after_first, "new_{score}_after_first"),
    change(largest_forgetting, higher_is_better=False),
    # 6 where R[j, j] is at least 0.5.
    declare(relative_forgetting, higher_is_better=False, sensitivity=6.0),
    change(first_bucket_drop, higher_is_better=False),
    change(average_drop, higher_is_better=False),
    declare(weighted_average_drop, higher_is_better=False),
    declare(old_new_harmonic_mean),
    declare(base_harmonic_mean),
)
