"""Costs of a run, as far as its rows contain them; lower is better, except for the last metric.

They are computed if the rows have costs, whatever families are chosen, and undefined if a row lacks
the cost, as rows of other programs do.

Source: docs/cost.md defines what is counted; Prabhu et al., arXiv:2303.11165, and arXiv:2410.15143
compare continual learners by cost.
"""

from __future__ import annotations

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import ANY, COSTS, Value, declare, require_trained
from clear_mlflow.metrics.clear import challenge_score


def training_flops(matrix: AccuracyMatrix) -> float:
    """FLOPs of training so far: forward, backward, and what the strategy adds.

    Formula: sum of training_flops[i] over i < k. Defined when k >= 1 and each row has it.

    >>> from clear_mlflow.core.score import RowCost
    >>> costs = [RowCost(training_flops=2 * 10**12), RowCost(training_flops=3 * 10**12)]
    >>> training_flops(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]], costs=costs))
    5000000000000.0
    """
    return sum(_get_row_costs(matrix, "training_flops"))


def seconds(matrix: AccuracyMatrix) -> float:
    """Seconds of training so far on the machine of the run, without tests.

    Formula: sum of seconds[i] over i < k. Defined when k >= 1 and each row has it. In seconds.
    """
    return sum(_get_row_costs(matrix, "seconds"))


def images(matrix: AccuracyMatrix) -> float:
    """Images trained on so far, new and replayed, in every epoch.

    Formula: sum of images[i] + replayed_images[i] over i < k. Defined when k >= 1 and each row has
    both.
    """
    return sum(_get_row_costs(matrix, "images") + _get_row_costs(matrix, "replayed_images"))


def stored_bytes(matrix: AccuracyMatrix) -> float:
    """Largest number of bytes that the strategy stored between two buckets.

    Formula: max of stored_bytes[i] over i < k. Defined when k >= 1 and each row has it. In bytes.
    """
    return max(_get_row_costs(matrix, "stored_bytes"))


def challenge_score_per_pflop(matrix: AccuracyMatrix) -> Value:
    """CLEAR's challenge score for each 10^15 FLOPs of training.

    Formula: clear/challenge_score / (cost/training_flops / 10^15). Defined when both are, and
    training took FLOPs. Per PFLOP.
    """
    flops = training_flops(matrix)
    if flops == 0:
        raise UndefinedMetricError("needs training that takes FLOPs")
    return challenge_score(matrix) / (flops / 1e15)


def _get_row_costs(matrix: AccuracyMatrix, field: str) -> list[float]:
    require_trained(matrix, 1, "a trained bucket")
    costs = []
    for row, cost in enumerate(matrix.costs, start=1):
        value = getattr(cost, field, None)
        if value is None:
            raise UndefinedMetricError(f"row {row} lacks {field}")
        costs.append(float(value))
    return costs


_UNITS = {training_flops: "FLOPs", seconds: "s", images: "images", stored_bytes: "bytes"}
METRICS = (
    *(
        declare(
            function,
            needs=COSTS,
            higher_is_better=False,
            unit=unit,
            rank_priority=None,
            score_role=ANY,
        )
        for function, unit in _UNITS.items()
    ),
    declare(challenge_score_per_pflop, needs=COSTS, unit="1/PFLOP", rank_priority=None),
)
