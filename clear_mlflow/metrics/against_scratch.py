"""What a drop on another bucket consists of, measured against training from scratch.

A model is worse on bucket j than on bucket i, which it was just trained on, for three reasons: it
was better on bucket i than a new model would be (lead), bucket j is harder for any model (harder),
and training on bucket j yields another model (not adapted; for a past bucket, forgetting):
R[i, i] - R[i, j] = (R[i, i] - o[i]) + (o[i] - o[j]) + (o[j] - R[i, j]).
o[j] is the accuracy on bucket j of a model trained from scratch through bucket j.

``clear-mlflow compare --oracle from_scratch`` computes these metrics. Differences are fractions in
[-1, 1]. Of another score, a positive difference means better, too. A metric is undefined if a cell
or an o[j] was not measured, as under the streaming protocol, whose matrix lacks the diagonal.

Source: the question is from arXiv:2604.07266; the decomposition is an identity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from clear_mlflow.metrics._metric import SCRATCH, Metric
from clear_mlflow.metrics._scratch import ScratchMatrix, average_cells


def plasticity(matrix: ScratchMatrix) -> float:
    """Accuracy on the bucket just trained, minus what training from scratch reaches.

    Formula: mean of R[i, i] - o[i] over i < k. Defined when k >= 1.
    """
    return average_cells(matrix.diagonal - matrix.scratch_column, "a trained bucket")


def drop(matrix: ScratchMatrix, *, past: bool) -> float:
    """Accuracy on the bucket just trained, minus that on the others: the sum of the next three.

    Formula: mean of R[i, i] - R[i, j] over j > i, or j < i. Defined when such a bucket exists.
    """
    return matrix.average(matrix.diagonal - matrix.values, past=past)


def lead(matrix: ScratchMatrix, *, past: bool) -> float:
    """Part of the drop: the model was better on its own bucket than training from scratch.

    Formula: mean of R[i, i] - o[i] over j > i, or j < i. Defined when such a bucket exists.
    """
    return matrix.average(matrix.diagonal - matrix.scratch_column, past=past)


def harder(matrix: ScratchMatrix, *, past: bool) -> float:
    """Part of the drop: the other buckets are harder, for training from scratch as well.

    Formula: mean of o[i] - o[j] over j > i, or j < i. Defined when such a bucket exists.
    """
    return matrix.average(matrix.scratch_column - matrix.scratch, past=past)


def not_adapted(matrix: ScratchMatrix) -> float:
    """Part of the drop on future buckets: training from scratch through them is better on them.

    Formula: mean of o[j] - R[i, j] over j > i. Defined when such a bucket exists.
    """
    return matrix.average(matrix.scratch - matrix.values, past=False)


def forgetting(matrix: ScratchMatrix) -> float:
    """Part of the drop on past buckets: training from scratch through them is better on them.

    Formula: mean of o[j] - R[i, j] over j < i. Defined when k >= 2.
    """
    return matrix.average(matrix.scratch - matrix.values, past=True)


_FUNCTIONS: dict[str, tuple[Callable[[ScratchMatrix], float], bool | None]] = {
    "plasticity": (plasticity, True),
    "drop": (partial(drop, past=False), False),
    "lead": (partial(lead, past=False), None),
    "harder": (partial(harder, past=False), None),
    "not_adapted": (not_adapted, False),
    "drop_past": (partial(drop, past=True), False),
    "lead_past": (partial(lead, past=True), None),
    "harder_past": (partial(harder, past=True), None),
    "forgetting": (forgetting, False),
}
METRICS = tuple(
    Metric(
        name=f"against_scratch/{name}",
        function=function,
        needs=SCRATCH,
        higher_is_better=higher_is_better,
        rank_priority=None,
    )
    for name, (function, higher_is_better) in _FUNCTIONS.items()
)
