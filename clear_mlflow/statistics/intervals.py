"""Intervals from counts alone: what the number of test images lets a cell or a metric say.

They are about the test images: how far another draw of test images would have moved the numbers of
*these* models. They say nothing of another seed: see :mod:`clear_mlflow.statistics.seeds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import METRICS, Metric, explain, of_score
from clear_mlflow.statistics.correctness import CorrectMatrix, image_clusters
from clear_mlflow.statistics.linear_forms import LinearForm, all_cells, linear_forms


class Interval(NamedTuple):
    """Two ends, both belonging to it."""

    low: float
    high: float


def wilson_interval(
    correct: ArrayLike,
    total: ArrayLike,
    *,
    level: float = 0.95,
    design_effect: ArrayLike = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's score interval of a proportion; right also where every image was classified well.

    Args:
        correct: images classified correctly; any shape; NaN = not measured.
        total: images, at least 1; a shape that fits.
        level: of confidence, between 0 and 1.
        design_effect: how many times the variance of as many images each of its own: both counts
            are divided by it; a shape that fits. 1: each image is of its own.

    Returns:
        The lower and the upper ends, fractions from 0 to 1; NaN where nothing was measured.

    Raises:
        ConfigError: the level is not between 0 and 1.

    Source:
        Wilson 1927, Probable inference, the law of succession, and statistical inference;
        the same as ``scipy.stats.binomtest(k, n).proportion_ci(level, "wilson")``. With an
        effective sample size: Dean & Pagano 2015, Evaluating confidence interval methods for
        binomial proportions in clustered surveys, J. of Survey Statistics and Methodology 3.

    >>> low, high = wilson_interval(9, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.596, 0.982)
    """
    z = _normal_quantile(level)
    effect = np.asarray(design_effect, dtype=np.float64)
    hits = np.asarray(correct, dtype=np.float64) / effect
    n = np.asarray(total, dtype=np.float64) / effect
    centre = (hits + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(hits * (n - hits) / n + z**2 / 4)
    # Where none or all are correct, an end is exactly 0 or 1, which rounding must not pass.
    low = np.where(hits == 0, 0.0, np.clip(centre - half, 0.0, 1.0))
    high = np.where(hits == n, 1.0, np.clip(centre + half, 0.0, 1.0))
    return low, high


def cell_intervals(
    run: CorrectMatrix, *, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's interval of every cell of a run, which knows what images show the same thing.

    Clusters within a bucket make its images worth fewer: their number is divided by the design
    effect, the variance between clusters over that of as many images each of its own, at least 1.
    Where all images or none are right nothing varies, and whole clusters are taken to be right or
    wrong together: the effect is then the sum of squared cluster sizes over the number of images.

    Args:
        run: with at least one row.
        level: of confidence, between 0 and 1.

    Returns:
        The lower and the upper ends, each (k + 1, T); NaN where nothing was measured.

    Raises:
        ConfigError: the level is not between 0 and 1.

    Source:
        Kish 1965, Survey sampling, section 8.2, for the design effect; see also
        :func:`wilson_interval`.
    """
    cells = all_cells(run.matrix())
    totals = np.bincount(run.bucket, minlength=len(run.buckets))
    effects = np.ones(cells.shape)
    numbers = image_clusters(run)
    for j, n in enumerate(totals):
        here = run.bucket == j
        of_cluster = np.unique(numbers[here], return_inverse=True)[1]
        sizes = np.bincount(of_cluster)
        if len(sizes) == n:
            continue
        for row, right in zip(run.rows, run.right[:, here], strict=True):
            p = float(right.mean())
            if p in (0, 1) or len(sizes) == 1:
                effects[row, j] = (sizes**2).sum() / n
                continue
            apart = np.bincount(of_cluster, weights=right) - p * sizes
            between = len(sizes) / (len(sizes) - 1) * (apart**2).sum() / n**2
            effects[row, j] = max(1.0, between / (p * (1 - p) / (n - 1)))
    return wilson_interval(cells * totals, totals, level=level, design_effect=effects)


def metric_intervals(
    matrix: AccuracyMatrix,
    *,
    level: float = 0.95,
    protocol: str = "iid",
    metrics: Iterable[Metric] = METRICS,
    forms: Mapping[str, LinearForm] | None = None,
) -> dict[str, Interval]:
    """An interval for each metric that is a weighted sum of cells, from counts alone.

    Buckets have different test images, so columns are independent. The embedded digits are an
    exception: their buckets show some scans again, so only stored predictions give right intervals.
    The cells of one column are accuracies on the *same* images, and counts do not show how often
    two rows were right on the same ones. So the worst case counts: for cells of proportions p and
    q, the correlation of two yes-or-no answers is at most ``(min(p, q) - p q) / (s t)`` and at
    least ``(max(0, p + q - 1) - p q) / (s t)``, with ``s = sqrt(p (1 - p))`` and ``t`` alike
    (Fréchet's bounds); which one is worst follows from the signs of the two weights. Each cell has
    its Wilson interval, and the distances from estimate to end are put together as standard errors
    are (MOVER: Zou & Donner 2008), with these correlations. The interval is therefore wider than
    one from stored predictions, which know the correlations: see
    :func:`clear_mlflow.statistics.bootstrap_intervals`. It covers about as often as its level says
    or more, except for accuracies so close to 0 or 1 that fewer than five images are expected to be
    right, or wrong: there Wilson's own interval covers as little as 0.84 in place of 0.95, with any
    number of images.

    Args:
        matrix: with its test images per bucket.
        level: of confidence, between 0 and 1.
        protocol: ``iid`` or ``streaming``.
        metrics: to look at.
        forms: what :func:`linear_forms` gave for a matrix measured at the same cells, with the
            same counts; spares probing again where there are many.

    Returns:
        Metric name to interval. :func:`explain_intervals` says why others have none.

    Raises:
        ConfigError: the level or the protocol is none.

    Source:
        Zou & Donner 2008, Construction of confidence limits about effect measures, Statistics in
        Medicine 27; Fréchet 1951 for the bounds.

    >>> matrix = AccuracyMatrix([[0.9, 0.6], [0.8, 0.9]], num_instances=[100, 100])
    >>> low, high = metric_intervals(matrix)["clear/in_domain_accuracy"]
    >>> round(low, 3), round(high, 3)
    (0.847, 0.932)
    """
    check_level(level)
    if matrix.num_instances is None:
        matrix.masked(protocol)  # an unknown protocol is reported here, too
        return {}
    if forms is None:
        forms = linear_forms(matrix, protocol=protocol, metrics=metrics)
    cells, found = all_cells(matrix), {}
    for name, form in forms.items():
        below, above = _distances(cells, form.weights, matrix.num_instances, level)
        value = float(form(cells))
        found[name] = Interval(value - float(np.sqrt(below)), value + float(np.sqrt(above)))
    return found


def explain_intervals(
    matrix: AccuracyMatrix, *, protocol: str = "iid", metrics: Iterable[Metric] = METRICS
) -> dict[str, str]:
    """Why each metric that :func:`metric_intervals` leaves out has no interval from counts alone.

    Returns:
        Metric name to reason.

    >>> rows = [[0.9, 0.6, 0.5], [0.8, 0.9, 0.6], [0.7, 0.8, 0.9]]
    >>> matrix = AccuracyMatrix(rows, num_instances=[100, 100, 100])
    >>> explain_intervals(matrix)["renate/forgetting"]
    'is no weighted sum of cells: counts alone give no interval, stored predictions do'
    """
    metrics = of_score(metrics, matrix.score)
    undefined = explain(matrix, protocol, metrics)
    linear = linear_forms(matrix, protocol=protocol, metrics=metrics)
    reasons = {}
    for metric in metrics:
        if metric.name in undefined:
            reasons[metric.name] = undefined[metric.name]
        elif not matrix.score.is_accuracy:
            reasons[metric.name] = f"counts of test images say nothing of {matrix.score.name}"
        elif metric.name not in linear:
            reasons[metric.name] = (
                "is no weighted sum of cells: counts alone give no interval, stored predictions do"
            )
        elif matrix.num_instances is None:
            reasons[metric.name] = "needs test counts per bucket"
    return reasons


def difference_intervals(
    a: AccuracyMatrix,
    b: AccuracyMatrix,
    *,
    same_images: bool,
    level: float = 0.95,
    protocol: str = "iid",
    metrics: Iterable[Metric] = METRICS,
) -> dict[str, Interval]:
    """An interval of *a*'s metric minus *b*'s, for each that is a weighted sum, from counts alone.

    Args:
        a: with its test images per bucket.
        b: likewise, of the same stream.
        same_images: whether both were tested on the same images. Then nothing is known of how
            often both were right on the same ones, and the worst case counts, as in
            :func:`metric_intervals`; otherwise the two are independent.
        level: of confidence, between 0 and 1.
        protocol: ``iid`` or ``streaming``, of both.
        metrics: to look at.

    Returns:
        Metric name to interval; metrics that either matrix has no form of are not there, nor is
        any where counts are not known.

    Raises:
        ConfigError: the level or the protocol is none.
        RecordError: the test images are said to be the same, but their numbers are not.
    """
    check_level(level)
    metrics = tuple(metrics)
    first = linear_forms(a, protocol=protocol, metrics=metrics)
    second = linear_forms(b, protocol=protocol, metrics=metrics)
    if a.num_instances is None or b.num_instances is None:
        return {}
    if same_images and not np.array_equal(a.num_instances, b.num_instances):
        raise RecordError(
            f"the same test images are said to number {shown(a.num_instances.tolist())} and "
            f"{shown(b.num_instances.tolist())} per bucket; compare them as different images"
        )
    cells_a, cells_b, found = all_cells(a), all_cells(b), {}
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        if same_images:
            below, above = _distances(
                np.vstack([cells_a, cells_b]),
                np.vstack([one.weights, -other.weights]),
                a.num_instances,
                level,
            )
        else:
            down_a, up_a = _distances(cells_a, one.weights, a.num_instances, level)
            down_b, up_b = _distances(cells_b, -other.weights, b.num_instances, level)
            below, above = down_a + down_b, up_a + up_b
        value = float(one(cells_a) - other(cells_b))
        found[name] = Interval(value - float(np.sqrt(below)), value + float(np.sqrt(above)))
    return {metric.name: found[metric.name] for metric in metrics if metric.name in found}


def _distances(
    cells: NDArray[np.float64],
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    level: float,
) -> tuple[float, float]:
    """Squared distances from a weighted sum of cells to its lower and to its upper end.

    Args:
        cells: (r, T), fractions; rows of one column are of the same images.
        weights: (r, T).
        counts: (T,), test images.
        level: of confidence.
    """
    z = _normal_quantile(level)
    below = above = 0.0
    for j in range(cells.shape[1]):
        used = weights[:, j] != 0
        if not used.any():
            continue
        p, w, n = cells[used, j], weights[used, j], counts[j]
        hits = p * n
        low, high = wilson_interval(hits, n, level=level)
        down, up = w * (p - low), w * (high - p)
        positive = w > 0
        down, up = np.where(positive, down, -up), np.where(positive, up, -down)
        worst = _largest_correlations((hits + z**2 / 2) / (n + z**2), positive)
        below += float(down @ worst @ down)
        above += float(up @ worst @ up)
    return below, above


def _largest_correlations(
    p: NDArray[np.float64], positive: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(r, r): how much two cells can add to each other's error at most; 1 on the diagonal.

    Args:
        p: (r,), proportions strictly between 0 and 1: Wilson's centres, which always are.
        positive: (r,), the signs of the cells' weights.
    """
    product = p[:, np.newaxis] * p
    scale = np.sqrt(p * (1 - p))
    together = np.minimum(p[:, np.newaxis], p) - product
    apart = product - np.maximum(0.0, p[:, np.newaxis] + p - 1)
    same_sign = positive[:, np.newaxis] == positive
    worst: NDArray[np.float64] = np.where(same_sign, together, apart) / (
        scale[:, np.newaxis] * scale
    )
    return np.clip(worst, 0.0, 1.0)


def check_level(level: float) -> None:
    """Refuse a level of confidence that is none.

    Raises:
        ConfigError: it is not strictly between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(
            f"level is {shown(level)}; expected a fraction between 0 and 1, for example 0.95"
        )


def _normal_quantile(level: float) -> float:
    check_level(level)
    return float(ndtri(0.5 + level / 2))
