"""Metrics of stored predictions, compared with loops over images and scikit-learn."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from sklearn.metrics import confusion_matrix, log_loss, recall_score, roc_auc_score
from stored_values import build_images, build_row_predictions

from clear_mlflow import AccuracyMatrix, metrics
from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.metrics import (
    PREDICTION_METRICS,
    Predictions,
    class_accuracies,
    compute_values,
    confusion,
    evaluate_metrics,
    macro_matrix,
)
from clear_mlflow.metrics.calibration import _bin_by_confidence
from clear_mlflow.metrics.macro_accuracy import _has_balanced_classes

CLASSES = 3
ERRORS = ("expected_calibration_error", "negative_log_likelihood", "brier_score")
CALIBRATION = {f"calibration/{name}" for name in ERRORS}
CHANGES = {f"class_changes/{name}" for name in ("known", "new", "vanished", "unseen_auroc")}
AMCA = "macro_accuracy/average_over_rows"
MACRO = {f"macro_accuracy/{name}" for name in ("in_domain", "next_domain", "average")} | {AMCA}


def predictions(
    seed: int = 0,
    counts: tuple[int, ...] = (9, 7, 8),
    rows: int = 3,
    *,
    probs: bool = False,
    protocol: str = "iid",
    class_names: tuple[str, ...] = ("a", "b", "c"),
) -> Predictions:
    draws = np.random.default_rng(seed)
    total = sum(counts)
    label = draws.integers(0, CLASSES, total)
    content = draws.integers(0, 256, (total, 16)).astype(np.uint8)
    images = build_images(counts, label, class_names, content)
    labels, soft = {}, {}
    for row in range(rows + 1):
        outputs = draws.normal(size=(total, CLASSES))
        outputs[np.arange(total), images.label] += row / 2
        labels[row] = outputs.argmax(axis=1)
        shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        soft[row] = shares.astype(np.float16)
    stored = build_row_predictions(images, labels, soft if probs else None)
    return Predictions(images, stored, protocol)


def summarize(run: Predictions) -> dict[str, float]:
    return compute_values(run, PREDICTION_METRICS)[0]


def explain(run: Predictions) -> dict[str, str]:
    return {name: str(error) for name, error in compute_values(run, PREDICTION_METRICS)[1].items()}


def compute_series(run: Predictions) -> dict[str, Any]:
    matrix = AccuracyMatrix(np.full((run.k, 3), 0.5))
    results = evaluate_metrics(PREDICTION_METRICS, matrix, predictions=run)
    return {name: result.series for name, result in results.items() if result.series}


def without(run: Predictions, *rows: int) -> Predictions:
    remaining = {row: stored for row, stored in run.rows.items() if row not in rows}
    return Predictions(run.images, remaining, run.protocol, run.k)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), protocol=st.sampled_from(["iid", "streaming"]))
def test_class_accuracies_equal_a_loop(seed: int, protocol: str) -> None:
    run = without(predictions(seed, protocol=protocol), 2)
    images, cells = run.images, class_accuracies(run)
    assert cells.shape == (4, 3, CLASSES)
    for row, j, c in itertools.product(range(4), range(3), range(CLASSES)):
        members = [m for m in range(len(images)) if (images.bucket[m], images.label[m]) == (j, c)]
        hidden = row == 2 or (protocol == "streaming" and row > 0 and j < row)
        if hidden or not members:
            assert math.isnan(cells[row, j, c])
        else:
            right = sum(int(run.rows[row].labels[m]) == c for m in members)
            assert cells[row, j, c] == right / len(members)


def test_macro_accuracy_equals_scikit_learns_macro_recall() -> None:
    run = predictions(1, counts=(40, 50, 60))
    matrix = macro_matrix(run)
    for row, stored in run.rows.items():
        for j in range(3):
            where = run.images.bucket == j
            expected = recall_score(run.images.label[where], stored.labels[where], average="macro")
            cells = matrix.initial if row == 0 else matrix.values[row - 1]
            assert cells is not None
            assert cells[j] == pytest.approx(expected)
    values = summarize(run)
    assert values.keys() == MACRO
    assert values["macro_accuracy/in_domain"] == metrics.clear.in_domain_accuracy(matrix)
    assert values["macro_accuracy/next_domain"] == metrics.clear.next_domain_accuracy(matrix)
    assert values["macro_accuracy/average"] == metrics.renate.average_accuracy(matrix)


def test_amca_equals_a_loop() -> None:
    run = predictions(3)
    rows = [recall_score(run.images.label, run.rows[row].labels, average=None) for row in (1, 2, 3)]
    assert summarize(run)[AMCA] == pytest.approx(sum(map(sum, rows)) / (3 * CLASSES))
    assert explain(without(run, 2))[AMCA] == "the predictions of row 2 were not stored"
    assert AMCA in explain(replace(run, protocol="streaming"))


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), per_class=st.integers(1, 4))
def test_macro_accuracy_of_balanced_buckets_is_the_accuracy(seed: int, per_class: int) -> None:
    draws = np.random.default_rng(seed)
    classes = [draws.permutation(CLASSES)[: draws.integers(1, CLASSES + 1)] for _ in range(2)]
    labels = [draws.permutation(np.repeat(present, per_class)) for present in classes]
    run = predictions(seed, tuple(map(len, labels)), rows=2)
    images = replace(run.images, label=np.concatenate(labels).astype(np.uint16))
    rows = {row: replace(stored, evaluation_set=images.digest) for row, stored in run.rows.items()}
    run = Predictions(images, rows)
    assert _has_balanced_classes(run)
    correct = [stored.count_correct(images) for row, stored in rows.items() if row]
    accuracies = np.array(correct) / [len(labels[j]) for j in range(2)]
    assert np.allclose(macro_matrix(run).values, accuracies, atol=1e-12)
    assert not _has_balanced_classes(predictions(seed, (CLASSES * 3 + 1,) * 2, rows=2))


def test_confusion_equals_scikit_learns() -> None:
    run = predictions(2)
    for row, stored in run.rows.items():
        expected = confusion_matrix(run.images.label, stored.labels, labels=range(CLASSES))
        assert (confusion(run, row) == expected).all()
    streaming = replace(run, protocol="streaming")
    assert [int(confusion(streaming, row).sum()) for row in range(4)] == [24, 15, 8, 0]
    check_error(UndefinedMetricError, "row 2 were not stored", confusion, without(run, 2), 2)


def test_calibration_equals_loops_and_scikit_learn() -> None:
    run = predictions(3, counts=(60, 70, 80), probs=True).after(2)
    where = run.images.bucket < 2
    stored = run.rows[2].probabilities
    assert stored is not None
    soft, labels = stored[where].astype(float), run.images.label[where]
    predicted = run.rows[2].labels[where]
    gaps = 0.0
    for i in range(15):
        low, high = i / 15, (i + 1) / 15
        in_bin = [m for m, label in enumerate(predicted) if low < soft[m, label] <= high]
        if in_bin:
            accuracy = sum(predicted[m] == labels[m] for m in in_bin) / len(in_bin)
            confidence = sum(soft[m, predicted[m]] for m in in_bin) / len(in_bin)
            gaps += len(in_bin) / len(predicted) * abs(accuracy - confidence)
    cells = itertools.product(range(len(predicted)), range(CLASSES))
    brier = sum((soft[m, c] - (labels[m] == c)) ** 2 for m, c in cells)
    values = summarize(run)
    assert values["calibration/expected_calibration_error"] == pytest.approx(gaps)
    assert values["calibration/brier_score"] == pytest.approx(brier / len(predicted))
    exact = soft / soft.sum(axis=1, keepdims=True)
    likelihood = log_loss(labels, exact, labels=range(CLASSES))
    assert values["calibration/negative_log_likelihood"] == pytest.approx(likelihood, abs=1e-3)


def test_a_probability_stored_as_zero_is_not_infinitely_wrong() -> None:
    """Half precision has nothing below 2**-25, which is used instead."""
    run = predictions(counts=(1,), rows=1, probs=True)
    label = int(run.images.label[0])
    soft = np.zeros((1, CLASSES), np.float16)
    soft[0, (label + 1) % CLASSES] = 1
    stored = replace(run.rows[1], probabilities=soft, labels=soft.argmax(1).astype(np.uint8))
    values = summarize(Predictions(run.images, {1: stored}))
    assert values["calibration/negative_log_likelihood"] == pytest.approx(25 * math.log(2))
    assert values["calibration/brier_score"] == 2
    assert values["calibration/expected_calibration_error"] == 1


def test_bins_are_closed_above() -> None:
    """A confidence of 1/15 is in the first bin, 1 in the last, and 0 in the first."""
    confidence = np.array([0.0, 1 / 15, 0.07, 1.0])
    count, accuracy, mean = _bin_by_confidence(np.array([True, False, True, True]), confidence)
    assert (count[[0, 1, 14]] == [2, 1, 1]).all()
    assert count.sum() == 4
    assert (accuracy[0], mean[0]) == (0.5, pytest.approx(1 / 30))
    assert np.isnan(accuracy[2])


def test_a_missing_run_is_reported() -> None:
    full_run = predictions(counts=(30, 30, 30))
    assert summarize(full_run).keys() == MACRO
    reasons = explain(full_run)
    assert reasons.keys() == CALIBRATION | CHANGES
    reason = "needs stored probabilities: predictions=probs"
    assert {reasons[name] for name in CALIBRATION} == {reason}
    reason = "needs classes that some buckets have and others lack"
    assert {reasons[name] for name in CHANGES} == {reason}
    streaming = predictions(probs=True, protocol="streaming")
    assert summarize(streaming).keys() == {"macro_accuracy/next_domain"}
    assert explain(streaming)["calibration/brier_score"].startswith("under the streaming")
    untrained = predictions(rows=0, probs=True)
    assert summarize(untrained) == {}
    assert explain(untrained).keys() == MACRO | CALIBRATION | CHANGES
    full_run = predictions(counts=(30, 30, 30), probs=True)
    assert summarize(full_run).keys() == MACRO | CALIBRATION


def test_a_series_equals_truncated_runs() -> None:
    run = predictions(4, probs=True)
    series = compute_series(run)
    assert series.keys() == MACRO | CALIBRATION
    assert {name: steps[3] for name, steps in series.items()} == summarize(run)
    for name, steps in series.items():
        for k, value in steps.items():
            assert value == summarize(run.after(k))[name]
    gap = compute_series(without(run, 2))
    assert gap["calibration/brier_score"].keys() == {1, 3}
    assert gap["macro_accuracy/average"].keys() == {1, 3}
    assert gap["macro_accuracy/in_domain"].keys() == {1}
    assert without(run, 3).k == 3
    assert summarize(without(run, 3)) == {}


def test_predictions_must_match_the_rows() -> None:
    run = predictions(5)
    counts = run.images.num_instances
    cells = [np.array(stored.count_correct(run.images)) / counts for stored in run.rows.values()]
    matrix = AccuracyMatrix(cells[1:], cells[0], counts)
    run.check(matrix)
    run.check(AccuracyMatrix(np.round(cells[1:], 4), np.round(cells[0], 4)))
    other = np.array(cells[1:])
    other[1, 1] = (other[1, 1] + 0.5) % 1
    for wrong, message in [
        (AccuracyMatrix(cells[1:], cells[0], counts, ("x", "y", "z")), "predictions have buckets"),
        (AccuracyMatrix(cells[1:], cells[0], (9, 8, 8)), "images per bucket, but the rows have"),
        (AccuracyMatrix(other, cells[0], counts), "row 2 have an accuracy of "),
        (AccuracyMatrix(cells[1:3], cells[0], counts), "row 3 are stored, but not the row"),
        (AccuracyMatrix(cells[1:], None, counts), "row 0 are stored"),
    ]:
        check_error(RecordError, message, run.check, wrong)
    check_error(RecordError, "stored under row 1", Predictions, run.images, {1: run.rows[2]})
    check_error(RecordError, "no predictions", Predictions, run.images, {})
    check_error(ConfigError, "'stream'", replace, run, protocol="stream")
    foreign = predictions(6)
    check_error(RecordError, "another evaluation set", Predictions, run.images, foreign.rows)


def changing(seed: int, *, probs: bool = True, protocol: str = "iid") -> Predictions:
    run = predictions(seed, (40, 40, 40), 3, probs=probs, protocol=protocol)
    label = run.images.label.copy()
    label[(run.images.bucket == 0) & (label == 2)] = 1
    label[(run.images.bucket > 0) & (label == 0)] = 1
    images = replace(run.images, label=label)
    rows = {row: replace(of, evaluation_set=images.digest) for row, of in run.rows.items()}
    return Predictions(images, rows, protocol)


@pytest.mark.parametrize("seed", [0, 1])
def test_class_changes_equal_loops_and_scikit_learn(seed: int) -> None:
    run = changing(seed)
    images, values = run.images, summarize(run)

    def accuracy(row: int, buckets: set[int], classes: set[int]) -> float:
        right = [
            stored == label
            for stored, label, bucket in zip(
                run.rows[row].labels, images.label, images.bucket, strict=True
            )
            if bucket in buckets and label in classes
        ]
        return sum(right) / len(right)

    assert values["class_changes/new"] == accuracy(2, {1}, {2})
    both = [accuracy(2, {1}, {1}), accuracy(3, {2}, {1, 2})]
    assert values["class_changes/known"] == pytest.approx(sum(both) / 2)
    assert values["class_changes/vanished"] == accuracy(3, {0, 1}, {0})
    probabilities = run.rows[1].probabilities
    assert probabilities is not None
    area = roc_auc_score(images.label == 2, 1 - probabilities.max(axis=1).astype(float))
    assert values["class_changes/unseen_auroc"] == pytest.approx(area)


def test_unmeasured_class_changes_have_a_reason() -> None:
    reasons = explain(changing(0, probs=False))
    assert reasons["class_changes/unseen_auroc"].startswith("needs stored")
    reasons = explain(changing(0).after(1))
    assert reasons["class_changes/new"].startswith("needs a bucket after the first")
    reason = "needs a class that the last bucket trained on lacks"
    assert reasons["class_changes/vanished"] == reason
    streaming = explain(changing(0, protocol="streaming"))
    assert {streaming[name][:19] for name in CHANGES} == {"under the streaming"}
    lacking = without(changing(0), 2)
    assert explain(lacking)["class_changes/new"] == "the predictions of row 2 were not stored"
