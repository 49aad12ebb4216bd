"""The metrics of the time-continual benchmarks TiC-CLIP and TiC-LM: means over three regions.

On accuracies they are CLEAR's of like names. TiC-LM takes the same means of what it measures there:
log-perplexities less an oracle's, which are no accuracies and not in this matrix.

Source: Garg et al., TiC-CLIP: Continual Training of CLIP Models, ICLR 2024, arXiv:2310.16226; Li et
al., TiC-LM: A Web-Scale Benchmark for Time-Continual LLM Pretraining, ACL 2025, arXiv:2504.02107.
"""

from __future__ import annotations

from clear_mlflow.metrics import clear
from clear_mlflow.metrics._base import LEVEL, Metric

# The same regions, under the names of these papers.
METRICS = (
    Metric(name="tic/in_domain", function=clear.in_domain_accuracy, takes=LEVEL),
    Metric(name="tic/backward_transfer", function=clear.backward_transfer, takes=LEVEL),
    Metric(name="tic/forward_transfer", function=clear.forward_transfer, takes=LEVEL),
)
