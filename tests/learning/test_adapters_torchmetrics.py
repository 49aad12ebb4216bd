"""MatrixMetrics computes the same metrics as the matrix, for every family."""

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


def draw_batches(seed=0):
    """Return (row, bucket) to logits and true classes, and the matrix of torchmetrics' accuracy."""
    generator = torch.Generator().manual_seed(seed)
    batches, cells = {}, np.zeros((BUCKETS + 1, BUCKETS))
    accuracy = MulticlassAccuracy(CLASSES, average="micro")
    for row in range(BUCKETS + 1):
        for bucket in range(BUCKETS):
            target = torch.randint(CLASSES, (IMAGES,), generator=generator)
            logits = torch.randn(IMAGES, CLASSES, generator=generator)
            logits[torch.arange(IMAGES), target] += row - 0.5 * abs(row - 1 - bucket)
            batches[row, bucket] = logits, target
            cells[row, bucket] = accuracy(logits, target)
    return batches, AccuracyMatrix(cells[1:], initial=cells[0], num_instances=[IMAGES] * BUCKETS)


def to_floats(computed):
    return {name: value.item() for name, value in computed.items()}


def update(metric, batches, part=slice(None)):
    for (row, bucket), (logits, target) in batches.items():
        metric.update(logits[part], target[part], row=row, bucket=bucket)


# Predictions have no costs.
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"cost"}))
def test_batches_of_predictions_have_the_metrics_of_the_matrix(family):
    batches, expected = draw_batches()
    metric = MatrixMetrics(BUCKETS, metrics=FAMILIES[family])
    for part in range(0, IMAGES, 5):
        update(metric, batches, slice(part, part + 5))
    np.testing.assert_allclose(metric.matrix.values, expected.values, atol=1e-7)
    np.testing.assert_allclose(metric.matrix.initial, expected.initial, atol=1e-7)
    assert metric.matrix.num_instances.tolist() == [IMAGES] * BUCKETS
    computed = to_floats(metric.compute())
    assert computed == summarize(metric.matrix, metrics=FAMILIES[family])
    assert computed == pytest.approx(summarize(expected, metrics=FAMILIES[family]))
    assert computed
    assert metric.reasons() == explain(expected, metrics=FAMILIES[family])


def test_labels_and_mixed_buckets_have_equal_results():
    batches, _ = draw_batches()
    by_bucket, mixed = (MatrixMetrics(BUCKETS, metrics=renate.METRICS) for _ in range(2))
    update(by_bucket, batches)
    for row in range(BUCKETS + 1):
        logits, targets = (
            torch.cat(parts)
            for parts in zip(*(batches[row, j] for j in range(BUCKETS)), strict=True)
        )
        labels = logits.argmax(1)
        buckets = torch.arange(BUCKETS).repeat_interleave(IMAGES)
        order = torch.randperm(len(buckets), generator=torch.Generator().manual_seed(row))
        mixed.update(labels[order], targets[order], row=row, bucket=buckets[order])
    assert by_bucket.matrix.equals(mixed.matrix)
    assert to_floats(mixed.compute()) == to_floats(by_bucket.compute())


def test_states_of_several_processes_are_summed():
    batches, _ = draw_batches()
    complete, *halves = (MatrixMetrics(BUCKETS) for _ in range(3))
    update(complete, batches)
    for rank, metric in enumerate(halves):
        update(metric, batches, slice(rank, None, 2))

    def gather(state, group=None):
        (name,) = [n for n in ("correct", "total") if getattr(halves[0], n) is state]
        return [states[0][name], states[1][name]]

    states = [{n: getattr(m, n).clone() for n in ("correct", "total")} for m in halves]
    own_matrix = halves[0].matrix
    halves[0].sync(dist_sync_fn=gather, distributed_available=lambda: True)
    assert halves[0].matrix.equals(complete.matrix)
    assert summarize(halves[0].matrix) == to_floats(complete.compute())
    halves[0].unsync()
    assert halves[0].matrix.equals(own_matrix)


def test_undefined_metrics_have_a_reason():
    metric = MatrixMetrics(BUCKETS, metrics=renate.METRICS)
    update(metric, {key: batch for key, batch in draw_batches()[0].items() if key[0] == 1})
    assert set(metric.compute()) == {"renate/average_accuracy", "renate/micro_average_accuracy"}
    reason = metric.reasons()["renate/forward_transfer"]
    assert "initialisation" in reason or "k >= 2" in reason
    partial = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    partial.update(torch.tensor([1, 1]), torch.tensor([1, 0]), row=1, bucket=0)
    assert math.isnan(partial.matrix.values[0, 1])
    assert partial.matrix.num_instances is None
    assert set(partial.compute()) == {"clear/in_domain_accuracy", "clear/accuracy"}


def test_reset_copy_pickle_and_forward():
    batches, _ = draw_batches()
    metric = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    for (row, bucket), (logits, target) in batches.items():
        batch = metric(logits, target, row=row, bucket=bucket)
    assert set(batch) <= {"clear/in_domain_accuracy", "clear/accuracy"}
    before = to_floats(metric.compute())
    assert to_floats(pickle.loads(pickle.dumps(metric)).compute()) == before
    other = copy.deepcopy(metric)
    metric.reset()
    assert metric.compute() == {}
    assert to_floats(other.compute()) == before


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
def test_a_batch_outside_the_matrix_is_an_error(changes, message):
    metric = MatrixMetrics(BUCKETS, metrics=clear.METRICS)
    batch = {"preds": torch.tensor([0, 1]), "target": torch.tensor([0, 1]), "row": 1, "bucket": 0}
    with pytest.raises(ConfigError, match=message):
        metric.update(**{**batch, **changes})
    assert int(metric.total.sum()) == 0
