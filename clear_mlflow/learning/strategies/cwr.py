"""CWR*: train the backbone on the first bucket, and consolidate the head class by class."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.learning.models import get_head
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer


class Cwr(Strategy):
    r"""CopyWeight with re-initialisation, the star version.

    The first bucket trains the complete model. Afterwards everything except the head is frozen,
    including the running statistics of batch normalisation. In each bucket, the head starts from
    the consolidated weights cw for the bucket's classes and from zero for all others, and is
    trained to tw. Then, for each class j with cur_j images in the bucket and past_j images before:

    .. math::
        w_j = \sqrt{past_j / cur_j}, \qquad
        cw_j \leftarrow \frac{w_j \, cw_j + tw_j - avg(tw)}{w_j + 1}, \qquad
        past_j \leftarrow past_j + cur_j

    avg(tw) is one number, the mean over all weights of the bucket's classes. The model is tested
    with cw. The head's bias is consolidated in the same way, with its own mean. The authors' code
    does not train the bias; Avalanche trains it without consolidating it.

    Source:
        Lomonaco, Maltoni and Pellegrini, Rehearsal-Free Continual Learning over Small Non-I.I.D.
        Batches, arXiv:1907.03799, algorithm 1; Maltoni and Lomonaco, arXiv:1806.08568 (CWR+).
    """

    supports_distributed = True
    state_attributes = ("_consolidated", "_num_seen")

    def setup(self) -> None:
        """Set the consolidated weights to zero."""
        get_head(self.model, self.stream.num_classes)  # raises if it is not the last layer
        # The head's weight and bias: the first axis of each is the class.
        self._consolidated = [torch.zeros_like(part) for part in self._head]
        self._num_seen = np.zeros(self.stream.num_classes, dtype=np.int64)  # images of each class

    @property
    def _head(self) -> list[Tensor]:
        """The head's weight and bias, without gradients, in shared memory."""
        return [part.detach() for part in get_head(self.model).parameters()]

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Train from consolidated head weights, freezing the backbone after bucket 1.

        After the first bucket, everything but the head is frozen first. :meth:`after_bucket`
        consolidates what was trained.
        """
        if bucket_index > 0:
            self.model.requires_grad_(False)
            get_head(self.model).requires_grad_(True)
        absent = torch.from_numpy(self._count_images_by_class(bucket_index) == 0)
        for part, consolidated in zip(self._head, self._consolidated, strict=True):
            part.copy_(consolidated)
            part[absent.to(part.device)] = 0
        super().learn(bucket_index, trainer)

    def begin_epoch(self, bucket_index: int, epoch: int, num_steps: int) -> None:
        """Set the frozen backbone to evaluation mode, except in the first bucket."""
        if bucket_index > 0:
            self.model.eval()
            get_head(self.model).train()

    def after_bucket(self, bucket_index: int) -> None:
        """Average the trained head into its consolidated weights, and use these."""
        counts = self._count_images_by_class(bucket_index)
        present = np.flatnonzero(counts)
        for part, consolidated in zip(self._head, self._consolidated, strict=True):
            classes = torch.from_numpy(present).to(part.device)
            weight = torch.tensor(
                np.sqrt(self._num_seen[present] / counts[present]), dtype=part.dtype
            ).to(part.device)
            weight = weight.reshape(-1, *[1] * (part.dim() - 1))
            trained = part[classes]
            consolidated[classes] = (weight * consolidated[classes] + trained - trained.mean()) / (
                weight + 1
            )
            part.copy_(consolidated)
        self._num_seen = self._num_seen + counts

    def _count_images_by_class(self, bucket_index: int) -> NDArray[np.int64]:
        return np.bincount(self.stream.labels(bucket_index), minlength=self.stream.num_classes)
