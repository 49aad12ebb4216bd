"""Two trained models on the same test images: the paired bootstrap.

Whether the methods behind them differ takes several seeds: :mod:`clear_mlflow.statistics.seeds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import METRICS, Metric, Predictions, compute_values
from clear_mlflow.statistics.intervals import Interval, check_level
from clear_mlflow.statistics.seeds import TTest

# Image draws held at a time, 8 bytes each, whatever the number of images and resamples: they stay
# in a core's cache, and their products are small enough that BLAS does not hand them to threads,
# which took four times the CPU time at 10 buckets of 550 images.
_BLOCK = 1 << 16


class ImageBootstrap:
    """Does a metric of runs move by more than another draw of test images would explain?

    Images are drawn with replacement within each bucket; one draw serves all rows of all runs, so
    what the rows and the runs have in common stays in common. A maximum of noisy numbers is biased
    upwards, and more so on resamples: an interval of forgetting leans that way.

    The draws follow from the seed and from the test images alone, so a run gives the same values on
    them whatever it is compared with. These are kept: 8 bytes a metric and draw, of each run.

    Args:
        metrics: to look at; any function of the matrix.
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
        # As long as a run is in here, no other one has its number.
        self._drawn: dict[tuple[int, int], tuple[Predictions, _Side]] = {}

    def test(self, a: Predictions, b: Predictions) -> dict[str, TTest]:
        """The difference of each metric that is defined for both runs, by the metric's name.

        Both runs are cut off after as many buckets as the shorter one was trained on. The error is
        the deviation over the draws, and the distribution normal: t with infinite freedom. A metric
        that no draw changes is not there.

        Raises:
            RecordError: the runs were tested on different images, or share no row's number.
        """
        _check_same_images(a, b)
        last, n = min(max(a.rows), max(b.rows)), len(a.images)
        of_a, of_b = (self._side(run, last) for run in (a, b))
        found = {}
        for metric in self._metrics:
            if (name := metric.name) in of_a.values and name in of_b.values:
                changes = of_a.drawn[name] - of_b.drawn[name]
                error = float(changes[~np.isnan(changes)].std()) if len(changes) else 0.0
                if error > 0:
                    difference = of_a.values[name] - of_b.values[name]
                    found[name] = TTest(difference, error, math.inf, n, n, paired=True)
        return found

    def intervals(self, run: Predictions) -> dict[str, Interval]:
        """A percentile interval of each metric that is defined for one run, by its name."""
        side, found = self._side(run, max(run.rows)), {}
        for name, drawn in side.drawn.items():
            defined = drawn[~np.isnan(drawn)]
            if len(defined):
                low, high = np.quantile(defined, [0.5 - self._level / 2, 0.5 + self._level / 2])
                found[name] = Interval(float(low), float(high))
        return found

    def _side(self, run: Predictions, last: int) -> _Side:
        """A run, cut off after *last* buckets, on draws of its images."""
        key = id(run), last
        if key not in self._drawn:
            cut, images = run.after(last), run.images
            matrix = AccuracyMatrix.from_rows(
                AccuracyRow(row, images.buckets, answer.correct(images), images.num_instances)
                for row, answer in cut.rows.items()
            )
            values = compute_values(matrix.mask(run.protocol), self._metrics)[0]
            metrics = [metric for metric in self._metrics if metric.name in values]
            drawn = {name: np.full(self._resamples, np.nan) for name in values}
            for i, cells in enumerate(_resampled_cells(cut, self._resamples, self._seed)):
                on_draw = AccuracyMatrix(cells[1:], cells[0], matrix.num_instances, matrix.buckets)
                for name, value in compute_values(on_draw.mask(run.protocol), metrics)[0].items():
                    drawn[name][i] = value
            self._drawn[key] = run, _Side(values, drawn)
        return self._drawn[key][1]


@dataclass(frozen=True, eq=False)
class _Side:
    """One run in a bootstrap: the metrics that are defined on it."""

    values: dict[str, float]  # as measured
    drawn: dict[str, NDArray[np.float64]]  # (resamples,), on each draw; NaN = not defined


def _resampled_cells(run: Predictions, resamples: int, seed: int) -> NDArray[np.float64]:
    """(resamples, k + 1, T): cells on draws of images, which are weights; NaN: no image."""
    draws, images = np.random.default_rng(seed), run.images
    rows = list(run.rows)
    # Whole numbers up to 2**24 are exact in single precision: the sums of weights are.
    right = np.stack([run.rows[row].hits(images) for row in rows], axis=1).astype(np.float32)
    found = np.full((resamples, rows[-1] + 1, len(images.buckets)), np.nan)
    for j in np.unique(images.bucket).tolist():
        hits = right[images.bucket == j]
        n = len(hits)
        size = max(1, _BLOCK // n)
        for start in range(0, resamples, size):
            count = min(size, resamples - start)
            chosen = draws.integers(0, n, size=(count, n), dtype=np.int64)
            chosen += n * np.arange(count)[:, np.newaxis]
            weights = np.bincount(chosen.ravel(), minlength=count * n)
            correct = weights.reshape(count, n).astype(np.float32) @ hits
            found[start : start + count, rows, j] = correct.astype(np.float64) / n
    return found


def _check_same_images(a: Predictions, b: Predictions) -> None:
    one, other = a.images.digest, b.images.digest
    if one != other:
        raise RecordError(
            f"the runs were tested on different images ({one[:24]}... and {other[:24]}...) and "
            "cannot be paired; re-test one of them"
        )
