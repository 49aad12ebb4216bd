"""Strategies in closed form: class means in 64-bit floats, and a head that is set from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer

# Rows that are made 64-bit floats at once: 16 MiB of CLEAR's features.
_ROWS = 1024


class ClosedFormStrategy(Strategy):
    """Reads each bucket's features once and sets a linear head, without optimiser steps."""

    needs_features = True
    several_processes = True
    steps_in_every_bucket = False
    keeps: ClassVar[tuple[str, ...]] = ("_means", "_counts")
    scratch = ("_head",)

    def setup(self) -> None:
        """Create the running mean of each class, from which the head is set."""
        self._head = cast("nn.Linear", self.model)
        shape, device = self._head.weight.shape, self.stream.device
        self._means = torch.zeros(shape, dtype=torch.float64, device=device)
        self._counts = torch.zeros(shape[0], dtype=torch.int64, device=device)

    @classmethod
    def bucket_flops(cls, *, images: int, width: int, classes: int) -> int:
        """Return the FLOPs of a bucket: differences to the means, their sums, and new means."""
        return 2 * images * width + 2 * classes * width

    def pass_over(self, position: int, trainer: Trainer) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the bucket's features and labels in blocks, and count the costs of the pass."""
        count, (classes, width) = self.stream.train_counts[position], self._means.shape
        trainer.costs.flops += self.bucket_flops(images=count, width=width, classes=classes)
        trainer.costs.images_in_steps += count
        trainer.costs.images += count
        yield from iter_blocks(self.training_set(position), self.stream.device)

    def count(self, features: Tensor, labels: Tensor) -> None:
        """Count (N, width), float64, and (N,): as mu += (x - mu) / (n + 1), one after another."""
        new = torch.bincount(labels, minlength=len(self._counts))
        # Of the differences, not of the features: what is summed is small.
        differences = torch.zeros_like(self._means)
        differences.index_add_(0, labels, features - self._means[labels])
        self._counts += new
        self._means += differences / self._counts.clamp(min=1)[:, None]


def iter_blocks(samples: Samples, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features, (n, width) as 64-bit floats, and their labels, block by block."""
    features = cast("Tensor", samples.images)
    for start in range(0, len(samples), _ROWS):
        rows = slice(start, start + _ROWS)
        yield features[rows].to(device).double(), samples.labels[rows].to(device)


def set_head(head: nn.Linear, weight: Tensor, bias: Tensor, seen: Tensor) -> None:
    """Set a head's weight, (classes, width), and bias, (classes,), relative to their means.

    Classes that are not *seen* are never predicted.
    """
    weight = torch.where(seen[:, None], weight - weight[seen].mean(dim=0), 0)
    never = torch.finfo(torch.float32).min  # a finite number: an infinite one would be a divergence
    bias = torch.where(seen, bias - bias[seen].mean(), never)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
