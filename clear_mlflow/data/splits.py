"""From the images of a dataset to what is trained and tested on: the protocols and their splits.

Every layout's reader ends in a :class:`Listing`, so that the same images give the same split in
each of them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import VALIDATION, measured_split, validated_split
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import path_text
from clear_mlflow.data.stream import Bucket, ImageSet

AUTO = "auto"
IID = "iid"
STREAMING = "streaming"
STANDARDISE = ("first", "past", "none")
TEST_RATIO = 0.3
STORED_SPLITS = range(5)  # the seeds of the splits that the older layout stores

_SPLIT = re.compile(f"auto|[0-9]{{1,18}}|{VALIDATION}(:[0-9]{{1,18}})?")


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a dataset, whatever its layout; nothing is hashed or decoded.

    Args:
        layout: its name, for people.
        root: the folder that holds all images, resolved.
        class_names: the index is the label.
        images: bucket key, in stream order, to the bucket's labelled images, in the order of
            class, then image id.
        released_test: reads the test set that was released for each of these buckets; None where
            the layout has none.
        stored_split: reads the split of a number, as (training, test) indices into each bucket's
            images, ascending; gives None where that split is not stored.
        warnings: what is odd about it and does not stop a run; one line each.
        source: where it was read from, for people; empty where that is the root.
        times: bucket key to its date, as 2004-05-17; of all buckets, or of none where not known.
        standardise: how vectors become a model's input: ``first``, less the mean and over the
            standard deviation of the first bucket's training vectors; ``past``, of those of all
            buckets so far; ``none``, as they are.
        may_repeat: equal vectors are no mistake, as in measurements or in tables of few distinct
            rows: no warning, and no error, about them.
    """

    layout: str
    root: Path
    class_names: tuple[str, ...]
    images: Mapping[str, ImageSet]
    released_test: Callable[[], Mapping[str, ImageSet]] | None = None
    stored_split: Callable[[int], Mapping[str, Split] | None] | None = None
    warnings: tuple[str, ...] = ()
    source: str = ""
    times: Mapping[str, str] = field(default_factory=dict)
    standardise: str = "none"
    may_repeat: bool = False

    def __post_init__(self) -> None:
        if self.standardise not in STANDARDISE:
            raise ConfigError(
                f"dataset_args has standardise={safe_repr(self.standardise)}; expected one of "
                f"{', '.join(STANDARDISE)}"
            )


Split = tuple[NDArray[np.int64], NDArray[np.int64]]


def choose(
    listing: Listing, *, protocol: str, split: str
) -> tuple[tuple[Bucket, ...], str, tuple[str, ...]]:
    """Buckets as a protocol asks, the split (released, N, none or validation's), warnings."""
    check_protocol(protocol, split)
    if protocol == STREAMING:
        return tuple(Bucket(key, all_, all_) for key, all_ in listing.images.items()), "none", ()
    validates, of_split = measured_split(split) == VALIDATION, validated_split(split)
    if of_split == AUTO and listing.released_test is not None:
        if validates:
            return _validated(listing.images, listing.root), VALIDATION, ()
        tests = listing.released_test()
        released = (Bucket(key, train, tests[key]) for key, train in listing.images.items())
        return tuple(released), "released", ()
    number = 0 if of_split == AUTO else int(of_split)
    stored = listing.stored_split(number) if listing.stored_split is not None else None
    buckets = []
    for key, images in listing.images.items():
        train, test = seeded_split(len(images), number) if stored is None else stored[key]
        if not len(test):
            raise DataError(
                f"bucket {key} of {path_text(listing.root)} has {len(images)} images; expected at "
                f"least 4, to hold out {TEST_RATIO:.0%} of them: pass protocol=streaming, or "
                "unpack the dataset again"
            )
        buckets.append(Bucket(key=key, train=images.take(train), test=images.take(test)))
    warnings = []
    if listing.stored_split is not None and stored is None and number in STORED_SPLITS:
        warnings.append(
            f"split {number} is not stored in {path_text(listing.root)}; it was made anew, and "
            "may differ from the one that the authors published"
        )
    if validates:
        trained = {bucket.key: bucket.train for bucket in buckets}
        return _validated(trained, listing.root), f"{VALIDATION}:{number}", tuple(warnings)
    return tuple(buckets), str(number), tuple(warnings)


def check_protocol(protocol: str, split: str) -> None:
    """Refuse what :func:`choose` cannot do, before anything is read."""
    if protocol not in (IID, STREAMING):
        raise ConfigError(f"protocol is {safe_repr(protocol)}; expected {IID} or {STREAMING}")
    if not _SPLIT.fullmatch(split):
        raise ConfigError(
            f"split is {safe_repr(split)}; expected {AUTO}, a whole number of up to 18 digits, "
            f"{VALIDATION}, or {VALIDATION}:N for that of split N"
        )
    if split != AUTO and protocol == STREAMING:
        raise ConfigError(
            f"split is {split}, but under {STREAMING} a bucket is tested on its training images "
            f"and nothing is held out; pass protocol={IID}, or leave split at {AUTO}"
        )


def seeded_split(num_images: int, seed: int) -> Split:
    """Hold out int(0.3 n) as CLEAR's prepare_training_folder.py does: shuffle, cut off the end."""
    indices = list(range(num_images))
    random.Random(seed).shuffle(indices)  # noqa: S311 (the published procedure, not a secret)
    num_train = num_images - int(TEST_RATIO * num_images)
    train, test = indices[:num_train], indices[num_train:]
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)


def validation_split(images: ImageSet) -> Split:
    """Hold out a tenth of each class, at least one of two, by ids: the same for all seeds; last."""
    out, ids = np.zeros(len(images), dtype=np.bool_), images.ids()
    for label in np.unique(images.labels).tolist():
        own = np.flatnonzero(images.labels == label).tolist()
        drawn = sorted(own, key=lambda i: _draw(label, ids[i]))
        out[drawn[: max(1, (len(own) + 5) // 10) if len(own) > 1 else 0]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def _draw(label: int, image_id: str) -> bytes:
    """A number that an image is drawn by: of itself alone, so that others may come and go."""
    return hashlib.sha256(os.fsencode(f"{VALIDATION}\0{label}\0{image_id}")).digest()


def _validated(images: Mapping[str, ImageSet], root: Path) -> tuple[Bucket, ...]:
    buckets = []
    for key, own in images.items():
        train, held_out = validation_split(own)
        if not len(train) or not len(held_out):
            raise DataError(
                f"bucket {key} of {path_text(root)} has {len(own)} images, of which "
                f"{len(held_out)} would be held out to validate on; expected some to train on and "
                "some to hold out: pass split=auto, or a dataset with more images"
            )
        buckets.append(Bucket(key=key, train=own.take(train), test=own.take(held_out)))
    return tuple(buckets)
