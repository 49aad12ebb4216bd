"""SLDA: streaming linear discriminant analysis, on frozen features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.strategies._statistics import (
    ClosedFormStrategy,
    count_labels,
    set_head,
)
from clear_mlflow.learning.training.trainer import Trainer


class Slda(ClosedFormStrategy):
    """A linear classifier from running class means and one running covariance matrix.

    Image t (from 0) of class y, which has n images so far, updates the scatter S and then the mean:

        S <- S + w d d^T, with d = x - mu_y;  mu_y <- mu_y + d / (n + 1)

    The covariance is S divided by the number of images (equation 2, which the paper writes as a
    recursion on S / t). With the precision matrix P = ((1 - shrinkage) cov + shrinkage I)^-1, the
    weights of class k are P mu_k, and its bias is -mu_k^T P mu_k / 2.

    The weight w is n / (n + 1). So S is the scatter around the means for any order of the images,
    and on a stream of one bucket this is linear discriminant analysis. The paper has t / (t + 1),
    which is almost equal late in a stream, but includes the distance of each class's first image
    to 0. The paper starts from the means and covariance of a first batch; here they start at 0.

    The seed and all parameters of the optimiser have no effect.

    Source:
        Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant
        Analysis, arXiv:1909.01520; shrinkage 1e-4 as there.
    """

    state_attributes = (*ClosedFormStrategy.state_attributes, "_scatter")

    @dataclass(frozen=True)
    class Arguments:
        """Shrinkage of the covariance."""

        shrinkage: float = 1e-4  # share of the identity matrix, above 0, at most 1

        def __post_init__(self) -> None:
            if not 0 < self.shrinkage <= 1:
                raise ConfigError(
                    f"strategy_args has shrinkage={self.shrinkage}; expected a number above 0, at "
                    "most 1"
                )

    def setup(self) -> None:
        """Set the scatter and the means to zero."""
        super().setup()
        width = self._head.in_features
        self._scatter = torch.zeros(width, width, dtype=torch.float64, device=self.stream.device)

    @classmethod
    def count_bucket_flops(cls, *, images: int, width: int, classes: int) -> int:
        """Return the FLOPs of means, scatter, Cholesky factor, and solving."""
        means = super().count_bucket_flops(images=images, width=width, classes=classes)
        return means + 2 * images * width**2 + width**3 // 3 + 2 * classes * width**2

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Add the bucket to means and covariance, and set the head."""
        for features, labels in self.iter_bucket_blocks(bucket_index, trainer):
            self._add_scatter(features, labels)
            self.add_to_means(features, labels)
        means, counts = self._means, self._counts
        shrinkage = self.arguments.shrinkage
        covariance = self._scatter * ((1 - shrinkage) / counts.sum())
        covariance.diagonal().add_(shrinkage)
        weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance)).T
        set_head(self._head, weight, -(weight * means).sum(dim=1) / 2, counts > 0)

    def _add_scatter(self, features: Tensor, labels: Tensor) -> None:
        """Add images as if one by one, before the means include them."""
        means, counts = self._means, self._counts
        order = torch.argsort(labels, stable=True)
        sorted_labels = labels[order]
        new = count_labels(labels, len(counts))
        first = (new.cumsum(0) - new)[sorted_labels]  # index of the first image of the class
        num_before = torch.arange(len(order), device=order.device) - first
        # Relative to the old mean: small numbers lose fewer digits in the sum.
        shifted = features[order] - means[sorted_labels]
        sums = shifted.cumsum(dim=0) - shifted
        sums = sums - sums[first]
        n = counts[sorted_labels] + num_before
        distance = shifted - sums / n.clamp(min=1)[:, None]
        weighted = distance * (n / (n + 1)).sqrt()[:, None]
        self._scatter.addmm_(weighted.T, weighted)
