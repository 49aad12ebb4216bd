"""Strategies without optimiser steps: a linear head that is computed from class means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.option_fields import OPTIMISATION
from clear_mlflow.learning.samples import iter_batches
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer

# Rows that are converted to float64 at a time: 16 MiB of CLEAR's features.
_ROWS = 1024


class ClosedFormStrategy(Strategy):
    """Computes a linear head in closed form, in one pass."""

    needs_features = True
    supports_distributed = True
    steps_in_every_bucket = False
    state_attributes: ClassVar[tuple[str, ...]] = ("_means", "_counts")
    temporary_attributes = ("_head",)

    def setup(self) -> None:
        """Set each class's mean and number of images to zero."""
        self._head = cast("nn.Linear", self.model)
        shape, device = self._head.weight.shape, self.stream.device
        self._means = torch.zeros(shape, dtype=torch.float64, device=device)
        self._counts = torch.zeros(shape[0], dtype=torch.int64, device=device)

    @classmethod
    def list_replaced_parameters(cls, config: TrainConfig, arguments: Any) -> set[str]:
        """Return the names of the optimiser's parameters: it takes no steps."""
        steps = {name for name, option in PARAMETERS.items() if option.group == OPTIMISATION}
        return super().list_replaced_parameters(config, arguments) | steps

    @classmethod
    def count_bucket_flops(cls, *, images: int, width: int, classes: int) -> int:
        """Return a bucket's FLOPs: differences to means, sums, new means."""
        return 2 * images * width + 2 * classes * width

    def iter_bucket_blocks(
        self, bucket_index: int, trainer: Trainer
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Count the bucket's costs, and yield its features and labels.

        Adds the FLOPs and images of the complete bucket to ``trainer.costs`` first. Yields up to
        1024 features, (n, width), float64, at a time.
        """
        count, (classes, width) = self.stream.train_counts[bucket_index], self._means.shape
        trainer.costs.flops += self.count_bucket_flops(images=count, width=width, classes=classes)
        trainer.costs.images_in_steps += count
        trainer.costs.images += count
        for batch in iter_batches(
            self.load_training_set(bucket_index),
            torch.arange(count),
            [(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)],
            device=self.stream.device,
            generator=torch.Generator(),  # vectors are not cropped
        ):
            yield batch.inputs.double(), batch.labels

    def add_to_means(self, features: Tensor, labels: Tensor) -> None:
        """Update the means with features, (N, width), float64, by label."""
        new = count_labels(labels, len(self._counts))
        # Sums differences instead of features: small numbers lose fewer digits.
        differences = torch.zeros_like(self._means)
        differences.index_add_(0, labels, features - self._means[labels])
        self._counts += new
        self._means += differences / self._counts.clamp(min=1)[:, None]


def count_labels(labels: Tensor, num_classes: int) -> Tensor:
    """Return (classes,), int64: each label's number, without waiting."""
    counts = torch.zeros(num_classes, dtype=torch.int64, device=labels.device)
    return counts.index_add_(0, labels, torch.ones_like(labels))


def set_head(head: nn.Linear, weight: Tensor, bias: Tensor, has_images: Tensor) -> None:
    """Set a head's weight and bias, minus their means over classes.

    has_images: (classes,), bool: classes in these means. Other classes are never predicted.
    """
    weight = torch.where(has_images[:, None], weight - weight[has_images].mean(dim=0), 0)
    never = torch.finfo(torch.float32).min  # finite: an infinite logit counts as divergence
    bias = torch.where(has_images, bias - bias[has_images].mean(), never)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
