"""Linear: CLEAR's linear protocol, a head on frozen features that is trained bucket by bucket."""

from __future__ import annotations

from clear_mlflow.learning.strategies._base import Strategy


class Linear(Strategy):
    """Fine-tune one linear layer on the new bucket's stored features, and on nothing else.

    What ``naive`` does where there are features, under the name that results are compared by. With
    features, the parameters that are left at ``auto`` are those of the paper's protocol. The layer
    starts at zero, so with ``batch_size=full`` nothing is random.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289, section 4: linear classification on
        features of a model that was trained on the bucket before the stream.
    """

    needs_features = True
    several_processes = True
