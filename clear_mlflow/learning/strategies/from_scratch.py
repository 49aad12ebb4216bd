"""From scratch: train a new model on each bucket."""

from __future__ import annotations

from clear_mlflow.learning.strategies._base import Strategy, build_untrained_model
from clear_mlflow.learning.training.trainer import Trainer


class FromScratch(Strategy):
    """Start from an untrained model in each bucket, and train it.

    It is trained only on that bucket. The model keeps nothing from past buckets: it cannot forget,
    and cannot benefit from the past. The difference to another strategy is what that strategy gains
    from the stream. The untrained model is built from the parameters, including ``weights``. Random
    initial weights differ from bucket to bucket; the first bucket uses the run's initial model.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289: training on a single bucket.
    """

    supports_distributed = True

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Train an untrained model on the bucket."""
        if bucket_index > 0:
            trainer.restart(
                build_untrained_model(type(self), self.stream, self.config, bucket_index)
            )
        super().learn(bucket_index, trainer)
