"""Linear: CLEAR's linear protocol, a head on frozen features that is trained bucket by bucket."""

from __future__ import annotations

from clear_mlflow.learning.strategies._base import Strategy


class Linear(Strategy):
    """Fine-tune one linear layer on the stored features of each new bucket.

    This is ``naive`` on features, under the name that published results use. With features,
    parameters at ``auto`` follow the paper's protocol. The layer starts at zero, so training with
    ``batch_size=full`` is deterministic.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289, section 4: linear classification on
        features of a model that was trained on the bucket before the stream.
    """

    needs_features = True
    supports_distributed = True
