"""The metrics of Chaudhry et al. 2018: accuracy, forgetting and intransigence after bucket k.

The first two are Renate's. Intransigence asks how much worse the bucket just trained is known than
by a model that was trained on all buckets so far at once: another run, which has to be named.

Source: Chaudhry et al., Riemannian Walk for Incremental Learning: Understanding Forgetting and
Intransigence, ECCV 2018, arXiv:1801.10112; ``compute_fgt`` in ``utils/utils.py`` of
facebookresearch/agem, 4542149.
"""

from __future__ import annotations

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import renate
from clear_mlflow.metrics._base import change, level, measured, need_trained


def intransigence(matrix: AccuracyMatrix, joint: AccuracyMatrix | None = None) -> float:
    """I_k: how much better joint training knows bucket k than the run that has just trained on it.

    Formula: J[last, last] - R[last, last], J being the matrix of a run that is trained on all
    buckets so far at once. Defined when k >= 1 and such a run is named. J is (k, T) or longer, as
    of the strategy ``cumulative``. A difference in [-1, 1]; lower is better. Negative: learning in
    steps has helped. UndefinedMetricError where one of the two cells was not measured.

    >>> joint = AccuracyMatrix([[0.8, 0.1], [0.8, 0.95]])
    >>> round(intransigence(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]), joint), 6)
    0.05
    """
    need_trained(matrix, 1, "a trained bucket")
    if joint is None:
        raise UndefinedMetricError("needs a joint run (--joint-run)")
    last = matrix.num_rows - 1
    if joint.num_rows <= last:
        raise UndefinedMetricError(
            f"needs row {last + 1} of the joint run (it was trained on {joint.num_rows})"
        )
    reference = measured(joint.values[last, last : last + 1], lambda _: f"J[{last}, {last}]")
    own = measured(matrix.values[last, last : last + 1], lambda _: f"R[{last}, {last}]")
    return float(reference[0] - own[0])


# A_k, F_k (their `compute_fgt` is the same) and I_k.
METRICS = (
    level("chaudhry/average_accuracy", renate.average_accuracy, "chaudhry/average_{score}"),
    change("chaudhry/forgetting", renate.forgetting, higher_is_better=False),
    change("chaudhry/intransigence", intransigence, higher_is_better=False),
)
