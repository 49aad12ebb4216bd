"""Elastic weight consolidation: hold each weight as firmly as past buckets depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.device import RngPurpose, free_memory, generator
from clear_mlflow.learning.samples.decoded import Batch, batch_bounds, batches
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._weights import (
    copy_weights,
    gradients,
    pull,
    stiffness,
    trained_weights,
)

# Gradients, of one image's likelihood of one label each, that are computed at once; and numbers in
# them: 256 MiB of these, on a GPU an eighth of what is free, as passes need more beside them.
_MOST_GRADIENTS = 256
_LARGEST_GRADIENTS = 2**26
_OF_FREE_BYTES = 32


class Ewc(Strategy):
    r"""A quadratic penalty on every weight's way from where past buckets left it.

    While bucket k is trained on, the loss has the additional term

    .. math:: \frac{\lambda}{2} \sum_{j<k} \sum_i F_{j,i} (\theta_i - \theta^*_{j,i})^2

    with one parabola per past bucket (equation 3, as its authors extend it to more than two tasks).
    The sum of these is a parabola again, but for a constant: their curvatures add up, and its
    vertex is their mean, weighted with them. So these two numbers per weight are kept, with the
    stiffness that follows from them, however long the stream, and nothing is approximated. The
    penalty's gradient is added in closed form.

    With ``online=yes`` there is one parabola from the start, around where the newest past bucket
    left the weights: its curvature is F*_k = gamma F*_{k-1} + F_k, and gamma once more while it is
    used (Schwarz et al.). Unlike there, no bucket's F is normalised.

    F is the diagonal of the Fisher information of the model as it left the bucket, over images of
    that bucket: the mean of the *squared gradient of each image's* log-likelihood. Many
    implementations square the gradient of a batch's mean, which is another quantity, and smaller
    by about the batch size; a ``strength`` found with one of them means nothing here. The
    likelihood is that of a label which the model itself is asked for, as in the definition: the
    expectation over all labels, at a cost that grows with their number.

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
        images: int = 100  # of each bucket, to estimate F on; 0 for all

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            if not 0 <= self.gamma <= 1:
                raise ConfigError(f"gamma is {self.gamma} in strategy_args; pass 0 to 1")
            check_not_negative(self, "images")

    several_processes = True
    keeps = ("_curvature", "_vertex", "_stiffness")
    scratch = ("_weights",)

    def setup(self) -> None:
        """The weights, and a parabola for each."""
        self._weights = trained_weights(self.model)
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
        if self.stream.train_counts[position] == 0:  # all of it passed by
            return
        fisher = self._fisher(position)
        weights_now = copy_weights(self._weights)
        if not self._curvature:
            self._curvature, self._vertex = fisher, weights_now
        elif self.arguments.online:
            torch._foreach_mul_(self._curvature, self.arguments.gamma)
            torch._foreach_add_(self._curvature, fisher)
            self._vertex = weights_now
        else:
            torch._foreach_add_(self._curvature, fisher)
            # Where no bucket depends on a weight, 0 / 0 would be asked for.
            curvature = torch._foreach_clamp_min(self._curvature, torch.finfo(torch.float32).tiny)
            torch._foreach_lerp_(self._vertex, weights_now, torch._foreach_div(fisher, curvature))
        own: Ewc.Arguments = self.arguments
        strength = own.strength * (own.gamma if own.online else 1.0)
        self._stiffness = stiffness(self._curvature, strength, lr=self.config.lr)

    def _fisher(self, position: int) -> list[Tensor]:
        """Return the diagonal Fisher information, summed over the shares of all processes."""
        samples = self.stream.train(position)
        draws = [generator(self.config.seed, RngPurpose.FISHER, position, n) for n in (0, 2)]
        order = torch.randperm(len(samples), generator=draws[0])[: self.arguments.images or None]
        at_once, fisher = self._at_once(), self._zeros()
        self.model.eval()
        for batch in batches(
            samples,
            order,
            batch_bounds(len(order), max(1, at_once // self.stream.num_classes)),
            device=self.stream.device,
            draws=draws[1],
            group=self.group,
        ):
            if len(batch.labels):
                self._add_fisher(fisher, batch, len(order), at_once)
        return [self.group.all_reduce(of_weight) for of_weight in fisher]

    def _add_fisher(self, fisher: list[Tensor], batch: Batch, images: int, at_once: int) -> None:
        """Add a batch's term of the mean over *images* images."""
        labels, share = self._labels(batch)
        share = share / images
        for start in range(0, labels.shape[1], at_once):  # all at once, but for huge models
            some = slice(start, start + at_once)
            torch._foreach_add_(
                fisher,
                squared_gradients(self.model, batch.inputs, labels[:, some], share[:, some]),
            )

    def _at_once(self) -> int:
        return gradients_at_once(sum(w.numel() for w in self._weights), self.stream.device)

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(weight) for weight in self._weights]

    @torch.no_grad()
    def _labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return labels to differentiate the likelihoods of, (B, K), and weights, (B, K)."""
        answers = self.model(batch.inputs).float().softmax(dim=1)
        labels = torch.arange(answers.shape[1], device=answers.device)
        return labels.expand(len(answers), -1), answers


def gradients_at_once(size: int, device: torch.device) -> int:
    """Return how many gradients of *size* numbers a device computes together."""
    largest = _LARGEST_GRADIENTS
    if device.type == "cuda":
        largest = max(largest, free_memory(device) // _OF_FREE_BYTES)
    return max(1, min(_MOST_GRADIENTS, largest // size))


def squared_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, share: Tensor
) -> list[Tensor]:
    """Return weighted sums of squared gradients of log-likelihoods, one tensor per weight.

    labels: (B, K). share: weight of each likelihood, (B, K).
    """
    weights = {
        name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad
    }

    def compute_gradients(image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        def likelihoods(weights: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(model, weights, (image.unsqueeze(0),))
            return logits[0].log_softmax(dim=0)[labels]

        likelihood, back = vjp(likelihoods, weights)[:2]
        one_each = torch.eye(len(labels), dtype=likelihood.dtype, device=likelihood.device)
        slopes: dict[str, Tensor] = vmap(lambda direction: back(direction)[0])(one_each)
        return slopes

    slopes = vmap(compute_gradients)(inputs, labels)
    return [torch.einsum("nk,nk...->...", share, slopes[name].square_()) for name in weights]
