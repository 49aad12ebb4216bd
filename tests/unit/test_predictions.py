"""Predictions per image: they round-trip, and damage is named."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from safetensors.numpy import load
from stored_values import build_images

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)


def evaluation_set(counts: tuple[int, ...] = (3, 2), classes: int = 4) -> EvaluationSet:
    total = sum(counts)
    content = np.random.default_rng(0).integers(0, 256, (total, 16)).astype(np.uint8)
    classes_of, names = np.arange(total) % classes, tuple(f"image é {i}" for i in range(total))
    class_names = [f"class {c}" for c in range(classes)]
    return build_images(counts, classes_of, class_names, content, names=names)


def build_row(images: EvaluationSet, labels: list[int], **options: object) -> RowPredictions:
    options |= {"labels": np.array(labels, dtype=np.uint8), "evaluation_set": images.digest}
    return RowPredictions(row=2, **options)


def test_an_evaluation_set_round_trips(tmp_path: Path) -> None:
    images = evaluation_set()
    (tmp_path / EVALUATION_SET_FILE).write_bytes(images.to_bytes())
    back = EvaluationSet.load(tmp_path / EVALUATION_SET_FILE)
    for name in ("bucket", "label", "content"):
        assert np.array_equal(getattr(back, name), getattr(images, name))
    assert back.names == images.names
    assert (back.buckets, back.class_names) == (images.buckets, images.class_names)
    assert (back.digest, back.num_instances) == (images.digest, (3, 2))


@pytest.mark.parametrize("part", ["bucket", "label", "content", "class_names", "buckets"])
def test_the_digest_follows_from_every_part(part: str) -> None:
    images = evaluation_set()
    names = ("buckets", "class_names", "bucket", "label", "content", "names")
    parts = {name: getattr(images, name) for name in names}
    changed = parts[part]
    if isinstance(changed, tuple):
        changed = (*changed[:-1], "other")
    elif part == "bucket":
        changed = np.array([0, 0, 1, 1, 1], dtype=np.uint16)
    else:
        changed = changed.copy()
        changed[0] = (changed[0] + 1) % 4
    assert EvaluationSet(**{**parts, part: changed}).digest != images.digest
    assert EvaluationSet(**{**parts, "names": tuple("abcde")}).digest == images.digest


@settings(max_examples=40)
@given(labels=st.lists(st.integers(0, 3), min_size=5, max_size=5), probs=st.booleans())
def test_predictions_round_trip_with_the_counts_of_their_row(tmp_path_factory, labels, probs):
    images = evaluation_set()
    probabilities = np.full((5, 4), 0.25, dtype=np.float16) if probs else None
    path = tmp_path_factory.mktemp("p") / format_predictions_file_name(2)
    path.write_bytes(build_row(images, labels, probabilities=probabilities).to_bytes())
    back = RowPredictions.load(path)
    assert back.labels.tolist() == labels
    assert (back.probabilities is not None) == probs
    correct = [0, 0]
    for i, label in enumerate(labels):
        correct[images.bucket[i]] += int(label == images.label[i])
    back.check(images, (correct[0] / 3, correct[1] / 2))


def test_predictions_of_another_row_or_set_are_rejected(tmp_path: Path) -> None:
    images = evaluation_set()
    row = build_row(images, [0, 1, 2, 3, 0])
    check_error(RecordError, "another evaluation set", row.check, evaluation_set((2, 3)))
    with pytest.raises(RecordError, match="a class that is not one of the 4"):
        build_row(images, [9, 0, 0, 0, 0]).check(images)
    (tmp_path / format_predictions_file_name(3)).write_bytes(row.to_bytes())
    with pytest.raises(RecordError, match="contains the predictions of row '2'"):
        RowPredictions.load(tmp_path / format_predictions_file_name(3))


def test_predictions_are_compared_with_the_rows_accuracies() -> None:
    images = evaluation_set()
    row = build_row(images, [0, 1, 0, 3, 0])  # 2 of 3 right, and 2 of 2
    for accuracies in ((0.667, 1.0), (float(np.float32(2 / 3)), 1.0), (0.6667, float("nan"))):
        row.check(images, accuracies)
    message = "row 2 have an accuracy of 0.6667, but the stored row has 0.3333"
    check_error(RecordError, message, row.check, images, (1 / 3, 1.0))


@pytest.mark.parametrize("bad", [float("nan"), 1.5, 1.001, -0.25])
def test_probabilities_are_checked(bad: float) -> None:
    probabilities = np.eye(5, 4, dtype=np.float16)
    assert build_row(evaluation_set(), [0] * 5, probabilities=probabilities.copy())
    probabilities[3, 1] = bad
    with pytest.raises(RecordError, match="must be float16 from 0 to 1"):
        build_row(evaluation_set(), [0] * 5, probabilities=probabilities)


def _header(metadata: dict[str, str], tensors: dict[str, object], body: bytes) -> bytes:
    header = json.dumps({"__metadata__": metadata, **tensors}).encode()
    return struct.pack("<Q", len(header)) + header + body


def tensor(shape: object, offsets: list[int], dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


PREDICTIONS = {"format": "clear_mlflow/predictions", "version": "1.0", "row": "2"}
HOSTILE = {
    "empty": b"",
    "text": b"<script>alert(1)</script>" * 20,
    "pickle": b"\x80\x04\x95" + b"\0" * 64,
    "huge header": struct.pack("<Q", 2**60) + b"{}",
    "other format": _header({"format": "x"}, {}, b""),
    "text shapes": _header(PREDICTIONS, {"labels": tensor("4", [0, 4])}, b"\0" * 4),
    "more axes than arrays have": _header(PREDICTIONS, {"labels": tensor([1] * 80, [0, 1])}, b"\0"),
    "more than memory": _header(PREDICTIONS, {"labels": tensor([0, 2**62], [0, 0])}, b""),
    "a name twice": _header(PREDICTIONS, {"labels": tensor([1], [0, 1])}, b"\0").replace(
        b'"row"', b'"row": "1", "row"'
    ),
    "newer": _header({**PREDICTIONS, "version": "2.0"}, {"labels": tensor([1], [0, 1])}, b"\0"),
    "more than the file holds": _header(
        PREDICTIONS, {"labels": tensor([2**40], [0, 2**40])}, b"\0"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / format_predictions_file_name(2)
    path.write_bytes(HOSTILE[name])
    for read in (RowPredictions.load, EvaluationSet.load):
        check_error(RecordError, "row_002.safetensors", read, path)


def test_equal_predictions_are_equal_files() -> None:
    """To the bit, so that resumed runs can be compared."""
    images = evaluation_set()
    row = RowPredictions(row=2, labels=np.zeros(3, np.uint8), evaluation_set=images.digest)
    assert len({images.to_bytes() for _ in range(30)}) == 1
    assert len({row.to_bytes() for _ in range(30)}) == 1


@pytest.mark.parametrize("probs", [False, True])
def test_the_package_reads_what_is_written(probs: bool) -> None:
    probabilities = np.full((5, 4), 0.25, dtype=np.float16) if probs else None
    row = build_row(evaluation_set(), [0, 1, 2, 3, 0], probabilities=probabilities)
    loaded = load(row.to_bytes())
    assert loaded.keys() == ({"labels", "probabilities"} if probs else {"labels"})
    assert (loaded["labels"].dtype, loaded["labels"].tolist()) == (np.uint8, [0, 1, 2, 3, 0])
