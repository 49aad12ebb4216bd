"""Arguments and results that a custom training loop passes, checked before MLflow sees them."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.dataset import UNKNOWN, DatasetDescription
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count, safe_repr, warn
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_CLASSES

_RESERVED = ("mlflow.", "clear_mlflow.")
_INTEGER = "a whole number"


def add_true_labels(
    dataset: DatasetDescription, labels: object, ids: Sequence[Sequence[object]] | None = None
) -> DatasetDescription:
    """Return a dataset with an evaluation set of labels, or raise ConfigError.

    Sets ``num_test`` and ``class_names``, too, and a digest if the dataset has none.
    labels: class indices of the test images, per bucket. ids: a name of each image, per bucket.
    Raises RecordError if the dataset has other labels already, and ConfigError if the arguments are
    invalid or contradict ``num_test``.
    """
    if not dataset.score.is_accuracy:
        raise ConfigError(
            f"score is {dataset.score.name!r}, and test labels were passed, from which accuracies "
            "are counted; leave them out, or leave score out"
        )
    images = _build_evaluation_set(dataset.buckets, labels, ids, dataset.class_names)
    if (stored := dataset.evaluation_set) is not None:
        if images.num_instances != stored.num_instances or not np.array_equal(
            images.label, stored.label
        ):
            raise RecordError("true labels differ from those before; test images stay the same")
        return dataset
    if dataset.num_test not in (None, images.num_instances):
        raise ConfigError(
            f"num_instances is {safe_repr(dataset.num_test)}, but test_labels has "
            f"{safe_repr(images.num_instances)} images; leave num_instances out"
        )
    return replace(
        dataset,
        num_test=images.num_instances,
        digest=images.digest if dataset.digest == UNKNOWN else dataset.digest,
        class_names=images.class_names,
        evaluation_set=images,
    )


def _build_evaluation_set(
    buckets: Sequence[str],
    labels: object,
    ids: Sequence[Sequence[object]] | None,
    class_names: Sequence[str],
) -> EvaluationSet:
    """Build the evaluation set of all buckets, or raise ConfigError.

    Without *ids*, images are named by their index. The content hash of an image is a hash of its
    bucket and name, because its file is not known. Raises ConfigError if an argument is invalid.
    """
    bucket_labels = [
        _parse_labels(f"test_labels of bucket {key!r}", values)
        for key, values in zip(buckets, _split_buckets("test_labels", buckets, labels), strict=True)
    ]
    counts = list(map(len, bucket_labels))
    names = [
        list(map(str, bucket_ids))
        for bucket_ids in (
            map(range, counts) if ids is None else _split_buckets("test_ids", buckets, ids)
        )
    ]
    if list(map(len, names)) != counts:
        raise ConfigError("test_ids and test_labels differ in length; expected one for each image")
    for key, bucket_names in zip(buckets, names, strict=True):
        if len(set(bucket_names)) != len(bucket_names) or "\n" in "".join(bucket_names):
            raise ConfigError(
                f"test_ids of bucket {key!r} contains a name twice, or a line break; expected a "
                "different name for each image"
            )
    if not all(counts):
        raise ConfigError("test_labels lacks a bucket's images; expected some for each bucket")
    label = np.concatenate(bucket_labels)
    content = b"".join(
        hashlib.sha256(f"{key}\n{name}".encode()).digest()[:16]
        for key, bucket_names in zip(buckets, names, strict=True)
        for name in bucket_names
    )
    try:
        return EvaluationSet(
            buckets=tuple(buckets),
            class_names=tuple(class_names or map(str, range(int(label.max()) + 1))),
            bucket=np.repeat(np.arange(len(counts)), counts).astype(np.uint16),
            label=label,
            content=np.frombuffer(content, dtype=np.uint8).reshape(-1, 16).copy(),
            names=tuple(name for bucket_names in names for name in bucket_names),
        )
    except RecordError as error:
        raise ConfigError(f"test_labels and class_names do not fit: {error}") from error


def build_count_row(dataset: DatasetDescription, after: object, correct: object) -> AccuracyRow:
    """Build a row from the correctly classified test images per bucket.

    correct: a count per bucket, or by bucket.

    after: name of the last bucket trained on, or the number of buckets trained, 0 before any.
    Raises ConfigError or RecordError if an argument is invalid.
    """
    check_accuracy(dataset.score, "counts")
    if dataset.num_test is None:
        raise ConfigError(
            "counts were passed, but num_instances is not known; pass it to track, or fractions to "
            "log_accuracies"
        )
    expected = f"{_INTEGER} (fractions go to log_accuracies)"
    counts = _parse_counts("correct", dataset.buckets, correct, expected)
    return AccuracyRow(_parse_row_number(dataset, after), dataset.buckets, counts, dataset.num_test)


def build_value_row(dataset: DatasetDescription, after: object, values: object) -> AccuracyRow:
    """Build a row from the score on each bucket.

    NaN, None or an absent key means not measured.

    after: see :func:`build_count_row`.
    """
    values = _key_series(values)
    if isinstance(values, Mapping):
        values = {**dict.fromkeys(dataset.buckets), **_key_by_bucket(dataset.score.name, values)}
    cells = map(_to_python, _split_buckets(dataset.score.name, dataset.buckets, values))
    return AccuracyRow.from_values(
        _parse_row_number(dataset, after),
        dataset.buckets,
        [math.nan if value is None else value for value in cells],
        dataset.num_test,
        dataset.score,
    )


def build_prediction_row(
    dataset: DatasetDescription, after: object, predictions: object
) -> tuple[AccuracyRow, RowPredictions]:
    """Build a row from predicted classes or probabilities.

    predictions: per bucket (n,) classes, or (n, classes) probabilities.

    after: see :func:`build_count_row`. Raises ConfigError if the true labels are not known, or the
    predictions do not fit them.
    """
    check_accuracy(dataset.score, "predictions")
    if (images := dataset.evaluation_set) is None:
        raise ConfigError(
            "predictions were passed, but the images are not known; pass their true labels with "
            "the predictions, or to track: test_labels=[...]"
        )
    row = _parse_row_number(dataset, after)
    checked = _parse_predictions(images, row, predictions)
    return AccuracyRow(
        row, dataset.buckets, checked.count_correct(images), dataset.num_test
    ), checked


def check_accuracy(score: Score, argument: str) -> None:
    """Raise ConfigError if the score is not accuracy.

    argument: what the user passed, such as "counts", for the message.
    """
    if not score.is_accuracy:
        raise ConfigError(
            f"{argument} were passed, but the score is {score.name}; pass it to log_values"
        )


def check_same_row(stored: AccuracyRow, row: AccuracyRow) -> None:
    """Raise RecordError if a row that is logged again has other numbers."""
    if stored != row:
        stored_numbers, numbers = (
            safe_repr(r.cells if r.correct is None else r.correct) for r in (stored, row)
        )
        raise RecordError(
            f"row {row.row} is stored already with other numbers ({stored_numbers}, and now "
            f"{numbers}); a row is what was measured once: start a new run"
        )


def check_same_cost_and_predictions(
    stored: AccuracyRow,
    row: AccuracyRow,
    predictions: bytes | None,
    predictions_by_row: Mapping[int, bytes | None],
) -> None:
    """Raise RecordError if a stored row arrives with other cost or predictions.

    Only warns that the cost is kept if an earlier process stored the row. predictions: hash, or
    None without any; *predictions_by_row* has the rows that this process stored.
    """
    is_new_cost = row.cost not in (None, stored.cost)
    if row.row in predictions_by_row:
        stored_predictions = predictions_by_row[row.row]
        if is_new_cost or predictions not in (None, stored_predictions):
            item = "cost" if is_new_cost else "predictions"
            adjective = "other" if (stored.cost if is_new_cost else stored_predictions) else "no"
            raise RecordError(
                f"row {row.row} is stored already with {adjective} {item}; log a row once, "
                "together with all that belongs to it"
            )
    elif is_new_cost:
        warn(f"row {row.row} is stored already with another cost, which is kept")


def build_test(
    dataset: DatasetDescription, bucket: object, correct: object, **numbers: object
) -> AnytimeRow:
    """Build a test within a bucket from counts, or raise ConfigError.

    bucket: name or number, from 1, of the bucket in training. correct: one count per bucket, or by
    bucket. numbers: ``test``, ``num_tests``, ``step`` and ``num_steps`` of :class:`AnytimeRow`.
    """
    if not dataset.score.is_accuracy:
        raise ConfigError(
            f"a test within a bucket counts correct images, but the score is {dataset.score.name}; "
            "leave log_test out"
        )
    if dataset.num_test is None:
        raise ConfigError(
            "a test within a bucket counts correct images, but num_instances is not known; pass it "
            "to track"
        )
    return AnytimeRow(
        bucket=_parse_row_number(dataset, bucket, "bucket"),
        buckets=dataset.buckets,
        correct=_parse_counts("correct", dataset.buckets, correct),
        num_instances=dataset.num_test,
        **{name: parse_int(name, number) for name, number in numbers.items()},
    )


def _parse_row_number(dataset: DatasetDescription, after: object, argument: str = "after") -> int:
    if isinstance(after, str) and after in dataset.buckets:
        return dataset.buckets.index(after) + 1
    last = len(dataset.buckets)
    row = -1 if isinstance(after, str) else parse_int(argument, after)
    if not 0 <= row <= last:
        expected = f"the buckets trained so far, 0 to {last}, or the name of the last one as a text"
        if argument == "bucket":
            expected = f"the bucket in training, 1 to {last}, or its name as a text"
        raise ConfigError(
            f"{argument} is {safe_repr(after)}; expected {expected}: "
            f"{', '.join(map(repr, dataset.buckets[:5]))}"
        )
    return row


def _parse_predictions(images: EvaluationSet, row: int, predictions: object) -> RowPredictions:
    """Convert arrays per bucket of classes or probabilities, or raise ConfigError."""
    num_classes = len(images.class_names)
    parts = list(map(_to_array, _split_buckets("predictions", images.buckets, predictions)))
    shapes = [part.shape for part in parts]
    expected = [(count, *shapes[0][1:]) for count in images.num_instances]
    if shapes != expected:
        raise ConfigError(
            f"predictions of row {row} have shapes {safe_repr(shapes, 200)}, one for each bucket; "
            f"expected {safe_repr(expected, 200)}, a prediction for each of its test images"
        )
    labels, probabilities = np.concatenate(parts), None
    if labels.ndim == 2 and labels.dtype.kind not in "OUS":
        probabilities = labels.astype(np.float64)
        if probabilities.shape[1] != num_classes:
            raise ConfigError(
                f"predictions of row {row} have shape {probabilities.shape}; expected "
                f"({len(images)},), classes, or ({len(images)}, {num_classes}), probabilities"
            )
        sums_to_one = np.abs(probabilities.sum(axis=1) - 1) < 1e-2  # False for NaN
        if not bool(sums_to_one.all()) or bool((probabilities < 0).any()):
            raise ConfigError(
                f"probabilities of row {row} do not add up to 1 for each image; pass them after "
                "the softmax"
            )
        labels = probabilities.argmax(axis=1)
    labels = _parse_labels(f"predictions of row {row}", labels)
    if (largest := int(labels.max())) >= num_classes:
        raise ConfigError(
            f"predictions of row {row} contain class {largest}; expected 0 to {num_classes - 1}: "
            "pass all class_names to track if there are more"
        )
    return RowPredictions(
        row=row,
        labels=labels.astype(np.uint8 if num_classes <= 256 else np.uint16),
        evaluation_set=images.digest,
        probabilities=None
        if probabilities is None
        else np.clip(probabilities, 0, 1).astype(np.float16),
    )


def _parse_labels(name: str, values: object) -> NDArray[np.uint16]:
    labels = _to_array(values)
    if labels.size == 0:
        labels = labels.astype(np.int64)
    is_index = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not is_index or bool(((labels < 0) | (labels >= MAX_CLASSES)).any()):
        dtype = "texts" if labels.dtype.kind in "US" else labels.dtype
        raise ConfigError(
            f"{name} are {dtype} of shape {labels.shape}; expected a class index, 0 to C - 1 of C "
            f"classes (at most {MAX_CLASSES}), for each image"
        )
    return labels.astype(np.uint16)


def parse_keys(buckets: object) -> tuple[str, ...]:
    """Convert bucket keys to texts, and a number to "1", "2", ..."""
    buckets = _to_python(buckets)
    # A set has an arbitrary order.
    if not isinstance(buckets, Iterable) or isinstance(buckets, (str, bytes, set, frozenset)):
        number = parse_int("buckets", buckets, "a list of names, or how many there are")
        if not 1 <= number <= MAX_BUCKETS:
            raise ConfigError(
                f"buckets is {number}; expected 1 to {MAX_BUCKETS}, or the buckets' keys"
            )
        return tuple(str(j + 1) for j in range(number))
    keys = [_to_python(key) for key in buckets]
    for key in keys:
        is_date = hasattr(key, "strftime") and key == key  # or a period of pandas
        if isinstance(key, bool) or not (isinstance(key, (str, int)) or is_date):
            raise ConfigError(f"buckets contains {safe_repr(key)}; expected names or whole numbers")
    return tuple(map(str, keys))


def parse_num_instances(keys: tuple[str, ...], counts: object) -> tuple[int, ...] | None:
    """Convert counts per bucket, or one number, to a tuple. None stays."""
    counts = _to_python(_key_series(counts))
    if counts is not None and not isinstance(counts, (Sequence, Mapping)):
        counts = [counts] * len(keys)
    return None if counts is None else _parse_counts("num_instances", keys, counts)


def parse_score(name: str, *, lower_is_better: object) -> Score:
    """Build the score that a loop measures, or raise ConfigError."""
    if not isinstance(lower_is_better, bool):
        raise ConfigError(
            f"lower_is_better is {safe_repr(lower_is_better)}; expected True or False"
        )
    return Score(name, higher_is_better=not lower_is_better)


def _parse_counts(
    name: str, keys: tuple[str, ...], values: object, expected: str = _INTEGER
) -> tuple[int, ...]:
    values = _split_buckets(name, keys, values)
    return tuple(parse_int(name, value, expected) for value in values)


def _split_buckets(name: str, keys: Sequence[str], values: Any) -> Sequence[Any]:
    """Convert a list, array, mapping or series to one entry per bucket."""
    values = _key_series(values)
    if isinstance(values, Mapping):
        values = _key_by_bucket(name, values)
        if unknown := [key for key in values if key not in keys]:
            raise ConfigError(
                f"{name} names bucket {safe_repr(unknown[0])}; the buckets are {', '.join(keys)}"
            )
        if missing := [key for key in keys if key not in values]:
            raise ConfigError(f"{name} lacks bucket {missing[0]!r}; expected a number for each")
        return [values[key] for key in keys]
    if getattr(values, "ndim", 0):  # an array or a tensor
        values = list(values)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"{name} is {safe_repr(values)}; expected one entry per bucket")
    if len(values) != len(keys):
        raise ConfigError(
            f"{name} has {format_count(len(values), 'entry', 'entries')} for "
            f"{format_count(len(keys), 'bucket')}; expected one per bucket"
        )
    return values


def _key_series(values: Any) -> Any:
    """Convert a pandas series to a mapping, unless its index only counts."""
    index = getattr(values, "index", None)
    if not hasattr(values, "to_dict") or index is None or getattr(values, "ndim", 0) != 1:
        return values
    if not index.is_unique:
        raise ConfigError(f"got {safe_repr(values)}, which has two entries for one bucket")
    if [*index] in ([*range(len(index))], [*range(1, len(index) + 1)]):
        return values.tolist()
    return values.to_dict()


def _key_by_bucket(name: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Convert keys to texts, or raise ConfigError if two are equal."""
    converted = {str(key): value for key, value in values.items()}
    if len(converted) < len(values):
        keys = list(map(str, values))
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(
            f"{name} has two entries for bucket {twice!r}, as a number and as a text; pass one"
        )
    return converted


