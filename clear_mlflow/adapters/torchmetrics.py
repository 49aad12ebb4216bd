"""Metrics of the accuracy matrix as torchmetrics: its counts are the state, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.metrics import METRICS, Metric, explain_undefined, summarize


class MatrixMetrics(TorchMetric):
    """Metrics of the accuracy matrix: ``compute()["renate/forgetting"]`` and its like.

    Args:
        num_buckets: T, of the whole stream.
        metrics: to compute, as ``clear_mlflow.renate.METRICS`` or your own; those of CLEAR and
            Renate when not given.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        **options: those of any torchmetrics metric, as ``dist_sync_fn``.
    """

    full_state_update = False
    is_differentiable = False

    # (T + 1, T): row = buckets trained so far, 0 the initialisation; column = tested on.
    correct: Tensor
    total: Tensor

    def __init__(
        self,
        num_buckets: int,
        *,
        metrics: Sequence[Metric] = METRICS,
        protocol: str = "iid",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if num_buckets < 1:
            raise ConfigError(f"num_buckets is {num_buckets}; expected at least 1")
        self.num_buckets = num_buckets
        self.metrics = tuple(metrics)
        self.protocol = protocol
        for name in ("correct", "total"):
            zeros = torch.zeros(num_buckets + 1, num_buckets, dtype=torch.int64)
            self.add_state(name, default=zeros, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, *, row: int, bucket: int | Tensor) -> None:
        """Count a batch of a test.

        Each image is to be counted once per row: ``reset`` forgets all rows, not the last test.

        Args:
            preds: (N,) classes, or (N, C) logits or probabilities.
            target: (N,) true classes.
            row: buckets trained so far; 0 is the model before any training.
            bucket: position of the tested bucket, from 0; one, or (N,) one for each image.

        Raises:
            ConfigError: row or bucket is not of this stream, or the shapes do not fit.
        """
        self._check("row", row, self.num_buckets)
        answered = preds.argmax(dim=1) if preds.ndim == 2 else preds
        if answered.shape != target.shape or target.ndim != 1:
            raise ConfigError(
                f"preds have shape {tuple(preds.shape)} and target {tuple(target.shape)}; expected "
                "(N,) or (N, C), and (N,)"
            )
        where = torch.as_tensor(bucket, dtype=torch.int64, device=self.total.device)
        if where.shape not in ((), target.shape):
            raise ConfigError(
                f"bucket has shape {tuple(where.shape)}; expected one for each of the "
                f"{len(target)} images"
            )
        for position in where.aminmax() if where.numel() else ():
            self._check("bucket", int(position), self.num_buckets - 1)
        where = where.expand(target.shape)
        hits = (answered == target).to(self.total.device)
        self.total[row] += torch.bincount(where, minlength=self.num_buckets)
        self.correct[row] += torch.bincount(where[hits], minlength=self.num_buckets)

    @property
    def matrix(self) -> AccuracyMatrix:
        """What was counted so far; cells without an image are not measured."""
        cells = (self.correct.double() / self.total).tolist()  # no image: 0 / 0, not a number
        total, width = self.total.tolist(), self.num_buckets
        tested = [row for row in range(width + 1) if any(total[row])]
        if not tested:
            return AccuracyMatrix(cells[1:2])
        # Counts per bucket are those of the run only where each test was of all images.
        agree = all(0 not in total[row] and total[row] == total[tested[0]] for row in tested)
        counts = tuple(total[tested[0]]) if agree else None
        keys = tuple(str(j + 1) for j in range(width))
        return AccuracyMatrix.from_rows(
            AccuracyRow.from_values(row, keys, cells[row], counts) for row in tested
        )

    def compute(self) -> dict[str, Tensor]:
        """Metric name to value, in float64; what is not defined is not there."""
        found = summarize(self.matrix, self.protocol, self.metrics)
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.total.device)
            for name, value in found.items()
        }

    def reasons(self) -> dict[str, str]:
        """Metric name to why it is not among what :meth:`compute` gives."""
        found = explain_undefined(self.matrix, self.protocol, self.metrics)
        return {name: str(error) for name, error in found.items()}

    def _check(self, name: str, value: int, largest: int) -> None:
        if not 0 <= value <= largest:
            raise ConfigError(f"{name} is {value}; expected 0 to {largest}")
