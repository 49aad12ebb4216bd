"""Naive: train only on each new bucket."""

from __future__ import annotations

from clear_mlflow.learning.strategies._base import Strategy


class Naive(Strategy):
    """Fine-tune the model on the new bucket: the baseline of forgetting.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289: "finetuning".
    """

    supports_distributed = True
