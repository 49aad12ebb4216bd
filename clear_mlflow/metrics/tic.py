"""The metrics of the time-continual benchmarks TiC-CLIP and TiC-LM: means over three regions.

On accuracies they are CLEAR's of like names. TiC-LM takes the same means of what it measures there:
log-perplexities less an oracle's, which are no accuracies and not in this matrix.

Source: Garg et al., TiC-CLIP: Continual Training of CLIP Models, ICLR 2024, arXiv:2310.16226; Li et
al., TiC-LM: A Web-Scale Benchmark for Time-Continual LLM Pretraining, ACL 2025, arXiv:2504.02107.
"""

from __future__ import annotations

from clear_mlflow.metrics import clear
from clear_mlflow.metrics._base import level

# The same regions, under the names of these papers.
METRICS = (
    level("tic/in_domain", clear.in_domain_accuracy),
    level("tic/backward_transfer", clear.backward_transfer, "tic/backward_{score}"),
    level("tic/forward_transfer", clear.forward_transfer, "tic/forward_{score}"),
)