def _to_array(values: Any) -> NDArray[Any]:
    """Convert lists, an array or any tensor to NumPy, or raise ConfigError.

    Floats of a tensor become float64.
    """
    detach = getattr(values, "detach", None)
    if callable(detach):
        values = detach().cpu()
        if values.is_floating_point():  # NumPy lacks bfloat16
            values = values.double()
    if np.ma.is_masked(values):
        raise ConfigError(f"got {safe_repr(values)}; expected an array without masked entries")
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"got {safe_repr(values)}; expected an array of numbers") from error


def _to_python(value: Any) -> Any:
    """Convert an array or a tensor to Python's numbers and lists.

    Others are returned as they are.
    """
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value


def parse_int(name: str, value: object, expected: str = _INTEGER) -> int:
    """Convert an integer of Python, NumPy or a tensor, or raise ConfigError."""
    value = _to_python(value)
    with suppress(TypeError):
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # raises TypeError
    raise ConfigError(f"{name} is {safe_repr(value)}; expected {expected}")


def parse_texts(name: str, values: Mapping[str, object] | None) -> dict[str, str]:
    """Convert params or tags to texts, or raise ConfigError."""
    if not isinstance(values, (Mapping, type(None))):
        raise ConfigError(
            f"{name} is {safe_repr(values)}; expected a dictionary such as {{'lr': 0.1}}"
        )
    for key in values or {}:
        if not isinstance(key, str) or key.startswith(_RESERVED):
            raise ConfigError(
                f"{name} contains {safe_repr(key)}; expected names that do not begin with "
                f"{' or '.join(_RESERVED)}"
            )
    return {key: str(value) for key, value in (values or {}).items()}
