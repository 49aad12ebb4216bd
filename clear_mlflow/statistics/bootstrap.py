"""Compare two trained models on the same test images: the paired bootstrap.

To compare the methods behind them takes several seeds: :mod:`clear_mlflow.statistics.seeds`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow, stack_cells
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import METRICS, Metric, Predictions, compute_values
from clear_mlflow.statistics.seeds import Interval, TTest, check_level

# Images drawn at a time, 8 bytes each. They stay in a core's cache, and their products are small
# enough that BLAS does not use threads, which took four times the CPU time at 10 buckets of 550
# images.
_MAX_DRAWN_IMAGES = 1 << 16
# Cells of resampled matrices at a time, 8 bytes each: 64 MB. Metrics compute fewer at once, which
# stay in a core's cache.
_MAX_CELLS, _MAX_STACKED_CELLS = 1 << 23, 1 << 17

_Values: TypeAlias = dict[str, float]
_Draws: TypeAlias = dict[str, NDArray[np.float64]]


class ImageBootstrap:
    """Tests whether a difference exceeds what other test images would explain.

    Images are drawn with replacement within each bucket. All rows of all runs use the same draws,
    so correlated errors of rows and of runs stay correlated. A maximum of noisy numbers is biased
    upwards, and more so on resamples: an interval of forgetting leans upwards.

    The draws depend only on the seed and on the test images, so the values of a run do not depend
    on the other runs. They are cached: 8 bytes per metric and draw, for each run.

    Args:
        metrics: metrics to compare; any functions of the matrix.
        level: confidence level, between 0 and 1.
        resamples: number of draws of test images.
        seed: seed of the draws.

    Raises:
        ConfigError: the level is not between 0 and 1, or resamples is below 1.

    Source:
        Efron & Tibshirani 1993, An introduction to the bootstrap, sections 13.3 and 16.4.
    """

    def __init__(
        self,
        *,
        metrics: Sequence[Metric] = METRICS,
        level: float = 0.95,
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        check_level(level)
        if resamples < 1:
            raise ConfigError(
                f"resamples is {safe_repr(resamples)}; expected a number of at least 1"
            )
        self._metrics = tuple(metrics)
        self._level = level
        self._resamples = resamples
        self._seed = seed
        # Values on all images, and (resamples,) values on draws, NaN if not defined, by metric. The
        # run is stored as well: its id() stays unique as long as it exists.
        self._cache: dict[tuple[int, int], tuple[Predictions, _Values, _Draws]] = {}

    def test(self, a: Predictions, b: Predictions) -> dict[str, TTest]:
        """Test the difference of each metric that both runs define.

        Only the buckets count that both runs were trained on. The standard error is the standard
        deviation over the draws, and the distribution is normal: t with infinite degrees of
        freedom. Metrics that no draw changes are left out.

        Raises:
            RecordError: the runs were tested on different images, or no row is left.
        """
        if a.images.digest != b.images.digest:
            raise RecordError(
                f"the runs were tested on different images ({a.images.digest[:24]}... and "
                f"{b.images.digest[:24]}...) and cannot be paired; re-test one of them"
            )
        last_row, num_images = min(max(a.rows), max(b.rows)), len(a.images)
        (values_a, draws_a), (values_b, draws_b) = (self._resample(run, last_row) for run in (a, b))
        tests = {}
        for name in (metric.name for metric in self._metrics):
            if name in values_a and name in values_b:
                changes = draws_a[name] - draws_b[name]
                error = float(changes[~np.isnan(changes)].std()) if len(changes) else 0.0
                if error > 0:
                    difference = values_a[name] - values_b[name]
                    tests[name] = TTest(
                        difference, error, math.inf, num_images, num_images, paired=True
                    )
        return tests

    def intervals(self, run: Predictions) -> dict[str, Interval]:
        """Return a percentile interval of each metric that a run defines."""
        intervals = {}
        for name, draws in self._resample(run, max(run.rows))[1].items():
            defined = draws[~np.isnan(draws)]
            if len(defined):
                low, high = np.quantile(defined, [0.5 - self._level / 2, 0.5 + self._level / 2])
                intervals[name] = Interval(float(low), float(high))
        return intervals

    def _resample(self, run: Predictions, last_row: int) -> tuple[_Values, _Draws]:
        """Return a run's metrics up to a row on all draws."""
        key = id(run), last_row
        if key not in self._cache:
            truncated, images = run.after(last_row), run.images
            matrix = AccuracyMatrix.from_rows(
                AccuracyRow(row, images.buckets, labels.count_correct(images), images.num_instances)
                for row, labels in truncated.rows.items()
            )
            values = compute_values(matrix.mask(run.protocol), self._metrics)[0]
            metrics = [metric for metric in self._metrics if metric.name in values]
            blocks = defaultdict[str, list[NDArray[np.float64]]](list)
            for cells in _resample_cells(truncated, self._resamples, self._seed):
                stack = stack_cells(matrix, cells).mask(run.protocol)
                for metric in metrics:
                    blocks[metric.name].append(metric.compute_stack(stack))
            draws = {name: np.concatenate(values) for name, values in blocks.items()}
            self._cache[key] = run, values, draws
        return self._cache[key][1:]


def _resample_cells(run: Predictions, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield (n, k + 1, T) cells of draws, NaN without images."""
    images, rows = run.images, list(run.rows)
    # Sums of weights are integers below 2**24, which are exact in single precision.
    is_correct = np.stack([run.rows[row].find_hits(images) for row in rows], axis=1).astype(
        np.float32
    )
    hits_by_bucket = {j: is_correct[images.bucket == j] for j in np.unique(images.bucket).tolist()}
    shape = rows[-1] + 1, len(images.buckets)
    block_size = max(1, _MAX_CELLS // (shape[0] * shape[1]))
    # A random stream serves one bucket after the other. So that blocks need not contain all draws
    # of a bucket, each bucket gets the stream as it is where its draws begin.
    generator, generators = np.random.default_rng(seed), {}
    for j, hits in hits_by_bucket.items():
        generators[j] = deepcopy(generator)
        if block_size < resamples:
            for count in _split_into_blocks(resamples, len(hits)):
                _draw_images(generator, count, len(hits))
        else:
            generators[j] = generator
    for first in range(0, resamples, block_size):
        cells = np.full((min(block_size, resamples - first), *shape), np.nan)
        for j, hits in hits_by_bucket.items():
            num_images, start = len(hits), 0
            for count in _split_into_blocks(len(cells), num_images):
                chosen = _draw_images(generators[j], count, num_images)
                chosen += num_images * np.arange(count)[:, np.newaxis]
                weights = np.bincount(chosen.ravel(), minlength=count * num_images)
                correct = weights.reshape(count, num_images).astype(np.float32) @ hits
                cells[start : start + count, rows, j] = correct.astype(np.float64) / num_images
                start += count
        yield from np.array_split(cells, math.ceil(cells.size / _MAX_STACKED_CELLS))


def _split_into_blocks(resamples: int, num_images: int) -> Iterator[int]:
    size = max(1, _MAX_DRAWN_IMAGES // num_images)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)


def _draw_images(
    generator: np.random.Generator, resamples: int, num_images: int
) -> NDArray[np.int64]:
    """Return (resamples, num_images) indices of images, drawn with replacement."""
    return generator.integers(0, num_images, size=(resamples, num_images), dtype=np.int64)
