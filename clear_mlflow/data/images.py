"""One table of images, or of vectors, which every reader fills: a row for each.

The table has the path (or the row of a vector), label, bucket and split of each image, and after
hashing its content. Nothing is decoded. Splits, scenarios and digests are computed from it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import (
    MAX_BUCKETS,
    MAX_CLASSES,
    MAX_FEATURES_WIDTH,
    MAX_KEY_CHARACTERS,
    MAX_TEXT_CHARACTERS,
)
from clear_mlflow.data.files import check_folder, is_class_name, path_text, resolve_root
from clear_mlflow.data.times import parse_time

TRAIN = "train"
NONE = "none"
STANDARDISE = ("first", "past", NONE)
_SAMPLE_ROWS = 10_000  # of each column of numbers, whose rounding is checked
_REAL = "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]
_BUCKET_NUMBER = re.compile("[0-9]{1,9}")

Rows: TypeAlias = NDArray[np.int64]  # ascending indices of rows of a table


@dataclass(frozen=True, eq=False)
class Vectors:
    """Rows of an array or mapped file, read when indexed."""

    array: NDArray[np.float32]  # (all rows, width)
    rows: NDArray[np.int64]  # (N,), indices into the array

    @property
    def shape(self) -> tuple[int, int]:
        """(N, width)."""
        return len(self.rows), self.array.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the chosen rows, (n, width), in memory."""
        return np.asarray(self.array[self.rows[index]])


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Image files, or vectors, one in each row. Nothing is decoded."""

    files: tuple[str, ...]  # paths; a vector is called by its row: ``FILE/row 17``
    labels: NDArray[np.int64]  # (N,), indices into the class names; read-only
    buckets: NDArray[np.int64]  # (N,), indices of the buckets, in the order of the stream
    is_test: NDArray[np.bool_]  # (N,), False for training images
    # Hexadecimal SHA-256 of each file or vector, or "" if not known; empty before hashing.
    contents: tuple[str, ...] = ()
    vectors: Vectors | None = None  # instead of files
    times: NDArray[np.int64] | None = None  # (N,), seconds since 1970, UTC; None if not known

    def __post_init__(self) -> None:
        self.labels.setflags(write=False)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files as paths."""
        return tuple(map(Path, self.files))

    @property
    def ids(self) -> tuple[str, ...]:
        """What distinguishes images of a class: names of files, contents of vectors."""
        if self.vectors is not None:
            return self.contents
        return tuple(Path(file).stem for file in self.files)

    @property
    def training_images(self) -> ImageTable:
        """The images that are not test images."""
        return self.take(np.flatnonzero(~self.is_test))

    @property
    def test_images(self) -> ImageTable:
        """The test images."""
        return self.take(np.flatnonzero(self.is_test))

    @cached_property
    def time_order(self) -> NDArray[np.int64]:
        """The rows in the order of time.

        Equal times are in the order of contents, so that labels do not form runs. Raises DataError
        if the times are not known, or are all the same.
        """
        if self.times is None:
            raise DataError("lacks times, so that the order of its images is not known")
        if len(self) > 1 and np.ptp(self.times) == 0:
            raise DataError("has one time for all its images, so that their order is not known")
        return np.lexsort((np.array(self.contents), self.times))

    def take(self, rows: NDArray[np.int64]) -> ImageTable:
        """Return the images of these rows, in that order."""
        order = rows.tolist()
        return ImageTable(
            files=tuple(self.files[i] for i in order),
            labels=self.labels[rows],
            buckets=self.buckets[rows],
            is_test=self.is_test[rows],
            contents=tuple(self.contents[i] for i in order) if self.contents else (),
            vectors=self.vectors and Vectors(self.vectors.array, self.vectors.rows[rows]),
            times=None if self.times is None else self.times[rows],
        )

    def join(self, other: ImageTable) -> ImageTable:
        """Return these and *other* images. They are files, without times."""
        return ImageTable(
            files=self.files + other.files,
            labels=np.concatenate([self.labels, other.labels]),
            buckets=np.concatenate([self.buckets, other.buckets]),
            is_test=np.concatenate([self.is_test, other.is_test]),
            contents=self.contents + other.contents,
        )

    def count_classes(self, num_buckets: int, num_classes: int) -> NDArray[np.int64]:
        """Count the images of each bucket and class, (T, C)."""
        counts = np.zeros((num_buckets, num_classes), dtype=np.int64)
        np.add.at(counts, (self.buckets, self.labels), 1)
        return counts

    def group_by_bucket(self, number: int) -> list[Rows]:
        """Return the rows of each of the first *number* buckets."""
        order = np.lexsort((self.buckets,))  # stable
        bounds = np.searchsorted(self.buckets[order], np.arange(number + 1)).tolist()
        return [order[start:stop] for start, stop in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The images of a dataset: paths, labels, buckets and splits.

    Nothing is decoded.

    Args:
        layout: its name, for people.
        root: the folder that contains all images, resolved.
        class_names: the index is the label.
        buckets: keys of the buckets, in stream order.
        images: training images by bucket, class and file name, then released test images likewise.
        test_error: why the released test images cannot be used, or None. Raised if they are used.
        read_split: reads the test images of a stored split by its number, (N,), bool, or returns
            None if that split is not stored. None if the layout stores no splits.
        warnings: one line each.
        source: place that it was read from, for people; empty for the root.
        times: bucket key to its date, such as 2004-05-17, of all buckets; empty if not known.
        standardise: how vectors become inputs of a model. ``first``: subtract the mean and divide
            by the standard deviation of the first bucket's training vectors; ``past``: those of all
            buckets so far; ``none``: unchanged.
        may_repeat: True if equal vectors are expected, for example in a table with few distinct
            rows: they are not reported.
        needs_all_classes: True if a class without images in a bucket is an error.
    """

    layout: str
    root: Path
    class_names: tuple[str, ...]
    buckets: tuple[str, ...]
    images: ImageTable
    test_error: DataError | None = None
    read_split: Callable[[int], NDArray[np.bool_] | None] | None = None
    warnings: tuple[str, ...] = ()
    source: str = ""
    times: Mapping[str, str] = field(default_factory=dict)
    standardise: str = NONE
    may_repeat: bool = False
    needs_all_classes: bool = False

    @property
    def has_test_set(self) -> bool:
        """True if test images were released, even if they cannot be used."""
        return self.test_error is not None or bool(self.images.is_test.any())

    def __post_init__(self) -> None:
        if self.standardise not in STANDARDISE:
            raise ConfigError(
                f"dataset_args has standardise={safe_repr(self.standardise)}; expected one of "
                f"{', '.join(STANDARDISE)}"
            )


class Entry(NamedTuple):
    """One image or one vector of a stream."""

    path: Path | int  # below the stream's root or the row of a vector in the array
    class_name: str
    bucket: str
    split: str = TRAIN  # or "test"
    time: str = ""  # from a year to a second, such as 2004-05-17; empty if not known


def build_index(
    entries: Iterable[Entry],
    *,
    root: Path | str,
    layout: str = "own",
    source_name: str = "",
    order: Sequence[str] = (),
    times: Mapping[str, str] | None = None,
    vectors: ArrayLike | None = None,
    standardise: str = "first",
    first_row: int = 0,
    class_names: Sequence[str] = (),
    listed_below: Path | None = None,
) -> ImageIndex:
    """Build the index of images or vectors from an entry each.

    Labels follow the sorted names of the classes; names that are all numbers are sorted as numbers.
    Buckets are in the order of their numbers or dates, or in *order*. In a bucket, images are in
    the order of label and file name, and vectors in the order of label and content. A class may be
    missing in a bucket, which is a warning when a training begins. No image is opened.

    Args:
        entries: every image once. If any has the split test, all buckets need test images;
            otherwise a seeded split holds them out.
        root: folder that contains all images.
        layout: how the stream is stored, for people.
        source_name: name of the list of images, for messages; the root by default.
        order: keys of all buckets. Required unless all are integers or dates.
        times: date of each bucket, such as 2004-05-17, for the axis of charts. By default the
            first day of each bucket if all keys are dates.
        vectors: (rows, width), finite numbers, stored as float32; a mapped file stays mapped.
        standardise: how vectors become inputs of a model; see :class:`ImageIndex`.
        first_row: number of the first vector, for messages.
        class_names: all classes in the order of their labels, at least two. By default the sorted
            names of those that occur.
        listed_below: folder whose subfolders are called <bucket>/<class>, if a list names the
            images: the list must agree with them.

    Raises:
        DataError: there are no images, fewer than two classes, or too many of anything; an image
            occurs twice or is not in *root*; a name is invalid; the order of the buckets is not
            known; a vector is not finite, or distinct numbers become equal as float32; or a class
            has test images but no training images.
    """
    real_root = resolve_root(root)
    source_name = source_name or path_text(real_root)
    array = None if vectors is None else _convert_vectors(vectors, source_name)
    seconds = cache(_count_seconds)
    train, test, folders = _group_entries(
        entries, source_name, listed_below, class_names, None if array is None else len(array)
    )
    names = _choose_class_names(train, test, class_names, source_name)
    test_keys = {entry.bucket for entry in test}
    train_keys = {entry.bucket for entry in train}
    all_keys = sort_buckets(train_keys | test_keys, order=order, source_name=source_name)
    keys = tuple(key for key in all_keys if key in train_keys)
    test_only = [safe_repr(key) for key in all_keys if key not in train_keys]
    left_out = f"test sets without a training set were left out: bucket {', '.join(test_only[:8])}"
    for folder in folders:  # once for each folder: resolving looks at every folder above
        if os.path.lexists(folder):  # each image of a missing one is reported when it is hashed
            check_folder(Path(folder), root=real_root)
    labels = {name: label for label, name in enumerate(names)}
    bucket_indices = {key: bucket for bucket, key in enumerate(keys)}
    test_error = None
    if test:
        try:
            check_test_buckets(keys, test_keys, source_name)
        except DataError as error:
            test, test_error = [], error

    def get_sort_key(path: Any) -> tuple[str, ...]:
        if array is None:
            return path.stem, path.suffix
        return (_hash_vector(array, path, source_name, first_row),)

    rows = sorted(
        (split == TEST, bucket_indices[bucket], labels[name], *get_sort_key(path), path, time)
        for path, name, bucket, split, time in [*train, *test]
        if bucket in bucket_indices
    )
    is_test, buckets, row_labels, contents, *_, paths, texts = zip(*rows, strict=True)
    images = ImageTable(
        tuple(map(str, paths)),
        labels=np.array(row_labels, dtype=np.int64),
        buckets=np.array(buckets, dtype=np.int64),
        is_test=np.array(is_test),
        times=np.array([seconds(text) for text in texts], np.int64) if all(texts) else None,
    )
    if array is not None:
        files = tuple(f"{source_name}/row {row + first_row}" for row in paths)
        listed = Vectors(array, np.array(paths, dtype=np.int64))
        images = replace(images, files=files, contents=contents, vectors=listed)
    return ImageIndex(
        layout=layout,
        root=real_root,
        class_names=names,
        buckets=keys,
        images=images,
        test_error=test_error,
        times=find_first_days(keys) if times is None else _parse_dates(keys, times, source_name),
        warnings=(left_out,) if test_only else (),
        standardise=NONE if array is None else standardise,
    )


def _count_seconds(text: str) -> int:
    time = parse_time(text) if isinstance(text, str) else None
    if time is None:
        raise DataError(
            f"an image has the time {safe_repr(text)}; expected a year, a date or a moment, for "
            "example 2004-05-17 or 2004-05-17T08:30:00Z"
        )
    return int(time.start.replace(tzinfo=timezone.utc).timestamp())


def _parse_dates(
    keys: Iterable[str], times: Mapping[str, object], source_name: str
) -> dict[str, str]:
    starts = {key: parse_time(str(times.get(key))) for key in keys}
    if unknown := [key for key, time in starts.items() if time is None]:
        raise DataError(
            f"{source_name} has {safe_repr(times.get(unknown[0]))} as time of bucket {unknown[0]}; "
            "expected a date of each bucket, such as 2004-05-17"
        )
    return {key: f"{time.start:%Y-%m-%d}" for key, time in starts.items() if time is not None}


def check_test_buckets(
    train_keys: Iterable[str], test_keys: Collection[str], source_name: str
) -> None:
    """Raise DataError if a bucket has no test images."""
    for key in train_keys:
        if key not in test_keys:
            raise DataError(
                f"{source_name} contains no test set of bucket {safe_repr(key)}; expected one "
                "of every bucket, or pass split=0 to hold out 30 % of its training set"
            )


def _hash_vector(array: NDArray[np.float32], row: int, source_name: str, first_row: int) -> str:
    if not np.isfinite(array[row]).all():
        raise DataError(
            f"{source_name} row {row + first_row} has a number that is missing, infinite or "
            "beyond the range of 32-bit floats; expected finite numbers, or pass "
            "dataset_args=fill=NUMBER to replace missing ones"
        )
    return hashlib.sha256(array[row].astype("<f4", copy=False).tobytes()).hexdigest()


def _convert_vectors(values: ArrayLike, source_name: str) -> NDArray[np.float32]:
    """Convert rows to float32. Raises DataError if distinct numbers become equal."""
    vectors = np.asanyarray(values)  # a mapped file stays one
    is_real = vectors.dtype.char in _REAL and not np.ma.is_masked(vectors)
    if vectors.ndim != 2 or not vectors.shape[1] or not is_real:
        raise DataError(
            f"{source_name} has vectors of the shape {vectors.shape} and type {vectors.dtype}; "
            "expected real numbers of shape (rows, width), none of them masked"
        )
    if vectors.shape[1] > MAX_FEATURES_WIDTH:
        raise DataError(
            f"{source_name} has vectors of {vectors.shape[1]} numbers; expected "
            f"{MAX_FEATURES_WIDTH} at most"
        )
    if vectors.dtype == np.float32:
        return np.asarray(vectors)
    array = np.empty(vectors.shape, np.float32)
    for i in range(vectors.shape[1]):
        array[:, i] = round_column(vectors[:, i], f"{i} (counted from 0)", source_name)
    return array


def round_column(
    numbers: NDArray[Any], name: str, source_name: str, original: Sequence[object] | None = None
) -> NDArray[np.float32]:
    """Convert a column to float32. Raises DataError if distinct numbers become equal.

    original: the numbers before they became float64. A sample of 10,000 rows is checked.
    """
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32)
    if original is not None and (np.abs(numbers) >= 2**53).any():  # float64 rounds integers, too
        numbers = np.array([str(number) for number in original])
    rows = np.flatnonzero(np.isfinite(rounded))  # others are rejected by row
    if len(rows) > _SAMPLE_ROWS:
        rows = np.random.default_rng(0).choice(rows, _SAMPLE_ROWS, replace=False)
    values = np.unique(numbers[rows])
    if np.issubdtype(values.dtype, np.floating):  # errors of rounding are not distinct numbers
        values = values[np.diff(values, prepend=-np.inf) > 1e-14 * np.abs(values)]
    if (num_remaining := len(np.unique(rounded[rows]))) < 0.9 * len(values):
        raise DataError(
            f"{source_name} has {len(values)} distinct numbers in column {name}, of which "
            f"{num_remaining} remain as 32-bit floats; subtract a constant from it, or split it"
        )
    return rounded


def _check_folder_names(
    folder: Path, base: Path, key: str, class_name: str, class_names: Collection[str]
) -> None:
    _, bucket_folder, class_folder, *_ = (*folder.relative_to(base).parts, "", "")
    if _BUCKET_NUMBER.fullmatch(bucket_folder) and bucket_folder.lstrip("0") != key.lstrip("0"):
        label = f"bucket {key}"
    elif class_folder != class_name and class_folder in class_names:
        label = f"class {safe_repr(class_name)}"
    else:
        return
    raise DataError(
        f"the dataset lists images of {path_text(folder)} under {label}, which the folder's name "
        "contradicts; unpack the dataset again"
    )


def _group_entries(
    entries: Iterable[Entry],
    source_name: str,
    listed_below: Path | None,
    class_names: Collection[str],
    num_vectors: int | None,
) -> tuple[list[Entry], list[Entry], list[str]]:
    """Return training images, test images, and the folders of both, sorted."""
    is_listed = bytearray(num_vectors or 0)
    rows: dict[str, list[Entry]] = {TRAIN: [], TEST: []}
    groups: set[tuple[str, str, str]] = set()
    paths: set[Path] = set()
    for entry in () if entries is None else entries:
        if not isinstance(entry, Entry):
            problem = f"lists {safe_repr(entry)}; expected Entry(path, class_name, bucket)"
            raise DataError(f"{source_name} {problem}")
        path, class_name, bucket, split, _ = entry
        if split not in rows:
            raise DataError(
                f"{source_name} has a split {safe_repr(split)}; expected {TRAIN} or {TEST}"
            )
        rows[split].append(entry)
        if num_vectors is not None:
            row = path if isinstance(path, (int, np.integer)) else -1
            if not 0 <= row < num_vectors or is_listed[row]:
                raise DataError(
                    f"{source_name} lists {safe_repr(path)}, which is outside of the vectors, or "
                    f"is listed twice; expected rows from 0 to {num_vectors - 1}, each once"
                )
            is_listed[row] = True
        elif not isinstance(path, Path):
            raise DataError(
                f"{source_name} lists {safe_repr(path)}; expected a Path, or pass vectors=ARRAY if "
                "it is a row"
            )
        else:
            group = (os.path.dirname(path), bucket, class_name)  # noqa: PTH120 (for each image)
            if group not in groups and listed_below is not None:
                _check_folder_names(path.parent, listed_below, bucket, class_name, class_names)
            groups.add(group)
            if path in paths:
                raise DataError(
                    f"{source_name} lists {path_text(path)} twice; expected each image once, in "
                    "one bucket, split and class"
                )
            paths.add(path)
    if not rows[TRAIN]:
        raise DataError(f"{source_name} has nothing to train on; expected some in every bucket")
    return rows[TRAIN], rows[TEST], sorted({folder for folder, *_ in groups})


def _choose_class_names(
    train: Iterable[Entry], test: Iterable[Entry], class_names: Sequence[str], source_name: str
) -> tuple[str, ...]:
    """Return *class_names* or sorted training classes, or raise DataError."""
    names = {entry.class_name for entry in train}
    bucket_by_test_name = {entry.class_name: entry.bucket for entry in test}
    if class_names:
        if unknown := sorted((names | bucket_by_test_name.keys()) - set(class_names)):
            raise DataError(
                f"{source_name} has class {safe_repr(unknown[0])}, but the list of classes does "
                "not name it; expected the same classes in both"
            )
        return tuple(class_names)
    if test_only := sorted(bucket_by_test_name.keys() - names):
        raise DataError(
            f"{source_name} has class {safe_repr(test_only[0])} in the test set of bucket "
            f"{safe_repr(bucket_by_test_name[test_only[0]])}, and in no training set; expected both"
        )
    for name in sorted(names, key=str):
        if not is_class_name(name) or len(name) > MAX_TEXT_CHARACTERS:
            raise DataError(
                f"{source_name} has a class {safe_repr(name)}; expected a printable text without "
                f"blanks at its ends, of up to {MAX_TEXT_CHARACTERS} characters"
            )
    if not 2 <= len(names) <= MAX_CLASSES:
        count = format_count(len(names), "class", "classes")
        raise DataError(f"{source_name} has {count}; expected 2 to {MAX_CLASSES}")
    if all(name.isascii() and name.isdecimal() for name in names):  # as lists of weights count them
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def sort_buckets(keys: Collection[str], *, order: Sequence[str], source_name: str) -> list[str]:
    """Sort the keys of buckets by *order*, or number or date.

    Raises DataError if a key is invalid, there are too many, or their order is not clear.
    """
    for key in sorted(keys, key=str):
        if not is_class_name(key) or len(key) > MAX_KEY_CHARACTERS:
            raise DataError(
                f"{source_name} has a bucket {safe_repr(key)}; expected a printable text without "
                f"blanks at its ends, 1 to {MAX_KEY_CHARACTERS} characters"
            )
    if len(keys) > MAX_BUCKETS:
        raise DataError(f"{source_name} has {len(keys)} buckets; expected at most {MAX_BUCKETS}")
    if order:
        if unmatched := sorted(set(keys).symmetric_difference(order), key=repr):
            where = "only in the data" if unmatched[0] in keys else "not in the data"
            raise DataError(
                f"{source_name} and order={':'.join(map(str, order))} differ: bucket "
                f"{safe_repr(unmatched[0])} is {where}; expected all buckets, each once"
            )
        if len(set(order)) < len(order):
            raise DataError(f"order={':'.join(order)} names a bucket twice; expected each once")
        return list(order)
    starts: dict[str, Any] = {key: int(key) for key in keys if _BUCKET_NUMBER.fullmatch(key)}
    if len(starts) < len(keys):
        starts = {key: time.start for key in keys if (time := parse_time(key)) is not None}
    if unordered := sorted(set(keys) - starts.keys(), key=lambda key: (key.isdecimal(), key)):
        raise DataError(
            f"{source_name} has a bucket {safe_repr(unordered[0])}; expected integers or dates "
            "(2004, 2004-Q2, 2004-05, 2004-05-17), whose order is the stream's, or pass "
            "dataset_args=order=FIRST:SECOND:..."
        )
    ordered = sorted(keys, key=lambda key: (starts[key], key))
    for previous, key in pairwise(ordered):
        if starts[previous] == starts[key]:
            raise DataError(
                f"{source_name} has buckets {safe_repr(previous)} and {safe_repr(key)}, which are "
                "one number or begin on one day; expected each bucket once"
            )
    return ordered


def find_first_days(keys: Collection[str]) -> dict[str, str]:
    """Return each bucket's first day, {} unless all keys are dates."""
    times = {key: parse_time(key) for key in keys}
    dates = {key: f"{time.start:%Y-%m-%d}" for key, time in times.items() if time is not None}
    return dates if len(dates) == len(keys) else {}


@dataclass(frozen=True)
class StreamArguments:
    """The ``dataset_args`` of every stream of your own.

    Args:
        name: name of the stream in records; auto: the name of its folder.
        licence: licence of the images, for example "CC BY 4.0", for anyone who reads the run; none:
            not known.
    """

    name: str = "auto"
    licence: str = NONE

    def __post_init__(self) -> None:
        for argument in ("name", "licence"):
            value = getattr(self, argument)
            if not is_class_name(value) or len(value) > MAX_TEXT_CHARACTERS or "," in value:
                raise ConfigError(
                    f"dataset_args has {argument}={safe_repr(value)}; expected a printable text of "
                    f"up to {MAX_TEXT_CHARACTERS} characters without commas (a stream without a "
                    "name is called like its folder)"
                )


@dataclass(frozen=True)
class OrderedArguments(StreamArguments):
    """Arguments of every stream, and the order of its buckets.

    Args:
        order: all buckets, separated by colons.
    """

    order: str = NONE

    @property
    def bucket_order(self) -> tuple[str, ...]:
        """The buckets in ``order``, or () if it is not set."""
        return () if self.order == NONE else tuple(self.order.split(":"))
