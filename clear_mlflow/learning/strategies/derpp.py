"""DER++: remember of each image also what the model answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.samples.decoded import Batch, Samples
from clear_mlflow.learning.strategies._base import share_of_mean
from clear_mlflow.learning.strategies._rehearsal import (
    RehearsalStrategy,
    joint_logits,
    rehearsal_batches,
)


class Derpp(RehearsalStrategy):
    r"""Dark experience replay, with labels: a buffer of images, labels, and logits z.

    Each step takes a batch of the bucket and two independent ones, of as many images, from the
    buffer (equation 6):

    .. math:: L(x_t, y_t) + \alpha \, \lVert z' - h(x') \rVert_2^2 + \beta \, L(x'', y'')

    L is the cross-entropy and h the model's logits; the square is a mean over images and classes,
    as in the authors' code. ``beta=0`` is DER.

    Images compete for a reservoir once, when their bucket is done. The logits stored are those that
    the model gave in the step of the bucket's **last epoch** that trained on the image: in training
    mode, of the image as it was then cropped and mirrored, before that step changed the weights. In
    the authors' code images compete in every step of every epoch, so logits are of random epochs.
    Three batches pass through the model together; in the authors' code, one after the other.

    Source:
        Buzzega et al., Dark Experience for General Continual Learning: a Strong, Simple Baseline,
        NeurIPS 2020, arXiv:2004.07211. Its alpha is 0.1 to 1 and beta 0.5 or 1; on streams of
        domains (permuted and rotated MNIST) mostly 1 and 0.5.
    """

    @dataclass(frozen=True)
    class Arguments:
        """The weights of the two terms."""

        alpha: float = 0.5  # of the distance to the stored logits
        beta: float = 0.5  # of the cross-entropy of images from the buffer

        def __post_init__(self) -> None:
            check_not_negative(self, "alpha", "beta")

    keeps = (*RehearsalStrategy.keeps, "_logits")
    scratch = (*RehearsalStrategy.scratch, "_recorded", "_is_recorded", "_recording")

    def setup(self) -> None:
        """Create the buffer, and the logits of its images."""
        super().setup()
        # (len(buffer), classes), float32: logits of each image in the buffer.
        self._logits = torch.empty(0, self.stream.num_classes, device=self.stream.device)
        self._recorded = self._logits  # (images of the bucket, classes), as above
        self._is_recorded = torch.empty(0)  # (images of the bucket,), int32: 1 if a step did so
        self._recording = False

    def _count_extra_bytes(self) -> int:
        """Return the bytes of an image's logits."""
        return 4 * self.stream.num_classes

    def training_set(self, position: int) -> Samples:
        """Return the bucket's own images, whose logits will be recorded."""
        count = self.stream.train_counts[position]
        self._recorded = self._logits.new_zeros(count, self.stream.num_classes)
        self._is_recorded = torch.zeros_like(self._recorded[:, 0], dtype=torch.int32)
        return super().training_set(position)

    def begin_epoch(self, position: int, epoch: int, num_steps: int) -> None:
        """Record logits in the last epoch, and with a budget, which may end any, in all epochs."""
        self._recording = self.config.budget != "off" or epoch == self.config.epochs - 1

    def rehearsal(self, position: int, epoch: int, num_steps: int) -> Iterable[tuple[Batch, ...]]:
        """Return the epoch's batches from the buffer, two per step."""
        if self._held is None:
            return super().rehearsal(position, epoch, num_steps)
        where = (self._held, num_steps, self.config, self.stream.device, position, epoch)
        return zip(
            *(
                rehearsal_batches(*where, which, group=self.group, dtype=self.input_dtype)
                for which in range(2)
            ),
            strict=True,
        )

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of equation 6, which has three batches."""
        if not batch.rehearsed:
            logits = forward(batch.inputs)
            loss = share_of_mean(batch, logits, self.criterion, batch.labels)
        else:
            imitated, repeated = batch.rehearsed
            logits, imitation, repetition = joint_logits(forward, batch, imitated, repeated)
            stored = self._logits.index_select(
                0, imitated.chosen.to(self._logits.device, non_blocking=True)
            )
            loss = (
                share_of_mean(batch, logits, self.criterion, batch.labels)
                + self.arguments.alpha
                * share_of_mean(imitated, imitation.float(), mse_loss, stored)
                + self.arguments.beta
                * share_of_mean(repeated, repetition, self.criterion, repeated.labels)
            )
        if self._recording:
            indices = batch.chosen.to(self._recorded.device, non_blocking=True)
            self._recorded.index_copy_(0, indices, logits.detach().float())
            self._is_recorded.index_fill_(0, indices, 1)
        return loss

    def after_bucket(self, position: int) -> None:
        """Let the images with logits compete for the buffer, and store the logits of those held.

        An image has none if a budget ended the bucket before a step trained on it.
        """
        self._held = None
        # Each image is in the batches of one process, and zero in all others: the sum is exact.
        self.group.all_reduce(self._recorded)
        labels = self.stream.labels(position)
        seen = self.stream.seen_indices.get(position, np.arange(len(labels)))
        indices = np.arange(len(labels))
        if self.config.budget != "off":
            self.group.all_reduce(self._is_recorded)
            indices = np.flatnonzero(self._is_recorded.cpu().numpy()[seen])
        kept = self._buffer.offer(position, labels, indices)
        device = self._logits.device
        new_logits = self._recorded[torch.from_numpy(seen[indices]).to(device)]
        candidates = torch.cat([self._logits, new_logits])
        self._logits = candidates[torch.from_numpy(kept).to(device)]
