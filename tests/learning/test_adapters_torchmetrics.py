"""Every family as torchmetrics: what they compute is what the matrix defines."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from courses import explain
from torchmetrics.classification import MulticlassAccuracy

from clear_mlflow import AccuracyMatrix, clear, renate
from clear_mlflow.adapters.torchmetrics import MatrixMetrics
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.metrics import FAMILIES, summarize

CLASSES, BUCKETS, IMAGES = 4, 3, 12


def answers(seed=0):
    """For each row and bucket, logits and true classes; and torchmetrics' own accuracy of them."""
    generator = torch.Generator().manual_seed(seed)
    found, cells = {}, np.zeros((BUCKETS + 1, BUCKETS))
    accuracy = MulticlassAccuracy(CLASSES, average="micro")
    for row in range(BUCKETS + 1):
        for bucket in range(BUCKETS):
            target = torch.randint(CLASSES, (IMAGES,), generator=generator)
            logits = torch.randn(IMAGES, CLASSES, generator=generator)
            logits[torch.arange(IMAGES), target] += row - 0.5 * abs(row - 1 - bucket)
            found[row, bucket] = logits, target
            cells[row, bucket] = accuracy(logits, target)
    return found, AccuracyMatrix(cells[1:], initial=cells[0], num_instances=[IMAGES] * BUCKETS)


def numbers(computed):
    return {name: value.item() for name, value in computed.items()}


# Predictions do not say what rows cost.
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"cost"}))
def test_predictions_in_batches_give_the_familys_metrics(family):
    """Cell by cell the matrix of torchmetrics' own accuracy, and every metric of the family."""
    found, expected = answers()
    metric = MatrixMetrics(BUCKETS, metrics=FAMILIES[family])
    for (row, bucket), (logits, target) in found.items():
        for part in range(0, IMAGES, 5):
            some = slice(part, part + 5)
            metric.update(logits[some], target[some], row=row, bucket=bucket)
    np.testing.assert_allclose(metric.matrix.values, expected.values, atol=1e-7)
    np.testing.assert_allclose(metric.matrix.initial, expected.initial, atol=1e-7)
    assert metric.matrix.num_instances.tolist() == [IMAGES] * BUCKETS
    computed = numbers(metric.compute())
    assert computed == summarize(metric.matrix, metrics=FAMILIES[family])
    assert computed == pytest.approx(summarize(expected, metrics=FAMILIES[family]))
    assert computed
    assert metric.reasons() == explain(expected, metrics=FAMILIES[family])


def test_labels_and_mixed_buckets_are_the_same():
    """One batch over all buckets, and classes instead of logits."""
    found, _ = answers()
    by_bucket, mixed = (MatrixMetrics(BUCKETS, metrics=renate.METRICS) for _ in range(2))
    for row in range(BUCKETS + 1):
        several = [found[row, bucket] for bucket in range(BUCKETS)]
        for bucket, (logits, target) in enumerate(several):
            by_bucket.update(logits, target, row=row, bucket=bucket)
        labels = torch.cat([logits.argmax(1) for logits, _ in several])
        targets = torch.cat([target for _, target in several])
        buckets = torch.arange(BUCKETS).repeat_interleave(IMAGES)
        order = torch.randperm(len(buckets), generator=torch.Generator().manual_seed(row))
        mixed.update(labels[order], targets[order], row=row, bucket=buckets[order])
    assert by_bucket.matrix.equals(mixed.matrix)
    assert numbers(mixed.compute()) == numbers(by_bucket.compute())


def test_states_of_several_processes_are_added_up():
    """Each has seen half of the images; synced, all have the whole, and unsync gives it back."""
    found, _ = answers()
    whole, *halves = (MatrixMetrics(BUCKETS) for _ in range(3))
    for (row, bucket), (logits, target) in found.items():
        whole.update(logits, target, row=row, bucket=bucket)
        for rank, metric in enumerate(halves):
            metric.update(logits[rank::2], target[rank::2], row=row, bucket=bucket)

    def gathered(state, group=None):
        (name,) = [n for n in ("correct", "total") if getattr(halves[0], n) is state]
        return [states[0][name], states[1][name]]

    states = [{n: getattr(m, n).clone() for n in ("correct", "total")} for m in halves]
    alone = halves[0].matrix
    halves[0].sync(dist_sync_fn=gathered, distributed_available=lambda: True)
    assert halves[0].matrix.equals(whole.matrix)
    assert summarize(halves[0].matrix) == numbers(whole.compute())
    halves[0].unsync()
    assert halves[0].matrix.equals(alone)


def test_what_is_not_measured_is_not_there():
    """Undefined is neither 0 nor NaN; the reason is told."""
    metric = MatrixMetrics(BUCKETS, metrics=renate.METRICS)
    for (row, bucket), (logits, target) in answers()[0].items():
        if row == 1:
            metric.update(logits, target, row=row, bucket=bucket)
    assert set(metric.compute()) == {
        "renate/average_accuracy",
        "renate/micro_average_accuracy",
    }
    assert (
        "initialisation" in metric.reasons()["renate/forward_transfer"]
        or "k >= 2" in (metric.reasons()["renate/forward_transfer"])
    )
    partial = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    partial.update(torch.tensor([1, 1]), torch.tensor([1, 0]), row=1, bucket=0)
    assert math.isnan(partial.matrix.values[0, 1])
    assert partial.matrix.num_instances is None
    assert set(partial.compute()) == {"clear/in_domain_accuracy", "clear/accuracy"}


def test_reset_copies_pickles_and_forward():
    """What torchmetrics' own machinery does with any metric."""
    found, _ = answers()
    metric = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    for (row, bucket), (logits, target) in found.items():
        batch = metric(logits, target, row=row, bucket=bucket)
    assert set(batch) <= {"clear/in_domain_accuracy", "clear/accuracy"}
    before = numbers(metric.compute())
    assert numbers(pickle.loads(pickle.dumps(metric)).compute()) == before
    other = copy.deepcopy(metric)
    metric.reset()
    assert metric.compute() == {}
    assert numbers(other.compute()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": 4}, "row is 4; expected 0 to 3"),
        ({"row": -1}, "row is -1"),
        ({"bucket": 3}, "bucket is 3; expected 0 to 2"),
        ({"bucket": torch.tensor([0, 3])}, "bucket is 3"),
        ({"bucket": torch.tensor([0])}, "expected one for each of the 2 images"),
        ({"preds": torch.tensor([0])}, "preds have shape"),
    ],
)
def test_a_batch_of_no_cell_is_refused(changes, message):
    """Before anything is counted."""
    metric = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    batch = {"preds": torch.tensor([0, 1]), "target": torch.tensor([0, 1]), "row": 1, "bucket": 0}
    with pytest.raises(ConfigError, match=message):
        metric.update(**{**batch, **changes})
    assert int(metric.total.sum()) == 0
