"""What a run cost, of which its rows' files keep count; lower is better but in the last.

Each takes a (k, T) matrix with the cost of its k rows, in the units below, and raises
UndefinedMetricError where a row says nothing of it, as rows of other programs and of older versions
do. They are computed wherever the rows have costs, whatever families are chosen.

Source: docs/cost.md, which says what is counted; Prabhu et al., arXiv:2303.11165, and
arXiv:2410.15143 compare continual learners by it.
"""

from __future__ import annotations

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import ANY, COSTS, Metric, require_trained
from clear_mlflow.metrics.clear import challenge_score


def training_flops(matrix: AccuracyMatrix) -> float:
    """FLOPs of training so far: forward, backward, and what the strategy adds.

    Formula: sum of training_flops[i] over i < k. Defined when k >= 1 and each row says it.

    >>> from clear_mlflow.core.matrix import RowCost
    >>> costs = [RowCost(training_flops=2 * 10**12), RowCost(training_flops=3 * 10**12)]
    >>> training_flops(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]], costs=costs))
    5000000000000.0
    """
    return sum(_of_rows(matrix, "training_flops"))


def seconds(matrix: AccuracyMatrix) -> float:
    """Seconds of training so far, on the machine that it was trained on; tests are not in it.

    Formula: sum of seconds[i] over i < k. Defined when k >= 1 and each row says it. In seconds.
    """
    return sum(_of_rows(matrix, "seconds"))


def images(matrix: AccuracyMatrix) -> float:
    """Images that steps trained on so far, new and replayed, in every epoch.

    Formula: sum of images[i] + replayed_images[i] over i < k. Defined when k >= 1 and each row says
    both. An image counts in every epoch.
    """
    return sum(_of_rows(matrix, "images") + _of_rows(matrix, "replayed_images"))


def stored_bytes(matrix: AccuracyMatrix) -> float:
    """The most that the strategy kept between two buckets, bytes.

    Formula: max of stored_bytes[i] over i < k. Defined when k >= 1 and each row says it. In bytes.
    """
    return max(_of_rows(matrix, "stored_bytes"))


def challenge_score_per_pflop(matrix: AccuracyMatrix) -> float:
    """CLEAR's challenge score for each 10^15 FLOPs of training.

    Formula: clear/challenge_score / (cost/training_flops / 10^15). Defined when both are, and
    training took FLOPs. Per PFLOP.
    """
    spent = training_flops(matrix)
    if spent == 0:
        raise UndefinedMetricError("needs training that takes FLOPs")
    return challenge_score(matrix) / (spent / 1e15)


def _of_rows(matrix: AccuracyMatrix, name: str) -> list[float]:
    """A number of each row's cost."""
    require_trained(matrix, 1, "a trained bucket")
    found = []
    for row, cost in enumerate(matrix.costs, start=1):
        number = getattr(cost, name, None)
        if number is None:
            raise UndefinedMetricError(f"row {row} says nothing of its {name}")
        found.append(float(number))
    return found


METRICS = (
    *(
        Metric(
            name=f"cost/{function.__name__}",
            function=function,
            needs=COSTS,
            higher_is_better=False,
            unit=unit,
            rank_priority=None,
            score_role=ANY,
        )
        for function, unit in (
            (training_flops, "FLOPs"),
            (seconds, "s"),
            (images, "images"),
            (stored_bytes, "bytes"),
        )
    ),
    Metric(
        name="cost/challenge_score_per_pflop",
        function=challenge_score_per_pflop,
        needs=COSTS,
        unit="1/PFLOP",
        rank_priority=None,
    ),
)
