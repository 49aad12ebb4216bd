"""The metrics of GEM: what the last row says, and how it came to be.

They are Renate's of the same name, under the name that papers cite them by. The authors' program
is not quite their paper: its means of backward and forward transfer count the one bucket that has
none as 0 (``bwt.mean()``, ``fwt.mean()`` over all T buckets), so they are (T - 1) / T of what
equations 3 and 4 say. Here is what the equations say, as in Renate, mammoth and Avalanche.

Source: Lopez-Paz & Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017,
arXiv:1706.08840; ``metrics/metrics.py`` of facebookresearch/GradientEpisodicMemory, 34c6b8e.
"""

from __future__ import annotations

from clear_mlflow.metrics import renate
from clear_mlflow.metrics._base import change, level

# Equations 2, 3 and 4.
METRICS = (
    level("gem/average_accuracy", renate.average_accuracy, "gem/average_{score}"),
    change("gem/backward_transfer", renate.backward_transfer),
    change("gem/forward_transfer", renate.forward_transfer),
)
