"""What a user's own loop says of itself, checked and in one form, before MLflow sees it."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime.anytime_row import AnytimeRow
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import SPLITS, TEST, AccuracyRow, check_protocol
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.core.record import DatasetIdentity
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_CLASSES

# In place of the digest of a dataset that this program has not read.
UNKNOWN = "unknown"
_RESERVED = ("mlflow.", "clear_mlflow.")


@dataclass(frozen=True, kw_only=True)
class LoopMetadata:
    """What is known of a loop before its first row."""

    buckets: tuple[str, ...]  # keys, in stream order
    num_instances: tuple[int, ...] | None  # test images per bucket; None where not known
    dataset: DatasetIdentity
    protocol: str = "iid"
    split: str = TEST
    seed: int | None = None
    grouping: Mapping[str, str] = field(default_factory=dict)  # logged as params and tags
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()  # the index is the label; empty where not known
    evaluation_set: EvaluationSet | None = None  # None where no predictions are kept
    score: Score = ACCURACY


def describe_loop(
    *,
    buckets: int | Iterable[object],
    num_instances: int | Sequence[int] | Mapping[Any, int] | None = None,
    dataset: str = "own",
    dataset_digest: str | None = None,
    protocol: str = "iid",
    split: str = TEST,
    seed: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    params: Mapping[str, object] | None = None,
    tags: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    test_labels: Sequence[Any] | None = None,
    test_ids: Sequence[Sequence[object]] | None = None,
    score: str = ACCURACY.name,
    lower_is_better: bool = False,
) -> LoopMetadata:
    """Check what :func:`clear_mlflow.track` was given."""
    keys = _keys(buckets)
    if not isinstance(lower_is_better, bool):
        raise ConfigError(
            f"lower_is_better is {safe_repr(lower_is_better)}; expected True or False"
        )
    measured = Score(score, higher_is_better=not lower_is_better)
    if not measured.is_accuracy and test_labels is not None:
        raise ConfigError(
            f"score is {score!r}, and test labels arrived, of which accuracies are counted; leave "
            "them out, or leave score out"
        )
    check_protocol(protocol)
    if split not in SPLITS:
        raise ConfigError(f"split is {safe_repr(split)}; expected one of {', '.join(SPLITS)}")
    seed = None if seed is None else _whole("seed", seed)
    if test_ids is not None and test_labels is None:
        raise ConfigError("test_ids arrived without test_labels; pass the true labels, too")
    counts = None if num_instances is None else _counts(keys, num_instances)
    # A row as any of this loop would be: what cannot be stored is refused before any training.
    AccuracyRow.from_values(0, keys, (0.0,) * len(keys), counts, measured)
    grouped = {
        "strategy": strategy,
        "model": model,
        "dataset": dataset,
        "protocol": protocol,
        "split": split,
        "seed": seed,
        "score": None if measured.is_accuracy else measured.name,
    }
    loop = LoopMetadata(
        buckets=keys,
        num_instances=counts,
        dataset=DatasetIdentity(dataset, dataset_digest or UNKNOWN),
        protocol=protocol,
        split=split,
        seed=seed,
        grouping={key: str(value) for key, value in grouped.items() if value is not None},
        params=_texts("params", params),
        tags=_texts("tags", tags),
        class_names=() if class_names is None else tuple(map(str, class_names)),
        score=measured,
    )
    return loop if test_labels is None else with_truth(loop, test_labels, test_ids)


def with_truth(
    loop: LoopMetadata, labels: object, ids: Sequence[Sequence[object]] | None = None
) -> LoopMetadata:
    """The loop whose test images have these true labels; itself where it knows them."""
    images = evaluation_set_of(loop.buckets, labels, ids, loop.class_names)
    if (known := loop.evaluation_set) is not None:
        same = known.num_instances == images.num_instances
        if not same or not np.array_equal(known.label, images.label):
            raise RecordError("true labels differ from those before; test images stay the same")
        return loop
    if loop.num_instances not in (None, images.num_instances):
        raise ConfigError(
            f"num_instances is {safe_repr(loop.num_instances)}, but test_labels has "
            f"{safe_repr(images.num_instances)} images; leave num_instances out"
        )
    digest = images.digest if loop.dataset.digest == UNKNOWN else loop.dataset.digest
    return replace(
        loop,
        num_instances=images.num_instances,
        dataset=DatasetIdentity(loop.dataset.name, digest),
        class_names=images.class_names,
        evaluation_set=images,
    )


def evaluation_set_of(
    buckets: Sequence[str],
    labels: object,
    ids: Sequence[Sequence[object]] | None = None,
    class_names: Sequence[str] | None = None,
) -> EvaluationSet:
    """The test images of all buckets, known by the data's own names, else by positions."""
    each = [
        _labels(f"test_labels of bucket {key!r}", given)
        for key, given in zip(buckets, _per_bucket("test_labels", buckets, labels), strict=True)
    ]
    given_ids = [range(len(given)) for given in each] if ids is None else ids
    named = [list(map(str, of_bucket)) for of_bucket in given_ids]
    if list(map(len, named)) != list(map(len, each)):
        raise ConfigError("test_ids and test_labels differ in length; expected one for each image")
    for key, of_bucket in zip(buckets, named, strict=True):
        if len(set(of_bucket)) != len(of_bucket) or any("\n" in name for name in of_bucket):
            raise ConfigError(
                f"test_ids of bucket {key!r} holds a name twice, or one of two lines; expected a "
                "name of its own for each image"
            )
    label = np.concatenate(each)
    if not all(map(len, each)):
        raise ConfigError("test_labels lacks a bucket's images; expected some for each bucket")
    names = tuple(class_names or (str(n) for n in range(int(label.max()) + 1)))
    content = b"".join(
        hashlib.sha256(f"{key}\n{name}".encode()).digest()[:16]
        for key, of_bucket in zip(buckets, named, strict=True)
        for name in of_bucket
    )
    try:
        return EvaluationSet(
            buckets=tuple(buckets),
            class_names=names,
            bucket=np.repeat(np.arange(len(each)), list(map(len, each))).astype(np.uint16),
            label=label,
            content=np.frombuffer(content, dtype=np.uint8).reshape(-1, 16).copy(),
            names=tuple(name for of_bucket in named for name in of_bucket),
        )
    except RecordError as error:
        raise ConfigError(f"test_labels and class_names do not fit: {error}") from error


