"""From images that are named one by one to a listing: what all streams of one's own share."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_BUCKETS,
    MAX_CLASSES,
    MAX_FEATURES_WIDTH,
    MAX_KEY_CHARACTERS,
    MAX_TEXT_CHARACTERS,
)
from clear_mlflow.data.files import (
    in_stream_order,
    is_class_name,
    path_text,
    resolve_folder,
    resolve_root,
)
from clear_mlflow.data.sources._times import parse_time
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import ImageSet, image_set, vector_set

TRAIN = "train"
AUTO = "auto"
NONE = "none"


@dataclass(frozen=True)
class StreamArguments:
    """What ``dataset_args`` may say of every stream of your own.

    Args:
        name: of the stream, in records and comparisons; auto: that of its folder.
        licence: of the images, for example "CC BY 4.0", for anyone who reads the run; none: not
            known.
    """

    name: str = AUTO
    licence: str = NONE

    def __post_init__(self) -> None:
        for argument in ("name", "licence"):
            text = getattr(self, argument)
            if not is_class_name(text) or len(text) > MAX_TEXT_CHARACTERS or "," in text:
                raise ConfigError(
                    f"dataset_args has {argument}={safe_repr(text)}; expected a printable text of "
                    f"up to {MAX_TEXT_CHARACTERS} characters without commas (a stream is called as "
                    "its folder where it has no name of its own)"
                )


@dataclass(frozen=True)
class OrderedArguments(StreamArguments):
    """Every stream's arguments, and all buckets with colons between, where names show no order."""

    order: str = NONE

    @property
    def buckets_in_order(self) -> tuple[str, ...]:
        """The buckets that ``order`` names; none where it is not given."""
        return () if self.order == NONE else tuple(self.order.split(":"))


class Entry(NamedTuple):
    """One image of a stream, or one vector."""

    path: Path | int  # below the stream's root; of a vector, its row in the array
    class_name: str
    bucket: str
    split: str = TRAIN  # or "test"


