"""ER-ACE: new images do not push away classes that they do not show."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.samples.decoded import Batch
from clear_mlflow.learning.strategies._base import share_of_mean
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, joint_logits


class ErAce(RehearsalStrategy):
    r"""Experience replay with an asymmetric cross-entropy.

    Each step takes a batch of the bucket, X_in, and one of as many images from the buffer, X_bf:

    .. math:: L(X_{bf}, C_{all}) + L(X_{in}, C_{in})

    L(X, C) is the cross-entropy of a softmax over the classes C. C_in are the classes that the new
    batch itself shows: others are not pushed down by it, which spares what represents the past. As
    in the paper, the two terms are added, so a step is about twice as long as without a buffer. In
    the first bucket the buffer is empty, and the loss is the cross-entropy over all classes.

    The effect was found where each bucket brings new classes. Where a batch shows nearly all of
    them, as on digits, little is left of the asymmetry, and this is replay that takes as many old
    images as new ones in each step.

    Both batches pass through the model together; in the authors' code, one after the other. A
    bucket's images compete for the buffer when it is done, not batch by batch.

    Source:
        Caccia et al., New Insights on Reducing Abrupt Representation Change in Online Continual
        Learning, ICLR 2022, arXiv:2104.05025, equations 4 and 5.
    """

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of the asymmetric cross-entropy of both batches."""
        if not batch.rehearsed:
            return super().share_of_loss(forward, batch)
        (old,) = batch.rehearsed
        new_logits, old_logits = joint_logits(forward, batch, old)
        present = find_present_classes(batch.labels, new_logits.shape[1], self.group)

        def compute_loss(logits: Tensor, labels: Tensor) -> Tensor:
            return compute_present_cross_entropy(
                logits, labels, present, self.config.label_smoothing
            )

        return share_of_mean(old, old_logits, self.criterion, old.labels) + share_of_mean(
            batch, new_logits, compute_loss, batch.labels
        )


def find_present_classes(labels: Tensor, num_classes: int, group: ProcessGroup = ALONE) -> Tensor:
    """Return (classes,), True for classes with a label in the batch, over all processes."""
    counts = torch.zeros(num_classes, dtype=torch.int32, device=labels.device)
    return group.all_reduce(counts.index_fill_(0, labels, 1)) > 0


def compute_present_cross_entropy(
    logits: Tensor, labels: Tensor, present: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of a softmax over *present* classes, smoothed over them.

    logits: (N, classes). labels: (N,), all of present classes.
    """
    log_likelihood = logits.float().masked_fill(~present, -torch.inf).log_softmax(dim=1)
    loss = -log_likelihood.gather(1, labels[:, None]).mean()
    if smoothing:
        # The classes that do not occur are minus infinity here, and no part of the mean.
        smoothed_loss = -log_likelihood.masked_fill(~present, 0.0).sum(dim=1).mean() / present.sum()
        loss = (1 - smoothing) * loss + smoothing * smoothed_loss
    return loss