def row_after(facts: LoopMetadata, after: object) -> int:
    """The row that is measured after a bucket, by its name or number; 0: the untrained model."""
    if isinstance(after, str) and after in facts.buckets:
        return facts.buckets.index(after) + 1
    last = len(facts.buckets)
    row = -1 if isinstance(after, str) else _whole("after", after)
    if not 0 <= row <= last:
        raise ConfigError(
            f"after is {safe_repr(after)}; expected the buckets trained so far, 0 to {last}, or "
            f"the name of the last one as a text: {', '.join(map(repr, facts.buckets[:5]))}"
        )
    return row


def row_of_counts(facts: LoopMetadata, after: object, correct: object) -> AccuracyRow:
    """A row of test images classified correctly: one count per bucket, or by bucket."""
    check_accuracy(facts, "counts")
    if facts.num_instances is None:
        raise ConfigError(
            "counts arrived, but num_instances is not known; pass it to track, or fractions to "
            "log_accuracies"
        )
    counts = _counts(facts.buckets, correct, "correct")
    return AccuracyRow(row_after(facts, after), facts.buckets, counts, facts.num_instances)


def row_of_values(facts: LoopMetadata, after: object, values: object) -> AccuracyRow:
    """A row of the score on each bucket; NaN, None or an absent key = not measured."""
    cells, counts = _values(facts.buckets, values, facts.score.name), facts.num_instances
    row = row_after(facts, after)
    return AccuracyRow.from_values(row, facts.buckets, cells, counts, facts.score)


