"""Tests over test images, where two runs answered the same ones: exact McNemar, and bootstrap.

Images that show the same thing, as one scan in several buckets, are one piece of evidence: a
cluster. Clusters are what is drawn again, and what agrees or disagrees. An image that is of no
cluster is one by itself.

They answer whether *these two trained models* differ on images of this kind. Whether the methods
behind them do takes several seeds: :mod:`clear_mlflow.statistics.seeds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom

from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.statistics.correctness import (
    CorrectMatrix,
    check_same_images,
    image_clusters,
)
from clear_mlflow.statistics.intervals import Interval, check_level
from clear_mlflow.statistics.linear_forms import KnownForms, all_cells, from_cells

# Image draws held at a time, 8 bytes each, whatever the number of images and resamples: they stay
# in a core's cache, and their products are small enough that BLAS does not hand them to threads,
# which took four times the CPU time at 10 buckets of 550 images.
_BLOCK = 1 << 16


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


@dataclass(frozen=True, eq=False)
class CellTests:
    """Exact McNemar in every cell; row 0 is the initialisation. NaN: not measured by both."""

    p_values: NDArray[np.float64]  # (k + 1, T), two-sided, not adjusted: see `holm`
    differences: NDArray[np.float64]  # (k + 1, T), accuracy of A minus accuracy of B
    only_a: NDArray[np.int64]  # (k + 1, T), images that only A got right; 0 where not measured
    only_b: NDArray[np.int64]


@dataclass(frozen=True)
class BootstrapTest:
    """A metric of two runs, over resampled test images."""

    metric: str
    a: float
    b: float
    difference: float  # a - b
    error: float  # standard error of the difference: its deviation over the resamples
    interval: Interval  # of the difference
    p_value: float  # two-sided
    smallest_p: float  # 2 / (resamples + 1): what p is where no resample disagrees
    n: int  # test images, of all buckets
    clusters: int  # of these images; n where each is of its own
    resamples: int  # those on which the metric is defined for both


def mcnemar_exact(
    hits_a: ArrayLike, hits_b: ArrayLike, cluster: ArrayLike | None = None
) -> PairedTest:
    """Do two models differ on the same images? Only images that exactly one got right matter.

    The two models' hits on a cluster's images are exchanged together: under the null the cluster's
    difference could as well have the other sign. With one image per cluster, this is McNemar's
    test.

    Args:
        hits_a: (n,), whether model A got each image right.
        hits_b: (n,), of model B, the same images in the same order.
        cluster: (n,), equal for images that show the same thing; None: each is of its own.

    Raises:
        RecordError: the two are not of the same images, or there is none.

    Source:
        McNemar 1947, in its exact form: the sign test, ``scipy.stats.binomtest`` with p = 1/2; of
        clusters, Fisher's sign-flip test of their differences (1935, section 21), all 2^C signs.

    >>> mcnemar_exact([True] * 9 + [False], [True] * 3 + [False] * 7).p_value
    0.03125
    """
    a, b = np.asarray(hits_a), np.asarray(hits_b)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0 or a.dtype != bool or b.dtype != bool:
        raise RecordError(
            f"hits of shapes {a.shape} and {b.shape} arrived, {a.dtype} and {b.dtype}; expected a "
            "truth value of each for every image, at least one"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    if cluster is None:
        p_value = float(_sign_test(np.array(only_a), np.array(only_b)))
    else:
        numbers = np.unique(np.asarray(cluster), return_inverse=True)[1]
        p_value = _sign_flip_test(np.bincount(numbers, a.astype(float) - b).astype(np.int64))
    return PairedTest(p_value=p_value, only_a=only_a, only_b=only_b, n=len(a))


def mcnemar_cells(a: CorrectMatrix, b: CorrectMatrix) -> CellTests:
    """Exact McNemar in every cell that both runs measured; of clusters, where images form any.

    Raises:
        RecordError: the runs were tested on different images.
    """
    check_same_images(a, b)
    width = len(a.buckets)
    totals = np.bincount(a.bucket, minlength=width)
    shape = (min(a.num_rows, b.num_rows) + 1, width)
    only_a, only_b = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    p_values = np.full(shape, np.nan)
    cluster = image_clusters(a, b)
    clustered = [
        j for j in range(width) if len(np.unique(cluster[a.bucket == j])) < totals[j]
    ]  # most often none: a cluster's images lie in different buckets
    for row in sorted(set(a.rows) & set(b.rows)):
        one, other = a.right[a.rows.index(row)], b.right[b.rows.index(row)]
        only_a[row] = np.bincount(a.bucket[one & ~other], minlength=width)
        only_b[row] = np.bincount(a.bucket[other & ~one], minlength=width)
        p_values[row] = np.where(totals > 0, _sign_test(only_a[row], only_b[row]), np.nan)
        for j in clustered:
            here = a.bucket == j
            p_values[row, j] = mcnemar_exact(one[here], other[here], cluster[here]).p_value
    with np.errstate(invalid="ignore"):
        differences = np.where(np.isnan(p_values), np.nan, (only_a - only_b) / totals)
    return CellTests(p_values, differences, only_a, only_b)


def paired_bootstrap(
    a: CorrectMatrix,
    b: CorrectMatrix,
    *,
    metrics: Sequence[Metric] = METRICS,
    protocol: str = "iid",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, BootstrapTest]:
    """Does a metric of two runs differ by more than another draw of test images would explain?

    Images are drawn with replacement within each bucket; one draw serves all rows of both runs, so
    what the rows and the runs have in common stays in common. Where images form clusters, whole
    clusters are drawn, and buckets that share any are drawn together. The interval is the
    percentile interval of the difference; p is twice the smaller share of resamples on one side of
    0, both counted with one added, so that it is never 0.

    Both runs are cut off after as many buckets as the shorter one was trained on.

    Args:
        a: hits of one run.
        b: of another one, on the same images.
        metrics: to look at; any function of the matrix.
        protocol: ``iid`` or ``streaming``.
        level: of confidence, between 0 and 1.
        resamples: how many draws of test images.
        seed: of the draws; the same seed gives the same result.

    Returns:
        Metric name to test; metrics that are not defined for both runs are not there.

    Raises:
        RecordError: the runs were tested on different images, or share no row's number.
        ConfigError: the level, the protocol or the number of resamples is none.

    Source:
        Efron & Tibshirani 1993, An introduction to the bootstrap, sections 13.3 and 16.4; Field &
        Welsh 2007, Bootstrapping clustered data, JRSS B 69: the randomized cluster bootstrap.
    """
    kept = ImageBootstrap(
        metrics=metrics, protocol=protocol, level=level, resamples=resamples, seed=seed
    )
    return kept.test(a, b)


def bootstrap_intervals(
    run: CorrectMatrix,
    *,
    metrics: Sequence[Metric] = METRICS,
    protocol: str = "iid",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """A percentile interval of each metric of one run, over resampled test images.

    Unlike :func:`metric_intervals` this knows which images several rows were right on, so it is
    narrower, and it takes any metric, forgetting included; it draws clusters of images as
    :func:`paired_bootstrap` does. A maximum of noisy numbers is biased
    upwards, and more so on resamples: an interval of forgetting leans that way.

    Returns:
        Metric name to interval; metrics that are not defined are not there.

    Raises:
        ConfigError: the level, the protocol or the number of resamples is none.
    """
    kept = ImageBootstrap(
        metrics=metrics, protocol=protocol, level=level, resamples=resamples, seed=seed
    )
    return kept.intervals(run)


class ImageBootstrap:
    """:func:`paired_bootstrap` and :func:`bootstrap_intervals` of many runs, each drawn once.

    The draws follow from the seed and from the test images alone, so a run gives the same values on
    them whoever it is compared with. These are kept: 8 bytes a metric and draw, of each run.

    Args:
        metrics: to look at; any function of the matrix.
        protocol: ``iid`` or ``streaming``, of all runs.
        level: of confidence, between 0 and 1.
        resamples: how many draws of test images.
        seed: of the draws.

    Raises:
        ConfigError: the level or the number of resamples is none.
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
        self._forms = KnownForms(metrics, protocol=protocol)
        # As long as a run is in here, no other one has its number.
        self._drawn: dict[tuple[int, int, bytes], tuple[CorrectMatrix, _Side]] = {}

    def test(self, a: CorrectMatrix, b: CorrectMatrix) -> dict[str, BootstrapTest]:
        """What :func:`paired_bootstrap` gives."""
        check_same_images(a, b)
        last, cluster = min(a.num_rows, b.num_rows), image_clusters(a, b)
        of_a, of_b = (self._side(run, last, cluster) for run in (a, b))
        found = {}
        for name, value_a in of_a.values.items():
            if name not in of_b.values:
                continue
            value_b = of_b.values[name]
            changes = of_a.drawn[name] - of_b.drawn[name]
            changes = changes[~np.isnan(changes)]
            if not len(changes):
                continue
            found[name] = BootstrapTest(
                metric=name,
                a=value_a,
                b=value_b,
                difference=value_a - value_b,
                error=float(changes.std()),
                interval=_percentiles(changes, self._level),
                p_value=_two_sided(changes),
                smallest_p=2 / (len(changes) + 1),
                n=len(a.bucket),
                clusters=int(cluster.max()) + 1,
                resamples=len(changes),
            )
        return found

    def intervals(self, run: CorrectMatrix) -> dict[str, Interval]:
        """What :func:`bootstrap_intervals` gives."""
        side, found = self._side(run, run.num_rows, image_clusters(run)), {}
        for name, drawn in side.drawn.items():
            defined = drawn[~np.isnan(drawn)]
            if len(defined):
                found[name] = _percentiles(defined, self._level)
        return found

    def _side(self, run: CorrectMatrix, last: int, cluster: NDArray[np.int64]) -> _Side:
        """A run, cut off after *last* buckets, on draws of these clusters."""
        key = id(run), last, cluster.tobytes()
        if key not in self._drawn:
            self._drawn[key] = run, self._draw(run.after(last), cluster)
        return self._drawn[key][1]

    def _draw(self, run: CorrectMatrix, cluster: NDArray[np.int64]) -> _Side:
        matrix = run.matrix()
        forms, values, drawn = self._forms.of(matrix), {}, {}
        cells = _resampled_cells(run, cluster, self._resamples, self._seed)
        for metric in self._metrics:
            value = self._value(metric, matrix)
            if value is None:
                continue
            values[metric.name] = value
            if form := forms.get(metric.name):
                drawn[metric.name] = form(cells)
                continue
            found = [self._value(metric, from_cells(some, matrix)) for some in cells]
            drawn[metric.name] = np.array([np.nan if v is None else v for v in found])
        return _Side(values, drawn)

    def _value(self, metric: Metric, matrix: AccuracyMatrix) -> float | None:
        try:
            return float(metric.function(matrix.masked(self._protocol)))
        except UndefinedMetricError:
            return None


