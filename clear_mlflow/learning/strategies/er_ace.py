"""ER-ACE: new images do not lower the logits of classes that are absent from their batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.samples import Batch
from clear_mlflow.learning.strategies._base import compute_mean_share
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, compute_joint_logits


class ErAce(RehearsalStrategy):
    r"""Experience replay with an asymmetric cross-entropy.

    Each step trains on a batch of the bucket, X_in, and a batch of the same size from the buffer,
    X_bf:

    .. math:: L(X_{bf}, C_{all}) + L(X_{in}, C_{in})

    L(X, C) is the cross-entropy of a softmax over the classes C. C_in are the classes in the
    bucket's batch: the logits of other classes are not lowered, which protects the representations
    of the past. As in the paper, the two terms are added, so the gradient is about twice as large
    as without a buffer. In the first bucket the buffer is empty, and the loss is the cross-entropy
    over all classes.

    The paper shows the effect in streams whose buckets bring new classes. If a batch contains
    nearly all classes, as on digits, the two terms hardly differ, and the strategy is replay with
    as many old images as new ones in each step.

    Both batches pass through the model together, in the authors' code one by one. The buffer is
    updated after each bucket, not after each batch.

    Source:
        Caccia et al., New Insights on Reducing Abrupt Representation Change in Online Continual
        Learning, ICLR 2022, arXiv:2104.05025, equations 4 and 5.
    """

    def compute_loss_share(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of two mean cross-entropies' sum.

        New images compete only with classes of their batch, and those from the buffer with all.
        Without images from the buffer, it is the usual cross-entropy.
        """
        if not batch.rehearsed:
            return super().compute_loss_share(forward, batch)
        (old,) = batch.rehearsed
        new_logits, old_logits = compute_joint_logits(forward, batch, old)
        present = find_present_classes(batch.labels, new_logits.shape[1], self.group)

        def compute_present_loss(logits: Tensor, labels: Tensor) -> Tensor:
            return compute_present_cross_entropy(
                logits, labels, present, self.config.label_smoothing
            )

        return compute_mean_share(old, old_logits, self.criterion, old.labels) + compute_mean_share(
            batch, new_logits, compute_present_loss, batch.labels
        )


def find_present_classes(
    labels: Tensor, num_classes: int, group: ProcessGroup = SINGLE_PROCESS
) -> Tensor:
    """Return (classes,), True for classes in the batch of all processes."""
    counts = torch.zeros(num_classes, dtype=torch.int32, device=labels.device)
    return group.all_reduce(counts.index_fill_(0, labels, 1)) > 0


def compute_present_cross_entropy(
    logits: Tensor, labels: Tensor, present: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of a softmax over *present* classes, smoothed over them.

    logits: (N, classes). labels: (N,), all of them present. present: (classes,), bool. smoothing:
    label smoothing.
    """
    log_likelihood = logits.float().masked_fill(~present, -torch.inf).log_softmax(dim=1)
    loss = -log_likelihood.gather(1, labels[:, None]).mean()
    if smoothing:
        # Absent classes have a log-likelihood of minus infinity and are excluded from the mean.
        smoothed_loss = -log_likelihood.masked_fill(~present, 0.0).sum(dim=1).mean() / present.sum()
        loss = (1 - smoothing) * loss + smoothing * smoothed_loss
    return loss
