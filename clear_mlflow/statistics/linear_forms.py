"""Which metrics are weighted sums of the matrix's cells, and with which weights: found by probing.

Nothing is declared: a metric is evaluated on matrices that differ in one cell, and what that gives
is checked on random ones. So a user's own metric is recognised as linear, or as not, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import METRICS, Metric

_CHECKS = 3  # random matrices on which a form has to agree with its metric
_TOLERANCE = 1e-9  # rounding is 1e-15; a maximum is off by 1e-3 and more


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A metric as ``constant + sum of weights * cells``.

    Args:
        constant: the value when every accuracy is 0.
        weights: (k + 1, T); row 0 is the initialisation row. 0 where the metric does not look.
    """

    constant: float
    weights: NDArray[np.float64]

    def __call__(self, cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """The metric of one or many matrices.

        Args:
            cells: (..., k + 1, T), fractions, as :func:`all_cells` gives them.

        Returns:
            (...,)
        """
        used = self.weights != 0
        found: NDArray[np.float64] = self.constant + cells[..., used] @ self.weights[used]
        return found


def all_cells(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(k + 1, T): the initialisation row, NaN where it is not known, above the matrix's rows."""
    first = np.full(matrix.num_buckets, np.nan) if matrix.initial is None else matrix.initial
    return np.vstack([first, matrix.values])


def from_cells(cells: NDArray[np.float64], like: AccuracyMatrix) -> AccuracyMatrix:
    """The reverse of :func:`all_cells`, with the keys and counts of another matrix."""
    return AccuracyMatrix(cells[1:], cells[0], like.num_instances, like.buckets)


def linear_forms(
    matrix: AccuracyMatrix, *, protocol: str = "iid", metrics: Iterable[Metric] = METRICS
) -> dict[str, LinearForm]:
    """The metrics that are weighted sums of the cells, for all matrices measured where this one is.

    Args:
        matrix: says which cells were measured, and the test images per bucket; its accuracies do
            not matter, except that a metric has to be defined on it.
        protocol: cells that are no evidence under it get no weight.
        metrics: to look at.

    Returns:
        Metric name to form. A metric that is not defined on the matrix is not there, nor is one
        that is no weighted sum, as Renate's forgetting, which takes a maximum (of one row it is
        that row: with two rows in all, forgetting is a weighted sum, too). None where the
        score is no accuracy: its cells are no shares of test images.

    Raises:
        ConfigError: the protocol is unknown.

    >>> forms = linear_forms(AccuracyMatrix([[0.9, 0.6, 0.5], [0.8, 0.9, 0.6], [0.7, 0.8, 0.9]]))
    >>> forms["renate/backward_transfer"].weights.tolist()
    [[0.0, 0.0, 0.0], [-0.5, 0.0, 0.0], [0.0, -0.5, 0.0], [0.5, 0.5, 0.0]]
    >>> "renate/forgetting" in forms
    False
    """
    return KnownForms(metrics, protocol=protocol).of(matrix)


class KnownForms:
    """:func:`linear_forms` of many matrices: those measured at the same cells are probed once.

    Args:
        metrics: to look at.
        protocol: cells that are no evidence under it get no weight.
    """

    def __init__(self, metrics: Iterable[Metric] = METRICS, *, protocol: str = "iid") -> None:
        self._metrics = tuple(metrics)
        self._protocol = protocol
        self._known: dict[object, dict[str, LinearForm]] = {}

    def of(self, matrix: AccuracyMatrix) -> dict[str, LinearForm]:
        """The metrics that are defined on a matrix of accuracies and weighted sums of its cells."""
        if not matrix.score.is_accuracy:
            return {}
        cells = all_cells(matrix)
        counts = matrix.num_instances
        alike = (
            cells.shape,
            np.isnan(cells).tobytes(),
            None if counts is None else counts.tobytes(),
            matrix.buckets,
        )
        if alike not in self._known:
            self._known[alike] = self._probe(matrix, cells)
        known, evidence, found = self._known[alike], matrix.masked(self._protocol), {}
        for metric in self._metrics:
            if metric.name in known:
                # Of two matrices measured at the same cells, a metric may be defined on one.
                with suppress(ClearError):
                    metric.function(evidence)
                    found[metric.name] = known[metric.name]
        return found

    def _probe(self, matrix: AccuracyMatrix, cells: NDArray[np.float64]) -> dict[str, LinearForm]:
        where = np.argwhere(~np.isnan(cells))
        middle = np.where(np.isnan(cells), np.nan, 0.5)
        probes = [middle]
        for i, j in where:
            probe = middle.copy()
            probe[i, j] = 1.0
            probes.append(probe)
        draws = np.random.default_rng(0)
        checks = [
            np.where(np.isnan(cells), np.nan, draws.random(cells.shape)) for _ in range(_CHECKS)
        ]
        masked = [from_cells(probe, matrix).masked(self._protocol) for probe in [*probes, *checks]]

        forms = {}
        for metric in self._metrics:
            try:
                found = np.array([metric.function(probe) for probe in masked], dtype=np.float64)
            except ClearError:
                continue
            weights = np.zeros(cells.shape)
            slopes = (found[1 : len(probes)] - found[0]) / 0.5
            weights[tuple(where.T)] = np.where(np.abs(slopes) < _TOLERANCE, 0.0, slopes)
            form = LinearForm(float(found[0] - 0.5 * weights.sum()), weights)
            stated = np.array([form(check) for check in checks])
            # NaN, which a function of a user's may give, agrees with nothing.
            if bool((np.abs(stated - found[len(probes) :]) < _TOLERANCE).all()):
                forms[metric.name] = form
        return forms
