"""The metrics of the time-continual benchmarks TiC-CLIP and TiC-LM: means over three regions.

On accuracies they are CLEAR's of like names. TiC-LM takes the same means of what it measures there:
log-perplexities less an oracle's, which are no accuracies and not in this matrix.

Source: Garg et al., TiC-CLIP: Continual Training of CLIP Models, ICLR 2024, arXiv:2310.16226; Li et
al., TiC-LM: A Web-Scale Benchmark for Time-Continual LLM Pretraining, ACL 2025, arXiv:2504.02107.
"""

from __future__ import annotations

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import clear
from clear_mlflow.metrics._base import Metric


def in_domain(matrix: AccuracyMatrix) -> float:
    """In-domain performance: mean accuracy on the bucket just trained, the diagonal.

    Formula: mean of R[i, i] over i < k. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        Garg et al. 2024.

    >>> round(in_domain(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.85
    """
    return clear.in_domain_accuracy(matrix)


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """Backward transfer: mean accuracy on earlier buckets. Nothing is subtracted.

    Formula: mean of R[i, j] over j < i < k. Defined when k >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.

    Source:
        Garg et al. 2024.

    >>> backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.5
    """
    return clear.backward_transfer(matrix)


def forward_transfer(matrix: AccuracyMatrix) -> float:
    """Forward transfer: mean accuracy on later buckets. Nothing is subtracted.

    Formula: mean of R[i, j] over i < k and i < j < T. Defined when k >= 1 and T >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: there is no future bucket, or a cell was not measured.

    Source:
        Garg et al. 2024.

    >>> forward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.1
    """
    return clear.forward_transfer(matrix)


METRICS = (
    Metric(name="tic/in_domain", function=in_domain),
    Metric(name="tic/backward_transfer", function=backward_transfer),
    Metric(name="tic/forward_transfer", function=forward_transfer),
)