@dataclass(frozen=True, eq=False)
class _Side:
    """One run in a bootstrap: the metrics that are defined on it."""

    values: dict[str, float]  # as measured
    drawn: dict[str, NDArray[np.float64]]  # (resamples,), on each draw; NaN = not defined


def _resampled_cells(
    run: CorrectMatrix, cluster: NDArray[np.int64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """(resamples, k + 1, T): the cells of a run on draws of clusters of images.

    How often a cluster was drawn is a weight; a bucket's cells on all draws are then one product of
    two matrices, (draws, clusters) by (clusters, rows), over the images drawn, in blocks of bounded
    size. A bucket of which a draw holds no image is NaN there.
    """
    draws = np.random.default_rng(seed)
    bucket = run.bucket
    # Whole numbers up to 2**24 are exact in single precision: the sums of weights are.
    right = run.right.T.astype(np.float32)
    found = np.full((resamples, *all_cells(run.matrix()).shape), np.nan)
    for together in _sharing_clusters(bucket, cluster, len(run.buckets)):
        drawn_from = np.unique(cluster[np.isin(bucket, together)])
        n, hits, images = len(drawn_from), {}, {}
        for j in together:
            of_cluster = np.searchsorted(drawn_from, cluster[bucket == j])
            images[j] = np.bincount(of_cluster, minlength=n).astype(np.float32)
            hits[j] = np.zeros((n, right.shape[1]), np.float32)
            np.add.at(hits[j], of_cluster, right[bucket == j])
        for start, count in _blocks(resamples, n):
            weights = np.bincount(
                (
                    draws.integers(0, n, size=(count, n), dtype=np.int64)
                    + n * np.arange(count)[:, np.newaxis]
                ).ravel(),
                minlength=count * n,
            )
            weights = weights.reshape(count, n).astype(np.float32)
            for j in together:
                correct = (weights @ hits[j]).astype(np.float64)
                total = (weights @ images[j]).astype(np.float64)[:, np.newaxis]
                shares = np.divide(
                    correct, total, out=np.full_like(correct, np.nan), where=total > 0
                )
                found[start : start + count, list(run.rows), j] = shares
    return found


def _sharing_clusters(
    bucket: NDArray[np.uint16], cluster: NDArray[np.int64], width: int
) -> Iterator[list[int]]:
    """Buckets with images, those together that share a cluster, if only by way of others."""
    counts = np.bincount(bucket, minlength=width)
    joined = coo_array(
        (np.ones(len(bucket)), (bucket, width + cluster)), shape=(width + len(bucket),) * 2
    )
    _, component = connected_components(joined, directed=False)
    for number in dict.fromkeys(component[:width].tolist()):
        if together := [j for j in range(width) if component[j] == number and counts[j]]:
            yield together


def _blocks(resamples: int, n: int) -> Iterator[tuple[int, int]]:
    size = max(1, _BLOCK // n)
    for start in range(0, resamples, size):
        yield start, min(size, resamples - start)


def _percentiles(drawn: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(float(low), float(high))


def _two_sided(changes: NDArray[np.float64]) -> float:
    # What is 0 but for rounding counts on both sides, as what is 0 does.
    below = int((changes <= 1e-12).sum()) + 1
    above = int((changes >= -1e-12).sum()) + 1
    return min(1.0, 2 * min(below, above) / (len(changes) + 1))


def _sign_test(only_a: NDArray[np.int64], only_b: NDArray[np.int64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.minimum(
        1.0, 2 * binom.cdf(np.minimum(only_a, only_b), only_a + only_b, 0.5)
    )
    return found


def _sign_flip_test(differences: NDArray[np.int64]) -> float:
    """Two-sided: how often signs drawn anew give a sum as far from 0, by the sum's distribution.

    Differences of one size v, m of them, add v (2 K - m) with K binomial; the sizes' distributions
    are convolved.
    """
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    chances = np.ones(1)  # of the sum of what was counted positive: (reached sum + all) / 2
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)
        spread[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, spread)
    sums = 2 * np.arange(len(chances)) - (len(chances) - 1)
    return min(1.0, float(chances[np.abs(sums) >= abs(int(differences.sum()))].sum()))
