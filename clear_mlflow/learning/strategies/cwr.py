"""CWR*: learn features once, and consolidate the head class by class."""

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

    The first bucket trains the whole model; after it all but the head is frozen, running statistics
    of batch normalisation included. At each bucket the head starts from the consolidated weights
    cw of the classes that the bucket shows, and from zero for all others, and is trained to tw.
    Then, for each class j that the bucket shows in cur_j images, where past_j images of it were
    seen before:

    .. math::
        w_j = \sqrt{past_j / cur_j}, \qquad
        cw_j \leftarrow \frac{w_j \, cw_j + tw_j - avg(tw)}{w_j + 1}, \qquad
        past_j \leftarrow past_j + cur_j

    avg(tw) is one number, the mean over all weights of the classes that the bucket shows. The model
    is tested with cw. The head's bias is consolidated in the same way, with a mean of its own; the
    authors' code does not train it, and Avalanche's trains it and consolidates nothing of it.

    Source:
        Lomonaco, Maltoni and Pellegrini, Rehearsal-Free Continual Learning over Small Non-I.I.D.
        Batches, arXiv:1907.03799, algorithm 1; Maltoni and Lomonaco, arXiv:1806.08568 (CWR+).
    """

    several_processes = True
    keeps = ("_consolidated", "_num_seen")

    def setup(self) -> None:
        """Consolidated weights: nothing yet."""
        # The head's weight and bias: the first axis of each is the class.
        self._consolidated = [torch.zeros_like(part) for part in self._head]
        self._num_seen = np.zeros(self.stream.num_classes, dtype=np.int64)  # images of each class

    @property
    def _head(self) -> list[Tensor]:
        return [part.detach() for part in get_head(self.model).parameters()]

    def learn(self, position: int, trainer: Trainer) -> None:
        """Train the head again, and in the first bucket the backbone, too."""
        if position > 0:
            self.model.requires_grad_(False)
            get_head(self.model).requires_grad_(True)
        absent = torch.from_numpy(self._counts(position) == 0)
        for part, consolidated in zip(self._head, self._consolidated, strict=True):
            part.copy_(consolidated)
            part[absent.to(part.device)] = 0
        super().learn(position, trainer)

    def begin_epoch(self, position: int, epoch: int, num_steps: int) -> None:
        """Keep the frozen backbone in evaluation mode."""
        if position > 0:
            self.model.eval()
            get_head(self.model).train()

    def after_bucket(self, position: int) -> None:
        """Consolidate the head, and test with what was consolidated."""
        counts = self._counts(position)
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

    def _counts(self, position: int) -> NDArray[np.int64]:
        return np.bincount(self.stream.labels(position), minlength=self.stream.num_classes)
