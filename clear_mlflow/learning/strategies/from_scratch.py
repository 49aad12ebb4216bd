"""From scratch: a new model for each bucket, which has seen no other."""

from __future__ import annotations

from clear_mlflow.learning.loop import fresh_model
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer


class FromScratch(Strategy):
    """Start anew at each bucket, and train on that bucket alone.

    Nothing is carried over, so nothing can be forgotten and nothing is gained from the past: what a
    stream is worth to a learner is its distance from this one. "Anew" is the untrained model of the
    parameters, ``weights`` included, with initial weights of each bucket's own; the first bucket's
    are those of the run.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289: training on a single bucket.
    """

    several_processes = True

    def learn(self, position: int, trainer: Trainer) -> None:
        """Train a fresh model on the bucket."""
        if position > 0:
            trainer.restart(fresh_model(self.stream, self.config, position))
        super().learn(position, trainer)
