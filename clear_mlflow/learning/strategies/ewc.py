"""Elastic weight consolidation: hold each weight as firmly as past buckets depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import batch_bounds, batches
from clear_mlflow.learning.samples.feature_stream import TrainingStream
from clear_mlflow.learning.strategies._arguments import check_not_negative
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._weights import (
    copied,
    gradients,
    pull,
    stiffness,
    trained_weights,
)

_KINDS = ("sampled", "exact", "empirical")

# Gradients, of one image's likelihood of one label each, that are computed at once; and numbers in
# them: 256 MiB of these.
_MOST_GRADIENTS = 256
_LARGEST_GRADIENTS = 2**26


class Ewc(Strategy):
    r"""A quadratic penalty on every weight's way from where past buckets left it.

    While bucket k is trained on, the loss has the additional term

    .. math:: \frac{\lambda}{2} \sum_{j<k} \sum_i F_{j,i} (\theta_i - \theta^*_{j,i})^2

    with one parabola per past bucket (equation 3, as its authors extend it to more than two tasks).
    The sum of these is a parabola again, but for a constant: their curvatures add up, and its
    vertex is their mean, weighted with them. So two numbers per weight are kept, however long the
    stream, and nothing is approximated. The penalty's gradient is added in closed form.

    With ``online=yes`` there is one parabola from the start, around where the newest past bucket
    left the weights: its curvature is F*_k = gamma F*_{k-1} + F_k, and gamma once more while it is
    used (Schwarz et al.). Unlike there, no bucket's F is normalised.

    F is the diagonal of the Fisher information of the model as it left the bucket, over images of
    that bucket: the mean of the *squared gradient of each image's* log-likelihood. Many
    implementations square the gradient of a batch's mean, which is another quantity, and smaller
    by about the batch size; a ``strength`` found with one of them means nothing here. The
    likelihood is that of a label which the model itself is asked for, as in the definition:

    - ``fisher=sampled``: one label per image, drawn from the model's answer;
    - ``fisher=exact``: the expectation over all labels, at a cost that grows with their number;
    - ``fisher=empirical``: the image's true label; not the Fisher information, but often called so.

    No weight is held more firmly than so that one step takes it all the way back: lambda F is at
    most 1 / ``lr``. Beyond twice that, gradient descent diverges, which limits the strengths that
    can be used without this to those that hold most weights hardly at all.

    Batch normalisation's running statistics are no weights, and nothing holds them.

    Source:
        Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, arXiv:1612.00796.
        Schwarz et al., Progress & Compress, arXiv:1805.06370 (online EWC).
        van de Ven, On the Computation of the Fisher Information in Continual Learning,
        arXiv:2502.11756 (what is called by this name).
    """

    @dataclass(frozen=True)
    class Arguments:
        """How firmly, and how importance is measured."""

        strength: float = 3.0  # lambda
        online: bool = False
        gamma: float = 0.95  # of what is known of all past buckets, the share that stays; online
        fisher: str = "exact"
        images: int = 100  # of each bucket, to estimate F on; 0 for all

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            if not 0 <= self.gamma <= 1:
                raise ConfigError(f"gamma is {self.gamma} in strategy_args; pass 0 to 1")
            if self.fisher not in _KINDS:
                raise ConfigError(
                    f"fisher is {self.fisher!r} in strategy_args; pass {', '.join(_KINDS)}"
                )
            check_not_negative(self, "images")

    several_processes = True
    keeps = ("_curvature", "_vertex", "_stiffness")
    scratch = ("_weights",)

    def __init__(
        self, config: TrainConfig, stream: TrainingStream, model: nn.Module, arguments: Any
    ) -> None:
        super().__init__(config, stream, model, arguments)
        self._weights = trained_weights(model)
        self._curvature: list[Tensor] = []  # one per weight; empty before the first bucket is done
        self._vertex: list[Tensor] = []
        self._stiffness: list[Tensor] = []

    def before_step(self) -> None:
        """Add the penalty's gradient."""
        if not self._curvature:
            return
        back = pull(self._weights, self._vertex, self._stiffness)
        torch._foreach_add_(gradients(self._weights), back)

    def after_bucket(self, position: int) -> None:
        """Measure what the bucket depends on, and add its parabola."""
        fisher = self._fisher(position)
        here = copied(self._weights)
        if not self._curvature:
            self._curvature, self._vertex = fisher, here
        elif self.arguments.online:
            torch._foreach_mul_(self._curvature, self.arguments.gamma)
            torch._foreach_add_(self._curvature, fisher)
            self._vertex = here
        else:
            torch._foreach_add_(self._curvature, fisher)
            # Where no bucket depends on a weight, 0 / 0 would be asked for.
            known = torch._foreach_clamp_min(self._curvature, torch.finfo(torch.float32).tiny)
            torch._foreach_lerp_(self._vertex, here, torch._foreach_div(fisher, known))
        own: Ewc.Arguments = self.arguments
        strength = own.strength * (own.gamma if own.online else 1.0)
        self._stiffness = stiffness(self._curvature, strength, lr=self.config.lr)

    def _fisher(self, position: int) -> list[Tensor]:
        """The diagonal Fisher information, one tensor per weight.

        Several processes measure it on a share of the images each. Measured by each for itself it
        might differ in the last digit, and their models with it, from which no step brings them
        back.
        """
        config, own = self.config, self.arguments
        samples = self.stream.train(position)
        order = torch.randperm(
            len(samples), generator=generator(config.seed, RngPurpose.FISHER, position, 0)
        )[: own.images or None]
        num_labels = self.stream.num_classes if own.fisher == "exact" else 1
        size = sum(weight.numel() for weight in self._weights)
        at_once = max(1, min(_MOST_GRADIENTS, _LARGEST_GRADIENTS // size))
        chances = torch.rand(
            len(order), 1, generator=generator(config.seed, RngPurpose.FISHER, position, 1)
        )
        fisher = [torch.zeros_like(weight) for weight in self._weights]
        self.model.eval()
        bounds = batch_bounds(len(order), max(1, at_once // num_labels))
        shares = batches(
            samples,
            order,
            bounds,
            image_size=config.image_size,
            device=self.stream.device,
            draws=generator(config.seed, RngPurpose.FISHER, position, 2),
            group=self.group,
        )
        for (begin, end), batch in zip(bounds, shares, strict=True):
            start, stop = self.group.share(begin, end)
            if start == stop:
                continue
            labels, share = self._labels(batch.inputs, batch.labels, chances[start:stop])
            share = share / len(order)
            for start in range(0, num_labels, at_once):  # all at once, but for huge models
                some = slice(start, start + at_once)
                torch._foreach_add_(
                    fisher,
                    squared_gradients(self.model, batch.inputs, labels[:, some], share[:, some]),
                )
        return [self.group.add_up(of_weight) for of_weight in fisher]

    def _labels(self, inputs: Tensor, truth: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
        """Which labels' likelihoods to differentiate: (B, K) labels, (B, K) how each counts.

        Args:
            inputs: (B, ...).
            truth: (B,), their labels.
            chances: (B, 1), between 0 and 1, on a CPU: what a label is drawn by.
        """
        if self.arguments.fisher == "empirical":
            labels = truth[:, None]
            return labels, torch.ones_like(labels, dtype=torch.float32)
        with torch.no_grad():
            answers = self.model(inputs).float().softmax(dim=1)
        num_classes = answers.shape[1]
        if self.arguments.fisher == "exact":
            labels = torch.arange(num_classes, device=truth.device).expand(len(truth), -1)
            return labels, answers
        drawn = chances.to(truth.device)
        # The last sum may be below 1 by rounding, and what was drawn above it.
        labels = (answers.cumsum(dim=1) <= drawn).sum(dim=1, keepdim=True)
        labels.clamp_max_(num_classes - 1)
        return labels, torch.ones_like(labels, dtype=torch.float32)


def squared_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, share: Tensor
) -> list[Tensor]:
    """Square the gradients of each image's log-likelihoods, and add them up.

    The gradients of all images are computed together, by vectorising over images and labels what
    differentiates one.

    Args:
        model: in evaluation mode, so that an image's answer does not depend on the others.
        inputs: (B, ...).
        labels: (B, K), the labels whose likelihood is meant.
        share: (B, K), factor of each square.

    Returns:
        One tensor per trained weight, of its shape.
    """
    weights = {
        name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad
    }

    def of_image(image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        def likelihoods(weights: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(model, weights, (image.unsqueeze(0),))
            return logits[0].log_softmax(dim=0)[labels]

        likelihood, back = vjp(likelihoods, weights)[:2]
        one_each = torch.eye(len(labels), dtype=likelihood.dtype, device=likelihood.device)
        slopes: dict[str, Tensor] = vmap(lambda one: back(one)[0])(one_each)
        return slopes

    slopes = vmap(of_image)(inputs, labels)
    return [torch.einsum("nk,nk...->...", share, slopes[name].square_()) for name in weights]
