"""The description of a dataset, from training to the stored record, and labels of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import PROTOCOLS, SPLITS, TEST
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_TEXT_CHARACTERS

if TYPE_CHECKING:
    from clear_mlflow.core.predictions import EvaluationSet

UNKNOWN = "unknown"  # in place of the digest of a dataset that this program has not read
TIMES = "bucket_times"  # field of a row's file: dates of the buckets, for example 2004-05-17


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """What a run is measured on. Equal descriptions have comparable numbers.

    The data layer fills it for a training, ``track`` for a custom loop, and a stored row as far as
    its file describes the dataset. Rows, MLflow's dataset input, tags and
    pages are made from it. Fields after ``score`` are not compared.

    Raises RecordError if a value cannot be stored in a row's file.
    """

    name: str  # for people
    digest: str = UNKNOWN
    protocol: str = "iid"  # or "streaming": a bucket's test set is its training set
    split: str = TEST  # images that are measured on: "test" or "validation"
    buckets: tuple[str, ...] = ()  # keys, in stream order
    num_test: tuple[int, ...] | None = None  # test images per bucket, or None if not known
    score: Score = ACCURACY

    num_train: tuple[int, ...] | None = field(default=None, compare=False)
    class_names: tuple[str, ...] = field(default=(), compare=False)  # by label; () if not known
    source: str = field(default="", compare=False)  # path or address of the data, for display
    # How the images were divided: "released", a number, "validation:N" or "none".
    division: str = field(default="", compare=False)
    # One line each, or None if this program does not read the data.
    warnings: tuple[str, ...] | None = field(default=None, compare=False)
    # Name and digest of the stored features that replace the images, or {}.
    features: Mapping[str, str] = field(default_factory=dict, compare=False)
    num_left_out: int = field(default=0, compare=False)  # damaged images that were left out
    # Hash of the order of the training images, or "" if it does not change the training.
    time_order_digest: str = field(default="", compare=False)
    times: tuple[date, ...] = field(default=(), compare=False)  # of the buckets, ascending, or ()
    # Name and arguments of the scenario, and "classes": the new classes of each bucket. {}: domain.
    scenario: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # Classes without images, by split and bucket.
    absent_classes: Mapping[str, Mapping[str, list[str]]] = field(
        default_factory=dict, compare=False
    )
    licence: str = field(default="", compare=False)  # of the images, or "" if it is not known
    # The test images, or None if no predictions are stored.
    evaluation_set: EvaluationSet | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_text("the dataset's name", self.name)
        check_text("the dataset's digest", self.digest)
        for name, valid_names in (("protocol", PROTOCOLS), ("split", SPLITS)):
            if (value := getattr(self, name)) not in valid_names:
                raise RecordError(
                    f"{name} is {safe_repr(value)}; expected {' or '.join(valid_names)}"
                )

    @property
    def optional_fields(self) -> dict[str, Any]:
        """Fields of a row's file that only some datasets have, as JSON."""
        fields = {
            "features": self.features,
            "left_out": self.num_left_out,
            "scenario": self.scenario,
            TIMES: [time.isoformat() for time in self.times],
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def profile(self) -> dict[str, Any]:
        """The description for the tracking store, in JSON types."""
        counts = {"num_train": self.num_train, "num_test": self.num_test}
        fields = {
            "num_classes": len(self.class_names),
            **{key: n and dict(zip(self.buckets, n, strict=True)) for key, n in counts.items()},
            "licence": self.licence,
            "absent_classes": self.absent_classes,
        }
        return {
            "digest": self.digest,
            "protocol": self.protocol,
            "split": self.division or self.split,
            **({} if self.warnings is None else {"warnings": self.warnings}),
            **{name: value for name, value in fields.items() if value},
            **self.optional_fields,
        }

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run: digests of its images and features."""
        digests = {"dataset_digest": self.digest}
        if self.features:
            digests["features"] = self.features["name"]
            digests["features_digest"] = self.features["digest"]
        return digests


def check_text(name: str, value: str) -> None:
    """Raise RecordError unless a value is a short printable text."""
    is_valid = isinstance(value, str) and 1 <= len(value) <= MAX_TEXT_CHARACTERS
    if not is_valid or not value.isprintable():
        raise RecordError(
            f"{name} is {safe_repr(value)}; expected a text of 1 to {MAX_TEXT_CHARACTERS} "
            "printable characters"
        )


def find_row_indices(
    labels: Sequence[str], keys: Sequence[str], *, is_stream_order: bool = False
) -> list[int]:
    """Match the labels of rows to bucket indices, or raise RecordError.

    labels: keys or their numbers, consecutive numbers of rows from 0 or 1, or other texts, which
    are in the order of the stream. keys: keys of all buckets. is_stream_order: True if the user
    stated the order of the keys. Raises RecordError if the labels do not show the buckets, or if
    names without numbers are in another order than the keys.
    """
    indices, numbers = _match_labels(labels, keys), parse_label_numbers(keys)
    is_numbered = bool(numbers) and numbers == sorted(numbers)
    is_sorted = is_stream_order or is_numbered or indices == sorted(indices)
    if len({*indices}) == len(labels) and is_sorted:
        return indices
    unknown = "do not show after which bucket each row was tested"
    reason = unknown if is_sorted else "are in another order"
    names = f"the buckets {safe_repr(list(keys))}" if any(keys) else "no names of buckets"
    raise RecordError(f"has rows labelled {safe_repr(list(labels))} and {names}, which {reason}")


def _match_labels(labels: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Return each label's bucket index, or [] if that is ambiguous."""
    numbers, key_numbers = parse_label_numbers(labels), parse_label_numbers(keys)
    # With buckets from 0, rows from 1 may count the buckets trained so far.
    may_count = bool(numbers) and min(numbers) == 1 and min(key_numbers, default=1) == 0
    pairs = [(labels, keys), (_strip_prefix(labels), _strip_prefix(keys)), (numbers, key_numbers)]
    for names, key_names in pairs:
        if names and {*names} <= {*key_names}:
            return [] if may_count else [key_names.index(name) for name in names]
    if numbers:
        first, last = min(numbers), max(numbers)
        # Numbers from 2 on show their bucket only if the last one is the number of buckets.
        if last - first < len(numbers) and (first <= 1 or last == len(keys)):
            return [number - min(first, 1) for number in numbers]
        return []
    is_mixed = len({bool(parse_label_numbers([label])) for label in labels}) > 1
    is_partial = len(labels) < len(keys)  # any of the rows may be missing
    return [] if is_mixed or is_partial or {*labels} & {*keys} else [*range(len(labels))]


def _strip_prefix(names: Sequence[str]) -> list[str]:
    """Remove the words with which all names begin."""
    words = re.findall(r"(?s).*[\W_]|", commonprefix(names))[0]  # noqa: RUF071 - names, not paths
    return [name.removeprefix(words) for name in names]


def parse_label_numbers(labels: Sequence[str]) -> list[int]:
    """Parse the numbers of labels like "task 1", or return []."""
    matches = [re.fullmatch(r"([^0-9]*)([0-9]{1,9})", label) for label in labels]
    prefixes = {match and match[1] for match in matches}
    return [int(match[2]) for match in matches if match] if len(prefixes) == 1 else []
