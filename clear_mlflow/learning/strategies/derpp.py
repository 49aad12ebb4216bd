"""DER++: replay images with the logits that the model had for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.samples import Batch, Samples
from clear_mlflow.learning.strategies._base import compute_mean_share
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, compute_joint_logits


class Derpp(RehearsalStrategy):
    r"""Dark experience replay with labels: images, labels and logits z.

    Each step trains on a batch of the bucket and two independent batches of the same size from the
    buffer (equation 6):

    .. math:: L(x_t, y_t) + \alpha \, \lVert z' - h(x') \rVert_2^2 + \beta \, L(x'', y'')

    L is the cross-entropy and h the model's logits. The squared distance is a mean over images and
    classes, as in the authors' code. ``beta=0`` is DER.

    The buffer is a reservoir that is updated after each bucket. It stores the logits that the model
    computed in the step of the bucket's **last epoch** that trained on the image: in training mode,
    for the image as it was cropped and mirrored then, before that step changed the weights. The
    authors' code updates the reservoir in every step of every epoch, so its logits are from random
    epochs. The three batches pass through the model together, in the authors' code one by one.

    Source:
        Buzzega et al., Dark Experience for General Continual Learning: a Strong, Simple Baseline,
        NeurIPS 2020, arXiv:2004.07211. Its alpha is 0.1 to 1 and beta 0.5 or 1; on streams of
        domains (permuted and rotated MNIST) mostly 1 and 0.5.
    """

    @dataclass(frozen=True)
    class Arguments:
        """Weights of the two terms on the buffer."""

        alpha: float = 0.5  # weight of the distance to the stored logits
        beta: float = 0.5  # weight of the cross-entropy on the buffer

        def __post_init__(self) -> None:
            check_not_negative(self, "alpha", "beta")

    rehearsal_seeds = ((0,), (1,))
    state_attributes = (*RehearsalStrategy.state_attributes, "_logits")
    temporary_attributes = (
        *RehearsalStrategy.temporary_attributes,
        "_recorded",
        "_is_recorded",
        "_recording",
    )

    def setup(self) -> None:
        """Create the buffer, and an array for its images' logits."""
        super().setup()
        # (len(buffer), classes), float32: logits of each image in the buffer.
        self._logits = torch.empty(0, self.stream.num_classes, device=self.stream.device)
        self._recorded = self._logits  # (images of the bucket, classes), float32
        self._is_recorded = torch.empty(0)  # (images of the bucket,), int32: 0 or 1
        self._recording = False

    def _count_extra_bytes(self) -> int:
        return 4 * self.stream.num_classes

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the bucket's images, and allocate memory for their logits."""
        count = self.stream.train_counts[bucket_index]
        self._recorded = self._logits.new_zeros(count, self.stream.num_classes)
        self._is_recorded = torch.zeros_like(self._recorded[:, 0], dtype=torch.int32)
        return super().load_training_set(bucket_index)

    def begin_epoch(self, bucket_index: int, epoch: int, num_steps: int) -> None:
        """Record logits in the last epoch, or all within a budget."""
        self._recording = self.config.budget != "off" or epoch == self.config.epochs - 1

    def compute_loss_share(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of the loss, equation 6.

        In the last epoch, or with a budget in each, keeps the batch's logits for the buffer.
        """
        if not batch.rehearsed:
            logits = forward(batch.inputs)
            loss = compute_mean_share(batch, logits, self.criterion, batch.labels)
        else:
            imitated, repeated = batch.rehearsed
            logits, imitation, repetition = compute_joint_logits(forward, batch, imitated, repeated)
            stored = self._logits.index_select(
                0, imitated.chosen.to(self._logits.device, non_blocking=True)
            )
            loss = (
                compute_mean_share(batch, logits, self.criterion, batch.labels)
                + self.arguments.alpha
                * compute_mean_share(imitated, imitation.float(), mse_loss, stored)
                + self.arguments.beta
                * compute_mean_share(repeated, repetition, self.criterion, repeated.labels)
            )
        if self._recording:
            indices = batch.chosen.to(self._recorded.device, non_blocking=True)
            self._recorded.index_copy_(0, indices, logits.detach().float())
            self._is_recorded.index_fill_(0, indices, 1)
        return loss

    def after_bucket(self, bucket_index: int) -> None:
        """Update the buffer with images that have logits, and store their logits.

        An image lacks logits if a budget ended the bucket before a step trained on it.
        """
        self._buffer_samples = None
        # Only one process recorded an image's logits; they are zero in all others.
        self.group.all_reduce(self._recorded)
        labels = self.stream.labels(bucket_index)
        stream_indices = self.stream.seen_indices.get(bucket_index, np.arange(len(labels)))
        indices = np.arange(len(labels))
        if self.config.budget != "off":
            self.group.all_reduce(self._is_recorded)
            indices = np.flatnonzero(self._is_recorded.cpu().numpy()[stream_indices])
        kept_indices = self._buffer.update(bucket_index, labels, indices)
        device = self._logits.device
        new_logits = self._recorded[torch.from_numpy(stream_indices[indices]).to(device)]
        candidates = torch.cat([self._logits, new_logits])
        self._logits = candidates[torch.from_numpy(kept_indices).to(device)]
