"""Elastic weight consolidation: penalise changes of weights that past buckets depend on."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.device import RngPurpose, build_generator, cudnn_benchmark
from clear_mlflow.learning.samples import Batch, compute_batch_bounds, iter_batches
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._weights import (
    collect_gradients,
    compute_penalty_coefficients,
    compute_penalty_gradients,
    copy_weights,
    list_trained_weights,
)
from clear_mlflow.learning.training.costs import FlopCounter
from clear_mlflow.learning.training.limits import build_meta_inputs

# Largest number of gradients that are computed at once, one for each image and label.
_MAX_GRADIENTS = 256
# Largest number of their elements: 256 MiB, or on a GPU 1 GiB, since the passes need memory too.
# Free memory would differ between two processes, and so would the last digits of the sum.
_MAX_ELEMENTS, _MAX_ELEMENTS_ON_GPU = 2**26, 2**28


class Ewc(Strategy):
    r"""A quadratic penalty on each weight's distance to its past values.

    In bucket k, the loss has the additional term

    .. math:: \frac{\lambda}{2} \sum_{j<k} \sum_i F_{j,i} (\theta_i - \theta^*_{j,i})^2

    with one parabola per past bucket (equation 3, which its authors extend to more than two tasks).
    The sum of parabolas is a parabola plus a constant: the curvatures add up, and its vertex is the
    mean of the vertices, weighted by curvature. So two numbers per weight are enough for a stream
    of any length, without approximation; the penalty's coefficients follow from them. The
    gradient of the penalty is added in closed form.

    With ``online=yes`` there is only one parabola, whose vertex is the weights after the newest
    bucket. Its curvature is F*_k = gamma F*_{k-1} + F_k, multiplied by gamma again when it is used
    (Schwarz et al.). Unlike in that paper, F is not normalised.

    F is the diagonal of the Fisher information of the model at the end of the bucket, over images
    of that bucket: the mean of the *squared gradient of each image's* log-likelihood. Many
    implementations square the gradient of a batch's mean. This is a different quantity, smaller by
    about the batch size, so a ``strength`` that was tuned for one of them is not valid here. As in
    the definition, F is an expectation over labels with the model's own probabilities. All labels
    are computed, so the cost grows with the number of classes.

    lambda F is limited to 1 / ``lr``, at which one step returns a weight to the vertex. At more
    than twice this limit, gradient descent diverges. Without a limit, only strengths that hardly
    affect most weights could be used.

    The penalty does not affect the running statistics of batch normalisation.

    Source:
        Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, arXiv:1612.00796.
        Schwarz et al., Progress & Compress, arXiv:1805.06370 (online EWC).
        van de Ven, On the Computation of the Fisher Information in Continual Learning,
        arXiv:2502.11756 (variants of this quantity).
    """

    @dataclass(frozen=True)
    class Arguments:
        """Strength of the penalty, and how importance is estimated."""

        strength: float = 3.0  # lambda
        online: bool = False
        gamma: float = 0.95  # with online: decay of the past buckets' curvature
        images: int = 100  # images of each bucket to estimate F on; 0: all

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            if not 0 <= self.gamma <= 1:
                raise ConfigError(f"gamma is {self.gamma} in strategy_args; pass 0 to 1")
            check_not_negative(self, "images")

    supports_distributed = True
    state_attributes = ("_curvature", "_vertex", "_stiffness")
    temporary_attributes = ("_weights",)

    def setup(self) -> None:
        """Start without a penalty."""
        self._weights = list_trained_weights(self.model)
        self._curvature: list[Tensor] = []  # one per weight; empty before the first bucket is done
        self._vertex: list[Tensor] = []
        self._stiffness: list[Tensor] = []  # coefficients of the penalty

    def before_step(self) -> None:
        """Add the gradients of the penalty."""
        if not self._curvature:
            return
        penalty = compute_penalty_gradients(self._weights, self._vertex, self._stiffness)
        torch._foreach_add_(collect_gradients(self._weights), penalty)

    def after_bucket(self, bucket_index: int) -> None:
        """Estimate the bucket's Fisher information, and add its penalty.

        Skips a bucket of which a stream that does not wait left no image.
        """
        if self.stream.train_counts[bucket_index] == 0:
            return
        fisher = self._compute_fisher(bucket_index)
        weights = copy_weights(self._weights)
        if not self._curvature:
            self._curvature, self._vertex = fisher, weights
        elif self.arguments.online:
            torch._foreach_mul_(self._curvature, self.arguments.gamma)
            torch._foreach_add_(self._curvature, fisher)
            self._vertex = weights
        else:
            torch._foreach_add_(self._curvature, fisher)
            # If the curvature is 0, this avoids 0 / 0.
            curvature = torch._foreach_clamp_min(self._curvature, torch.finfo(torch.float32).tiny)
            torch._foreach_lerp_(self._vertex, weights, torch._foreach_div(fisher, curvature))
        own: Ewc.Arguments = self.arguments
        strength = own.strength * (own.gamma if own.online else 1.0)
        self._stiffness = compute_penalty_coefficients(self._curvature, strength, lr=self.config.lr)

    def count_flops_after(self, bucket_index: int) -> int:
        """Return the FLOPs of the Fisher information, without computing it."""
        num_images = self.stream.train_counts[bucket_index]
        model = copy.deepcopy(self.model).to("meta").eval()
        inputs = build_meta_inputs(self.config, self.stream, 1)
        labels = torch.zeros(1, self.stream.num_classes, dtype=torch.int64, device="meta")
        with FlopCounter() as counter:
            model(inputs)
            compute_squared_gradients(model, inputs, labels, labels.float())
        flops: int = min(self.arguments.images or num_images, num_images) * counter.flops
        return flops

    # Each pass has other sizes, and cuDNN's search takes longer than a few passes.
    @cudnn_benchmark(False)
    def _compute_fisher(self, bucket_index: int) -> list[Tensor]:
        """Set evaluation mode, and average the Fisher diagonal over all processes' images."""
        samples = self.stream.train(bucket_index)
        draws = [
            build_generator(self.config.seed, RngPurpose.FISHER, bucket_index, n) for n in (0, 2)
        ]
        order = torch.randperm(len(samples), generator=draws[0])[: self.arguments.images or None]
        fisher = [torch.zeros_like(weight) for weight in self._weights]
        num_weights = sum(weight.numel() for weight in self._weights)
        max_gradients = count_gradients_at_once(num_weights, self.stream.device)
        self.model.eval()
        for batch in iter_batches(
            samples,
            order,
            compute_batch_bounds(len(order), max(1, max_gradients // self.stream.num_classes)),
            device=self.stream.device,
            generator=draws[1],
            group=self.group,
        ):
            if len(batch.labels):
                self._add_fisher(fisher, batch, len(order), max_gradients)
        return [self.group.all_reduce(part) for part in fisher]

    def _add_fisher(
        self, fisher: list[Tensor], batch: Batch, num_images: int, max_gradients: int
    ) -> None:
        """Add a batch to *fisher*, a mean over *num_images* images."""
        labels, probabilities = self._select_labels(batch)
        share = probabilities / num_images
        for start in range(0, labels.shape[1], max_gradients):  # only huge models need several
            some = slice(start, start + max_gradients)
            squared = compute_squared_gradients(
                self.model, batch.inputs, labels[:, some], share[:, some]
            )
            torch._foreach_add_(fisher, squared)

    @torch.no_grad()
    def _select_labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return all labels and the model's probabilities, (B, classes) each."""
        probabilities = self.model(batch.inputs).float().softmax(dim=1)
        labels = torch.arange(probabilities.shape[1], device=probabilities.device)
        return labels.expand(len(probabilities), -1), probabilities


def count_gradients_at_once(size: int, device: torch.device) -> int:
    """Return how many gradients fit on a device, 1 to 256."""
    max_elements = _MAX_ELEMENTS_ON_GPU if device.type == "cuda" else _MAX_ELEMENTS
    return max(1, min(_MAX_GRADIENTS, max_elements // size))


def compute_squared_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, share: Tensor
) -> list[Tensor]:
    """Return weighted sums of squared gradients of log-likelihoods.

    The result has a tensor for each weight that is not frozen. labels: K labels of each image,
    (B, K). share: factor of each squared gradient, (B, K).
    """
    weights = {
        name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad
    }

    def compute_gradients(image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        def likelihoods(weights: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(model, weights, (image.unsqueeze(0),))
            return logits[0].log_softmax(dim=0)[labels]

        likelihood, backward = vjp(likelihoods, weights)[:2]
        directions = torch.eye(len(labels), dtype=likelihood.dtype, device=likelihood.device)
        gradients: dict[str, Tensor] = vmap(lambda direction: backward(direction)[0])(directions)
        return gradients

    gradients = vmap(compute_gradients)(inputs, labels)
    return [torch.einsum("nk,nk...->...", share, gradients[name].square_()) for name in weights]