def row_of_predictions(
    facts: LoopMetadata, after: object, predictions: object
) -> tuple[AccuracyRow, RowPredictions]:
    """A row of (n,) classes or (n, classes) probabilities, softmaxed, of each bucket."""
    check_accuracy(facts, "predictions")
    if (images := facts.evaluation_set) is None:
        raise ConfigError(
            "predictions arrived, but the images are not known; pass their true labels beside the "
            "predictions, or to track: test_labels=[...]"
        )
    row = row_after(facts, after)
    found = _predictions(images, row, predictions)
    return AccuracyRow(row, facts.buckets, found.correct(images), facts.num_instances), found


def check_accuracy(facts: LoopMetadata, what: str) -> None:
    """Refuse what is of accuracies alone where the score is another one."""
    if not facts.score.is_accuracy:
        raise ConfigError(
            f"{what} arrived, but the score is {facts.score.name}; pass it to log_values"
        )


def measured_test(
    facts: LoopMetadata,
    bucket: object,
    correct: object,
    *,
    test: int,
    num_tests: int,
    step: int,
    num_steps: int,
) -> AnytimeRow:
    """A test inside a bucket as it arrived from a loop; ``test`` counts from 1."""
    if not facts.score.is_accuracy or facts.num_instances is None:
        what = f"the score is {facts.score.name}"
        if facts.score.is_accuracy:
            what = "num_instances is not known; pass it to track"
        raise ConfigError(f"a test inside a bucket holds counts of right test images, but {what}")
    return AnytimeRow(
        bucket=row_after(facts, bucket),
        test=_whole("test", test),
        num_tests=_whole("num_tests", num_tests),
        step=_whole("step", step),
        num_steps=_whole("num_steps", num_steps),
        buckets=facts.buckets,
        correct=_counts(facts.buckets, correct, "correct"),
        num_instances=facts.num_instances,
    )


def _predictions(images: EvaluationSet, row: int, predictions: object) -> RowPredictions:
    classes = len(images.class_names)
    parts = list(map(_array, _per_bucket("predictions", images.buckets, predictions)))
    shapes = [part.shape for part in parts]
    wanted = [(count, *shapes[0][1:]) for count in images.num_instances]
    if shapes != wanted:
        raise ConfigError(
            f"predictions of row {row} have shapes {safe_repr(shapes, 200)}, one for each bucket; "
            f"expected {safe_repr(wanted, 200)}, an answer for each of its test images"
        )
    answered = found = np.concatenate(parts)
    if found.ndim == 2 and found.dtype.kind not in "OUS":
        found = found.astype(np.float64)
        if found.shape[1] != classes:
            raise ConfigError(
                f"predictions of row {row} have shape {found.shape}; expected ({len(images)},), "
                f"classes, or ({len(images)}, {classes}), probabilities"
            )
        # NaN fails the comparison.
        if not bool((np.abs(found.sum(axis=1) - 1) < 1e-2).all()) or bool((found < 0).any()):
            raise ConfigError(
                f"probabilities of row {row} do not add up to 1 for each image; pass them after "
                "the softmax"
            )
        answered = found.argmax(axis=1)
    answered = _labels(f"predictions of row {row}", answered)
    if (largest := int(answered.max())) >= classes:
        raise ConfigError(
            f"predictions of row {row} hold class {largest}; expected 0 to {classes - 1}: pass all "
            "class_names to track if there are more"
        )
    return RowPredictions(
        row=row,
        labels=answered.astype(np.uint8 if classes <= 256 else np.uint16),
        evaluation_set=images.digest,
        probabilities=np.clip(found, 0, 1).astype(np.float16) if found.ndim == 2 else None,
    )


def _labels(what: str, values: object) -> NDArray[np.uint16]:
    found = _array(values)
    if found.size == 0:
        found = found.astype(np.int64)
    if (
        found.ndim != 1
        or found.dtype.kind not in "iu"
        or bool(((found < 0) | (found >= MAX_CLASSES)).any())
    ):
        kind = "texts" if found.dtype.kind in "US" else found.dtype
        raise ConfigError(
            f"{what} are {kind} of shape {found.shape}; expected a class index, 0 to C - 1 of C "
            f"classes (at most {MAX_CLASSES}), for each image"
        )
    return found.astype(np.uint16)


