"""SLDA: streaming linear discriminant analysis, on frozen features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.strategies._statistics import ClosedFormStrategy, set_head
from clear_mlflow.learning.training.trainer import Trainer


class Slda(ClosedFormStrategy):
    """Running class means and one running covariance; the answer is that of a linear classifier.

    Image t (from 0), of class y of which n were seen, moves the scatter S and then the mean:

        S <- S + w d d^T, with d = x - mu_y;  mu_y <- mu_y + d / (n + 1)

    and the covariance is S over the number of images (the paper's equation 2, which writes it as a
    recursion on S / t). With precision P = ((1 - shrinkage) cov + shrinkage I)^-1, the weights of
    class k are P mu_k, and its bias is -mu_k^T P mu_k / 2.

    The weight w is n / (n + 1) here: then S is the scatter around the means, whatever the order of
    the images, and a stream of one bucket is a linear discriminant analysis. The paper has
    t / (t + 1), which nearly agrees late in a stream but counts the first image of each class at
    its distance from 0. The paper starts from means and a covariance of a first batch; here
    nothing comes before the stream.

    The seed and all parameters of the optimiser mean nothing.

    Source:
        Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant
        Analysis, arXiv:1909.01520; shrinkage 1e-4 as there.
    """

    keeps = (*ClosedFormStrategy.keeps, "_scatter")

    @dataclass(frozen=True)
    class Arguments:
        """How the covariance is made."""

        shrinkage: float = 1e-4  # share of the identity, above 0 and up to 1

        def __post_init__(self) -> None:
            if not 0 < self.shrinkage <= 1:
                raise ConfigError(
                    f"strategy_args has shrinkage={self.shrinkage}; expected a number above 0, at "
                    "most 1"
                )

    def setup(self) -> None:
        """The scatter, beside the means."""
        super().setup()
        width = self._head.in_features
        self._scatter = torch.zeros(width, width, dtype=torch.float64, device=self.stream.device)

    @classmethod
    def bucket_flops(cls, *, images: int, width: int, classes: int) -> int:
        """The means', the scatter's, those of a Cholesky factor and of solving with it."""
        means = super().bucket_flops(images=images, width=width, classes=classes)
        return means + 2 * images * width**2 + width**3 // 3 + 2 * classes * width**2

    def learn(self, position: int, trainer: Trainer) -> None:
        """Count the bucket's images into the means and the covariance."""
        for features, labels in self.pass_over(position, trainer):
            self._add_scatter(features, labels)
            self.count(features, labels)
        means, counts = self._means, self._counts
        shrinkage = self.arguments.shrinkage
        covariance = self._scatter * ((1 - shrinkage) / counts.sum())
        covariance.diagonal().add_(shrinkage)
        weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance)).T
        set_head(self._head, weight, -(weight * means).sum(dim=1) / 2, counts > 0)

    def _add_scatter(self, features: Tensor, labels: Tensor) -> None:
        """Add the updates of many images at once, by running sums of the means before each."""
        means, counts = self._means, self._counts
        order = torch.argsort(labels, stable=True)
        of_class = labels[order]
        new = torch.bincount(labels, minlength=len(counts))
        first = (new.cumsum(0) - new)[of_class]  # where the image's class starts, in this order
        before = torch.arange(len(order), device=order.device) - first
        # Relative to the old mean, so that what is summed is small.
        shifted = features[order] - means[of_class]
        sums = shifted.cumsum(dim=0) - shifted
        sums = sums - sums[first]
        seen = counts[of_class] + before
        distance = shifted - sums / seen.clamp(min=1)[:, None]
        weighted = distance * (seen / (seen + 1)).sqrt()[:, None]
        self._scatter.addmm_(weighted.T, weighted)
