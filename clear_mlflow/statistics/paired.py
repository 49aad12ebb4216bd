"""Tests over test images, where two runs answered the same ones: exact McNemar, and bootstrap.

They answer whether *these two trained models* differ on images of this kind. Whether the methods
behind them do takes several seeds: :mod:`clear_mlflow.statistics.seeds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from clear_mlflow.core.errors import ClearError, ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.statistics.correctness import CorrectMatrix, check_same_images
from clear_mlflow.statistics.intervals import Interval, check_level

# Image draws held at a time, 8 bytes each, whatever the number of images and resamples: they stay
# in a core's cache, and their products are small enough that BLAS does not hand them to threads,
# which took four times the CPU time at 10 buckets of 550 images.
_BLOCK = 1 << 16
_CHECKS = 3  # random matrices on which a weighted sum has to agree with its metric
_TOLERANCE = 1e-9  # rounding is 1e-15; a maximum is off by 1e-3 and more


@dataclass(frozen=True)
class PairedTest:
    """Exact McNemar on one set of images."""

    p_value: float  # two-sided
    only_a: int  # images that only A got right
    only_b: int
    n: int  # images

    @property
    def difference(self) -> float:
        """Accuracy of A minus accuracy of B."""
        return (self.only_a - self.only_b) / self.n


@dataclass(frozen=True)
class BootstrapTest:
    """A metric of two runs, over resampled test images."""

    a: float
    b: float
    difference: float  # a - b
    error: float  # standard error of the difference: its deviation over the resamples
    interval: Interval  # of the difference, from percentiles
    p_value: float  # two-sided; at least 2 / (resamples + 1)
    n: int  # test images, of all buckets
    resamples: int  # those on which the metric is defined for both


def mcnemar_exact(hits_a: ArrayLike, hits_b: ArrayLike) -> PairedTest:
    """Do two models differ on the same images? Only images that exactly one got right matter.

    Args:
        hits_a: (n,), whether model A got each image right.
        hits_b: (n,), of model B, the same images in the same order.

    Raises:
        RecordError: the two are not of the same images, or there is none.

    Source:
        McNemar 1947, in its exact form: the sign test, ``scipy.stats.binomtest`` with p = 1/2.

    >>> round(mcnemar_exact([True] * 9 + [False], [True] * 3 + [False] * 7).p_value, 6)
    0.03125
    """
    a, b = np.asarray(hits_a), np.asarray(hits_b)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0 or a.dtype != bool or b.dtype != bool:
        raise RecordError(
            f"hits of shapes {a.shape} and {b.shape} arrived, {a.dtype} and {b.dtype}; expected a "
            "truth value of each for every image, at least one"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    p_value = float(_sign_test(np.array(only_a), np.array(only_b)))
    return PairedTest(p_value=p_value, only_a=only_a, only_b=only_b, n=len(a))


def mcnemar_cells(a: CorrectMatrix, b: CorrectMatrix) -> NDArray[np.float64]:
    """Exact McNemar in every cell that both runs measured.

    Returns:
        (k + 1, T), two-sided p-values, not adjusted (see :func:`holm`); row 0 is the
        initialisation; NaN: not measured by both.

    Raises:
        RecordError: the runs were tested on different images.
    """
    check_same_images(a, b)
    width = len(a.buckets)
    found = np.full((min(a.num_rows, b.num_rows) + 1, width), np.nan)
    here = np.unique(a.bucket)
    for row in sorted(set(a.rows) & set(b.rows)):
        one, other = a.right[a.rows.index(row)], b.right[b.rows.index(row)]
        only_a, only_b = (
            np.bincount(a.bucket[alone], minlength=width)[here]
            for alone in (one & ~other, other & ~one)
        )
        found[row, here] = _sign_test(only_a, only_b)
    return found


class ImageBootstrap:
    """Does a metric of runs move by more than another draw of test images would explain?

    Images are drawn with replacement within each bucket; one draw serves all rows of all runs, so
    what the rows and the runs have in common stays in common. A maximum of noisy numbers is biased
    upwards, and more so on resamples: an interval of forgetting leans that way.

    The draws follow from the seed and from the test images alone, so a run gives the same values on
    them whatever it is compared with. These are kept: 8 bytes a metric and draw, of each run.

    Args:
        metrics: to look at; any function of the matrix.
        protocol: ``iid`` or ``streaming``, of all runs.
        level: of confidence, between 0 and 1.
        resamples: how many draws of test images.
        seed: of the draws.

    Raises:
        ConfigError: the level is not between 0 and 1, or there is no resample.

    Source:
        Efron & Tibshirani 1993, An introduction to the bootstrap, sections 13.3 and 16.4.
    """

    def __init__(
        self,
        *,
        metrics: Sequence[Metric] = METRICS,
        protocol: str = "iid",
        level: float = 0.95,
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        check_level(level)
        if resamples < 1:
            raise ConfigError(f"resamples is {shown(resamples)}; expected a number of at least 1")
        self._metrics = tuple(metrics)
        self._protocol = protocol
        self._level = level
        self._resamples = resamples
        self._seed = seed
        self._sums: dict[object, dict[str, tuple[float, NDArray[np.float64]]]] = {}
        # As long as a run is in here, no other one has its number.
        self._drawn: dict[tuple[int, int], tuple[CorrectMatrix, _Side]] = {}

    def test(self, a: CorrectMatrix, b: CorrectMatrix) -> dict[str, BootstrapTest]:
        """The difference of each metric that is defined for both runs, by the metric's name.

        Both runs are cut off after as many buckets as the shorter one was trained on. The interval
        is the percentile interval of the difference; p is twice the smaller share of resamples on
        one side of 0, both counted with one added, so that it is never 0.

        Raises:
            RecordError: the runs were tested on different images, or share no row's number.
            ConfigError: the protocol is unknown.
        """
        check_same_images(a, b)
        last = min(a.num_rows, b.num_rows)
        of_a, of_b = (self._side(run, last) for run in (a, b))
        found = {}
        for name in of_a.values.keys() & of_b.values.keys():
            changes = of_a.drawn[name] - of_b.drawn[name]
            changes = changes[~np.isnan(changes)]
            if not len(changes):
                continue
            # What is 0 but for rounding counts on both sides, as what is 0 does.
            below, above = int((changes <= 1e-12).sum()), int((changes >= -1e-12).sum())
            found[name] = BootstrapTest(
                a=of_a.values[name],
                b=of_b.values[name],
                difference=of_a.values[name] - of_b.values[name],
                error=float(changes.std()),
                interval=_percentiles(changes, self._level),
                p_value=min(1.0, 2 * (min(below, above) + 1) / (len(changes) + 1)),
                n=len(a.bucket),
                resamples=len(changes),
            )
        return {metric.name: found[metric.name] for metric in self._metrics if metric.name in found}

    def intervals(self, run: CorrectMatrix) -> dict[str, Interval]:
        """A percentile interval of each metric that is defined for one run, by its name.

        Raises:
            ConfigError: the protocol is unknown.
        """
        side, found = self._side(run, run.num_rows), {}
        for name, drawn in side.drawn.items():
            defined = drawn[~np.isnan(drawn)]
            if len(defined):
                found[name] = _percentiles(defined, self._level)
        return found

    def _side(self, run: CorrectMatrix, last: int) -> _Side:
        """A run, cut off after *last* buckets, on draws of its images."""
        key = id(run), last
        if key not in self._drawn:
            cut = run.after(last)
            matrix, values, drawn = cut.matrix(), {}, {}
            sums = self._weighted_sums(matrix)
            cells = _resampled_cells(cut, self._resamples, self._seed)
            for metric in self._metrics:
                value = self._value(metric, matrix)
                if value is None:
                    continue
                values[metric.name] = value
                if metric.name in sums:
                    constant, weights = sums[metric.name]
                    used = weights != 0
                    drawn[metric.name] = constant + cells[..., used] @ weights[used]
                    continue
                found = [self._value(metric, _with_cells(some, matrix)) for some in cells]
                drawn[metric.name] = np.array([np.nan if v is None else v for v in found])
            self._drawn[key] = run, _Side(values, drawn)
        return self._drawn[key][1]

    def _value(self, metric: Metric, matrix: AccuracyMatrix) -> float | None:
        try:
            return float(metric.function(matrix.masked(self._protocol)))
        except UndefinedMetricError:
            return None

    def _weighted_sums(
        self, matrix: AccuracyMatrix
    ) -> Mapping[str, tuple[float, NDArray[np.float64]]]:
        """The metrics that are ``constant + sum of weights * cells``, weights (k + 1, T), by name.

        On 2,000 draws such a metric is one product of matrices. Nothing is declared: a metric is
        evaluated on matrices that differ in one cell, and what that gives is checked on random
        ones. Matrices measured at the same cells are probed once.
        """
        cells = whole_grid(matrix)[: matrix.num_rows + 1]
        counts = matrix.num_instances
        key = np.isnan(cells).tobytes(), None if counts is None else (*counts,), matrix.buckets
        if key in self._sums:
            return self._sums[key]
        where = np.argwhere(~np.isnan(cells))
        middle, draws = np.where(np.isnan(cells), np.nan, 0.5), np.random.default_rng(0)
        probes = np.repeat(middle[np.newaxis], 1 + len(where) + _CHECKS, axis=0)
        probes[1 + np.arange(len(where)), where[:, 0], where[:, 1]] = 1.0
        probes[-_CHECKS:] *= draws.random((_CHECKS, *cells.shape))
        matrices = [_with_cells(one, matrix).masked(self._protocol) for one in probes]
        found = self._sums[key] = {}
        for metric in self._metrics:
            try:
                values = np.array([metric.function(one) for one in matrices], dtype=np.float64)
            except ClearError:
                continue
            weights = np.zeros(cells.shape)
            weights[tuple(where.T)] = (values[1:-_CHECKS] - values[0]) / 0.5
            weights[np.abs(weights) < _TOLERANCE] = 0.0
            constant = float(values[0] - 0.5 * weights.sum())
            stated = constant + (np.nan_to_num(probes[-_CHECKS:]) * weights).sum(axis=(1, 2))
            # NaN, which a function of a user's may give, agrees with nothing.
            if bool((np.abs(stated - values[-_CHECKS:]) < _TOLERANCE).all()):
                found[metric.name] = constant, weights
        return found


@dataclass(frozen=True, eq=False)
class _Side:
    """One run in a bootstrap: the metrics that are defined on it."""

    values: dict[str, float]  # as measured
    drawn: dict[str, NDArray[np.float64]]  # (resamples,), on each draw; NaN = not defined


def _with_cells(cells: NDArray[np.float64], like: AccuracyMatrix) -> AccuracyMatrix:
    """(k + 1, T) cells with the keys and counts of a matrix."""
    return AccuracyMatrix(cells[1:], cells[0], like.num_instances, like.buckets)


def _resampled_cells(run: CorrectMatrix, resamples: int, seed: int) -> NDArray[np.float64]:
    """(resamples, k + 1, T): the cells of a run on draws of its images; NaN without images.

    How often an image was drawn is a weight: a bucket's cells on all draws are a matrix product.
    """
    draws = np.random.default_rng(seed)
    # Whole numbers up to 2**24 are exact in single precision: the sums of weights are.
    right = run.right.T.astype(np.float32)
    found = np.full((resamples, run.num_rows + 1, len(run.buckets)), np.nan)
    for j in np.unique(run.bucket).tolist():
        hits = right[run.bucket == j]
        n = len(hits)
        size = max(1, _BLOCK // n)
        for start in range(0, resamples, size):
            count = min(size, resamples - start)
            chosen = draws.integers(0, n, size=(count, n), dtype=np.int64)
            chosen += n * np.arange(count)[:, np.newaxis]
            weights = np.bincount(chosen.ravel(), minlength=count * n)
            correct = weights.reshape(count, n).astype(np.float32) @ hits
            found[start : start + count, list(run.rows), j] = correct.astype(np.float64) / n
    return found


def _percentiles(drawn: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(float(low), float(high))


def _sign_test(only_a: NDArray[np.integer], only_b: NDArray[np.integer]) -> NDArray[np.float64]:
    """Two-sided p of each pair of counts, under p = 1/2."""
    p: NDArray[np.float64] = binom.cdf(np.minimum(only_a, only_b), only_a + only_b, 0.5)
    return np.minimum(1.0, 2 * p)
