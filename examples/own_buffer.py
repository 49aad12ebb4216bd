"""A replay buffer of your own, which keeps the newest images, in a strategy that replays them.

From the folder that contains ``examples``, it is trained with like any other strategy:

    clear-mlflow train --strategy examples.own_buffer:ReplayNewest --memory 60

Run as a program, ``python examples/own_buffer.py`` compares two buffers on pixels.
"""

from __future__ import annotations

import numpy as np
import torch

from clear_mlflow.learning.strategies import Buffer, Replay


class Newest(Buffer):
    """The newest images, in an order that is random within a bucket."""

    def select(self, labels: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the indices to keep: the buffer's images come first, then the bucket's."""
        arriving = len(self) + torch.randperm(len(labels), generator=generator).numpy()
        return np.concatenate([np.arange(len(self)), arriving])[-self.capacity :]


class ReplayNewest(Replay):
    """Replay from a buffer of the newest images."""

    buffer_class = Newest


if __name__ == "__main__":
    from clear_mlflow import train

    for strategy in ("replay", "own_buffer:ReplayNewest"):
        run = train(strategy=strategy, features="pixels", epochs=1)
        print(f"{strategy:24} forgetting {run.metrics['renate/forgetting'].text}")