def listing_of(
    entries: Iterable[Entry],
    *,
    root: Path,
    layout: str = "own",
    named_in: str = "",
    order: Sequence[str] = (),
    times: Mapping[str, str] | None = None,
    vectors: NDArray[Any] | None = None,
    standardise: str = "first",
    first_row: int = 0,
) -> Listing:
    """The listing of images that are named one by one, or of rows of an array.

    Labels follow the sorted names of the classes, numbers as numbers. Buckets are in the order of
    their numbers or dates, or as *order* says; in a bucket, images are in the order of label and
    file name, vectors of label and content, whatever order they are given in. A class may be
    missing in a bucket: a warning when a training begins.

    Args:
        entries: every image once. Where any is for testing, all buckets have images for testing;
            else they are held out by a seeded split.
        root: the folder that all images lie in.
        layout: how the stream is stored, for people.
        named_in: what names the images, for messages; the root where it is left out.
        order: keys of all buckets, where they are neither all whole numbers nor all dates.
        times: a date for each bucket, as 2004-05-17, for the axis of charts; where it is left out
            and all keys are dates, the first day of each.
        vectors: (rows, width), finite numbers, kept as float32; a mapped file stays one.
        standardise: how vectors become a model's input; see :class:`Listing`.
        first_row: what messages call the first vector.

    Raises:
        DataError: there are no images, fewer than two classes, or too many of anything; a bucket or
            class cannot be called as it is; the order of the buckets is not known; a path leads out
            of *root*; a vector is not finite; or a bucket or a class has images to test on and none
            to train on.
    """
    real_root = resolve_root(root)
    named_in = named_in or path_text(real_root)
    if vectors is not None and vectors.ndim == 2 and vectors.shape[1] > MAX_FEATURES_WIDTH:
        raise DataError(
            f"{named_in} has vectors of {vectors.shape[1]} numbers; expected {MAX_FEATURES_WIDTH} "
            "at most"
        )
    parts: defaultdict[str, defaultdict[str, list[tuple[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    folders: set[str] = set()
    for path, class_name, bucket, split in entries:
        parts[split][bucket].append((class_name, path))
        if not isinstance(path, int):
            folders.add(os.path.dirname(path))  # noqa: PTH120 (of each image)
    odd = sorted(parts.keys() - {TRAIN, TEST})
    if odd:
        raise DataError(f"{named_in} has a split {safe_repr(odd[0])}; expected {TRAIN} or {TEST}")
    if not parts[TRAIN]:
        raise DataError(f"{named_in} has nothing to train on; expected some in every bucket")
    trained, tested = parts[TRAIN], parts[TEST]
    class_names = _class_names(trained, tested, named_in)
    keys = in_time_order({*trained, *tested}, order=order, named_in=named_in)
    for folder in sorted(folders):  # once each, not for each image: resolving walks all above
        if not os.path.lexists(folder):
            raise DataError(
                f"{named_in} names images in a folder that is not there, {path_text(Path(folder))} "
                f"is missing: expected paths of images below {path_text(real_root)}"
            )
        resolve_folder(Path(folder), root=real_root)
    labels = {name: label for label, name in enumerate(class_names)}
    array = None if vectors is None else np.asarray(vectors, dtype=np.float32)
    made = image_set
    if array is not None:
        if array.ndim != 2 or not array.shape[1]:
            raise DataError(f"{named_in} has the shape {array.shape}; expected (rows, width)")
        made = partial(vector_set, array=array, source=Path(named_in), first_row=first_row)

    def image_sets_of(part: Mapping[str, list[tuple[str, Any]]]) -> dict[str, ImageSet]:
        return {
            key: made((labels[name], path) for name, path in part[key])
            for key in keys
            if key in part
        }

    images = image_sets_of(trained)

    def released_test() -> Mapping[str, ImageSet]:
        for key in images:
            if key not in tested:
                raise DataError(
                    f"{named_in} has no test set of bucket {safe_repr(key)}; expected one of every "
                    "bucket, or pass split=0 to hold out 30 % of its training set"
                )
        return image_sets_of({key: tested[key] for key in images})

    alone = [safe_repr(key) for key in keys if key not in trained]
    left = f"left out, for want of a training set: the test set of bucket {', '.join(alone[:8])}"
    return Listing(
        layout=layout,
        root=real_root,
        class_names=class_names,
        images=images,
        released_test=released_test if tested else None,
        times=_times(images) if times is None else {key: times[key] for key in images},
        warnings=(left,) if alone else (),
        standardise=NONE if array is None else standardise,
    )


def _times(keys: Iterable[str]) -> dict[str, str]:
    """The first day of each bucket, where all keys are dates; a number of four digits is a year."""
    found = {key: parse_time(key) for key in keys}
    dates = {key: f"{time.begin:%Y-%m-%d}" for key, time in found.items() if time is not None}
    return dates if len(dates) == len(found) else {}


def _class_names(
    trained: Mapping[str, list[tuple[str, Path]]],
    tested: Mapping[str, list[tuple[str, Path]]],
    named_in: str,
) -> tuple[str, ...]:
    names = {name for of_bucket in trained.values() for name, _ in of_bucket}
    for bucket, of_bucket in tested.items():
        if only := sorted({name for name, _ in of_bucket} - names):
            raise DataError(
                f"{named_in} has class {safe_repr(only[0])} in the test set of bucket "
                f"{safe_repr(bucket)}, and in no training set; expected both"
            )
    for name in sorted(names):
        if not is_class_name(name) or len(name) > MAX_TEXT_CHARACTERS:
            raise DataError(
                f"{named_in} has a class {safe_repr(name)}; expected a printable name without "
                f"blanks at its ends, of up to {MAX_TEXT_CHARACTERS} characters"
            )
    if not 2 <= len(names) <= MAX_CLASSES:
        raise DataError(f"{named_in} has {len(names)} classes; expected 2 to {MAX_CLASSES}")
    if all(name.isascii() and name.isdecimal() for name in names):  # as lists of weights count them
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def in_time_order(keys: Iterable[str], *, order: Sequence[str], named_in: str) -> list[str]:
    """Keys of buckets in the order of the stream: as given, by number, or by date."""
    found = set(keys)
    for key in sorted(found):
        if not key.isprintable() or key != key.strip() or not 1 <= len(key) <= MAX_KEY_CHARACTERS:
            raise DataError(
                f"{named_in} has a bucket {safe_repr(key)}; expected a printable name without "
                f"blanks at its ends, 1 to {MAX_KEY_CHARACTERS} characters"
            )
    if len(found) > MAX_BUCKETS:
        raise DataError(f"{named_in} has {len(found)} buckets; expected at most {MAX_BUCKETS}")
    if order:
        if odd := sorted(found.symmetric_difference(order)):
            where = "only in the data" if odd[0] in found else "not in the data"
            raise DataError(
                f"{named_in} and order={':'.join(order)} differ: bucket {safe_repr(odd[0])} is "
                f"{where}; expected all buckets, each once"
            )
        if len(set(order)) < len(order):
            raise DataError(f"order={':'.join(order)} names a bucket twice; expected each once")
        return list(order)
    if all(key.isascii() and key.isdecimal() and len(key) <= 9 for key in found):
        return in_stream_order(found, named_in=Path(named_in))
    places = {}
    for key in sorted(found):
        if (time := parse_time(key)) is None:
            raise DataError(
                f"{named_in} has a bucket {safe_repr(key)}; expected whole numbers or dates (2004, "
                "2004-Q2, 2004-05, 2004-05-17), whose order is the stream's, or say it: "
                "dataset_args=order=FIRST:SECOND:..."
            )
        places[key] = time.begin
    seen: dict[Any, str] = {}
    for key, place in places.items():
        if (twin := seen.setdefault(place, key)) != key:
            raise DataError(
                f"{named_in} has buckets {safe_repr(twin)} and {safe_repr(key)}, which begin on "
                "one day; expected each bucket once"
            )
    return sorted(found, key=lambda key: places[key])
