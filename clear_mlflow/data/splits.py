"""Protocols and splits: select what is trained on and what is tested on from an index of images.

All layouts and sources end in an :class:`ImageIndex`, so the same images have the same split in
each of them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import VALIDATION, get_divided_split, get_measured_split
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import path_text
from clear_mlflow.data.image_index import ImageIndex, Split
from clear_mlflow.data.stream import Bucket, ImageSet

AUTO = "auto"
IID = "iid"
STREAMING = "streaming"
TEST_RATIO = 0.3
STORED_SPLITS = range(5)  # the seeds of the splits that the older layout stores

_SPLIT = re.compile(f"auto|[0-9]{{1,18}}|{VALIDATION}(:[0-9]{{1,18}})?")


def apply_split(
    index: ImageIndex, *, protocol: str, split: str
) -> tuple[tuple[Bucket, ...], str, tuple[str, ...]]:
    """Return the buckets, the split (released, N, none or a validation split), and warnings.

    Reads the lists of released test images or of stored splits if they are used. Raises DataError
    if a bucket has too few images to hold some out.
    """
    check_split(protocol, split)
    if protocol == STREAMING:
        return tuple(Bucket(key, all_, all_) for key, all_ in index.images.items()), "none", ()
    validates, base_split = get_measured_split(split) == VALIDATION, get_divided_split(split)
    if base_split == AUTO and index.read_test is not None:
        if validates:
            return _hold_out_validation(index.images, index.root), VALIDATION, ()
        tests = index.read_test()
        released = (Bucket(key, train, tests[key]) for key, train in index.images.items())
        return tuple(released), "released", ()
    number = 0 if base_split == AUTO else int(base_split)
    stored = index.read_split(number) if index.read_split is not None else None
    buckets = []
    for key, images in index.images.items():
        train, test = draw_split(len(images), number) if stored is None else stored[key]
        if not len(test):
            raise DataError(
                f"bucket {key} of {path_text(index.root)} has {len(images)} images; expected at "
                f"least 4, to hold out {TEST_RATIO:.0%} of them: pass protocol=streaming, or "
                "unpack the dataset again"
            )
        buckets.append(Bucket(key=key, train=images.take(train), test=images.take(test)))
    warnings: tuple[str, ...] = ()
    if index.read_split is not None and stored is None and number in STORED_SPLITS:
        warnings = (
            f"split {number} is not stored in {path_text(index.root)}; it was drawn again, and "
            "may differ from the published one",
        )
    if validates:
        train_sets = {bucket.key: bucket.train for bucket in buckets}
        return _hold_out_validation(train_sets, index.root), f"{VALIDATION}:{number}", warnings
    return tuple(buckets), str(number), warnings


def check_split(protocol: str, split: str) -> None:
    """Raise ConfigError if a protocol or a split does not exist, or they contradict each other."""
    if protocol not in (IID, STREAMING):
        raise ConfigError(f"protocol is {safe_repr(protocol)}; expected {IID} or {STREAMING}")
    if not _SPLIT.fullmatch(split):
        raise ConfigError(
            f"split is {safe_repr(split)}; expected {AUTO}, an integer of up to 18 digits, "
            f"{VALIDATION}, or {VALIDATION}:N for the validation split of split N"
        )
    if split != AUTO and protocol == STREAMING:
        raise ConfigError(
            f"split is {split}, but under {STREAMING} a bucket is tested on its training images "
            f"and nothing is held out; pass protocol={IID}, or leave split at {AUTO}"
        )


def draw_split(num_images: int, seed: int) -> Split:
    """Draw ascending training and test indices of a bucket: a test set of int(0.3 n) images.

    The last shuffled images are held out, as in CLEAR's prepare_training_folder.py.
    """
    indices = list(range(num_images))
    random.Random(seed).shuffle(indices)  # noqa: S311 (the published procedure, not a secret)
    num_train = num_images - int(TEST_RATIO * num_images)
    train, test = indices[:num_train], indices[num_train:]
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)


def draw_validation_split(images: ImageSet) -> Split:
    """Return ascending training and validation indices: a tenth of each class is held out.

    At least one image of each class that has two is held out. The hash of an image's id decides,
    so the split is the same for all seeds.
    """
    held_out, ids = np.zeros(len(images), dtype=np.bool_), images.ids()
    for label in np.unique(images.labels).tolist():
        indices = np.flatnonzero(images.labels == label).tolist()
        indices.sort(key=lambda i: _hash_id(label, ids[i]))
        held_out[indices[: max(1, (len(indices) + 5) // 10) if len(indices) > 1 else 0]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _hash_id(label: int, image_id: str) -> bytes:
    """Return a key to sort by, which depends on no other image."""
    return hashlib.sha256(os.fsencode(f"{VALIDATION}\0{label}\0{image_id}")).digest()


def _hold_out_validation(images: Mapping[str, ImageSet], root: Path) -> tuple[Bucket, ...]:
    """Return buckets whose test images are held out of these training images, by bucket key."""
    buckets = []
    for key, all_ in images.items():
        train, held_out = draw_validation_split(all_)
        if not len(train) or not len(held_out):
            raise DataError(
                f"bucket {key} of {path_text(root)} has {len(all_)} images, of which "
                f"{len(held_out)} would be held out for validation; expected some to train on and "
                "some to hold out: pass split=auto, or a dataset with more images"
            )
        buckets.append(Bucket(key=key, train=all_.take(train), test=all_.take(held_out)))
    return tuple(buckets)