def _keys(buckets: object) -> tuple[str, ...]:
    """Bucket keys: as they were given, or "1" to "T"."""
    buckets = _plain(buckets)
    # A set has no order.
    if not isinstance(buckets, Iterable) or isinstance(buckets, (str, bytes, set, frozenset)):
        number = _whole("buckets", buckets, "a list of names, or how many there are")
        if not 1 <= number <= MAX_BUCKETS:
            raise ConfigError(
                f"buckets is {number}; expected 1 to {MAX_BUCKETS}, or the buckets' keys"
            )
        return tuple(str(j + 1) for j in range(number))
    keys = [_plain(key) for key in buckets]
    for key in keys:
        is_date = hasattr(key, "strftime") and key == key  # or a period of pandas
        if isinstance(key, bool) or not (isinstance(key, (str, int)) or is_date):
            raise ConfigError(f"buckets holds {safe_repr(key)}; expected names or whole numbers")
    return tuple(map(str, keys))


def _counts(keys: tuple[str, ...], values: object, name: str = "num_instances") -> tuple[int, ...]:
    """One integer per bucket."""
    values = _plain(values)
    if name == "num_instances" and not isinstance(values, (Sequence, Mapping)):
        return (_whole(name, values),) * len(keys)
    return tuple(_whole(name, value) for value in _per_bucket(name, keys, values))


def _values(keys: tuple[str, ...], values: object, what: str) -> tuple[float, ...]:
    cells = _plain(values)
    if isinstance(cells, Mapping):
        # A bucket that is not named was not measured.
        cells = {**dict.fromkeys(keys), **{str(key): value for key, value in cells.items()}}
    plain = map(_plain, _per_bucket(what, keys, cells))
    return tuple(math.nan if value is None else value for value in plain)


def _per_bucket(name: str, keys: Sequence[str], values: Any) -> Sequence[Any]:
    if isinstance(values, Mapping):
        values = {str(key): value for key, value in values.items()}  # as the keys themselves
        if strangers := [key for key in values if key not in keys]:
            raise ConfigError(
                f"{name} names bucket {safe_repr(strangers[0])}; the buckets are {', '.join(keys)}"
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
            f"{name} has {len(values)} entries for {len(keys)} buckets; expected one per bucket"
        )
    return values


def _array(values: Any) -> NDArray[Any]:
    """An array out of lists, an array, or a tensor on any device."""
    detach = getattr(values, "detach", None)
    if callable(detach):
        values = detach().cpu()
        if values.is_floating_point():  # NumPy lacks bfloat16
            values = values.double()
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{safe_repr(values)} arrived; expected an array of numbers") from error


def _plain(value: Any) -> Any:
    """Python's own numbers and lists out of an array's or a tensor's."""
    listed = getattr(value, "tolist", None)
    return listed() if callable(listed) else value


def _whole(name: str, value: object, expected: str = "a whole number") -> int:
    value = _plain(value)
    with suppress(TypeError):
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # what is none is refused
    hint = " (fractions go to log_accuracies)" if name == "correct" else ""
    raise ConfigError(f"{name} is {safe_repr(value)}; expected {expected}{hint}")


def _texts(what: str, given: Mapping[str, object] | None) -> dict[str, str]:
    if not isinstance(given, (Mapping, type(None))):
        raise ConfigError(f"{what} is {safe_repr(given)}; expected a dictionary, as {{'lr': 0.1}}")
    found = {}
    for name, value in (given or {}).items():
        if not isinstance(name, str) or name.startswith(_RESERVED):
            raise ConfigError(
                f"{what} holds {safe_repr(name)}; expected names that do not begin with "
                f"{' or '.join(_RESERVED)}"
            )
        found[name] = str(value)
    return found
