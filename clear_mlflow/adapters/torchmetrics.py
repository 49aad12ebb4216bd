"""Metrics of the accuracy matrix as a torchmetrics metric, whose state is counts of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.metrics import METRICS, Metric, evaluate_metrics, summarize


class MatrixMetrics(TorchMetric):
    """Metrics of the accuracy matrix, such as ``compute()["renate/forgetting"]``.

    Args:
        num_buckets: number of buckets T of the complete stream.
        metrics: metrics to compute, for example ``clear_mlflow.renate.METRICS`` or custom ones; the
            metrics of CLEAR and Renate by default.
        protocol: ``iid``, or ``streaming``, which excludes R[i, j] with j <= i: the accuracy on
            bucket j after training on bucket i.
        **options: options of every torchmetrics metric, such as ``dist_sync_fn``.
    """

    full_state_update = False
    is_differentiable = False

    # (T + 1, T): row = buckets trained so far, 0 before any training; column = tested bucket.
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
        """Add a test batch to the counts of correct and tested images.

        Pass each image once per row. ``reset`` deletes all rows.

        Args:
            preds: (N,) classes, or (N, C) logits or probabilities.
            target: (N,) true classes.
            row: number of buckets trained so far, 0 before any training.
            bucket: index of the tested bucket, from 0, or (N,) an index for each image.

        Raises:
            ConfigError: row or bucket is out of range, or the shapes do not fit.
        """
        _check_range("row", row, self.num_buckets)
        predictions = preds.argmax(dim=1) if preds.ndim == 2 else preds
        if predictions.shape != target.shape or target.ndim != 1:
            raise ConfigError(
                f"preds have shape {tuple(preds.shape)} and target {tuple(target.shape)}; expected "
                "(N,) or (N, C), and (N,)"
            )
        buckets = torch.as_tensor(bucket, dtype=torch.int64, device=self.total.device)
        if buckets.shape not in ((), target.shape):
            raise ConfigError(
                f"bucket has shape {tuple(buckets.shape)}; expected one for each of the "
                f"{len(target)} images"
            )
        for bucket_index in buckets.aminmax() if buckets.numel() else ():
            _check_range("bucket", int(bucket_index), self.num_buckets - 1)
        buckets = buckets.expand(target.shape)
        is_correct = (predictions == target).to(self.total.device)
        self.total[row] += torch.bincount(buckets, minlength=self.num_buckets)
        self.correct[row] += torch.bincount(buckets[is_correct], minlength=self.num_buckets)

    @property
    def matrix(self) -> AccuracyMatrix:
        """Accuracy matrix so far, NaN where a bucket was not tested.

        Without images, it is one row of NaN.
        """
        cells = (self.correct.double() / self.total).tolist()  # NaN without an image
        total, width = self.total.tolist(), self.num_buckets
        tested = [row for row in range(width + 1) if any(total[row])]
        if not tested:
            return AccuracyMatrix(cells[1:2])
        # The counts are the sizes of the test sets only if each row tested the same images.
        has_sizes = all(0 not in total[row] and total[row] == total[tested[0]] for row in tested)
        counts = tuple(total[tested[0]]) if has_sizes else None
        keys = tuple(str(j + 1) for j in range(width))
        return AccuracyMatrix.from_rows(
            AccuracyRow.from_values(row, keys, cells[row], counts) for row in tested
        )

    def compute(self) -> dict[str, Tensor]:
        """Return the defined metrics as float64 scalars by name."""
        summary = summarize(self.matrix, self.protocol, self.metrics)
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.total.device)
            for name, value in summary.items()
        }

    def reasons(self) -> dict[str, str]:
        """Return metric name to reason, for each undefined metric."""
        results = evaluate_metrics(self.metrics, self.matrix, self.protocol)
        return {name: result.reason for name, result in results.items() if result.reason}


def _check_range(name: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise ConfigError(f"{name} is {value}; expected 0 to {largest}")
