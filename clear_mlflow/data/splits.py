"""Protocols and splits: select what is trained on and what is tested on from an index of images.

All layouts and sources end in an :class:`ImageIndex`, so the same images have the same split in
each of them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import VALIDATION, get_divided_split, get_measured_split
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import ImageIndex, ImageTable, Rows

AUTO = "auto"
IID = "iid"
STREAMING = "streaming"
TEST_RATIO = 0.3
STORED_SPLITS = range(5)  # the seeds of the splits that the older layout stores

_SPLIT = re.compile(f"auto|[0-9]{{1,18}}|{VALIDATION}(:[0-9]{{1,18}})?")


def apply_split(
    index: ImageIndex, *, protocol: str, split: str
) -> tuple[ImageTable, str, tuple[str, ...]]:
    """Return the images, the split (released, N, none or a validation split), and warnings.

    Reads the lists of released test images or of stored splits if they are used. Raises DataError
    if a bucket has too few images to hold some out.
    """
    check_split(protocol, split)
    images: ImageTable = index.images
    warnings: tuple[str, ...] = ()
    if protocol == STREAMING:
        return images, "none", warnings
    name, validates = get_divided_split(split), get_measured_split(split) == VALIDATION
    if name != AUTO or index.read_test is None:
        number = 0 if name == AUTO else int(name)
        name = str(number)
        images, warnings = _hold_out_test(index, number)
    elif validates:
        name = ""
    else:
        name, images = "released", images.join(index.read_test())
    if validates:
        images = _hold_out_validation(images.take(np.flatnonzero(~images.is_test)), index)
        name = ":".join(filter(None, (VALIDATION, name)))
    return images, name, warnings


def _hold_out_test(index: ImageIndex, number: int) -> tuple[ImageTable, tuple[str, ...]]:
    """Return the images with the test set of a stored split, or of one that is drawn."""
    images, is_test = index.images, index.read_split and index.read_split(number)
    warnings: tuple[str, ...] = ()
    if is_test is None:
        is_test = np.zeros(len(images), dtype=np.bool_)
        for rows in images.group_by_bucket(len(index.buckets)):
            is_test[rows[draw_split(len(rows), number)]] = True
        if index.read_split is not None and number in STORED_SPLITS:
            warnings = (
                f"split {number} is not stored in {path_text(index.root)}; it was drawn again, and "
                "may differ from the published one",
            )
    for key, rows in zip(index.buckets, images.group_by_bucket(len(index.buckets)), strict=True):
        if not is_test[rows].any():
            raise DataError(
                f"bucket {key} of {path_text(index.root)} has {len(rows)} images; expected at "
                f"least 4, to hold out {TEST_RATIO:.0%} of them: pass protocol=streaming, or "
                "unpack the dataset again"
            )
    return replace(images, is_test=is_test), warnings


def check_split(protocol: str, split: str) -> None:
    """Raise ConfigError if a protocol or a split does not exist, or they contradict each other."""
    if protocol not in (IID, STREAMING):
        raise ConfigError(
            f"protocol is {safe_repr(protocol)}; expected {IID} or {STREAMING}",
            parameter="protocol",
        )
    if not _SPLIT.fullmatch(split):
        raise ConfigError(
            f"split is {safe_repr(split)}; expected {AUTO}, an integer of up to 18 digits, "
            f"{VALIDATION}, or {VALIDATION}:N for the validation split of split N",
            parameter="split",
        )
    if split != AUTO and protocol == STREAMING:
        raise ConfigError(
            f"split is {split}, but under {STREAMING} a bucket is tested on its training images "
            f"and nothing is held out; pass protocol={IID}, or leave split at {AUTO}",
            parameter="split",
        )


def draw_split(num_images: int, seed: int) -> Rows:
    """Draw the test images of a bucket, int(0.3 n) of them, and return their indices, ascending.

    The last shuffled images are held out, as in CLEAR's prepare_training_folder.py.
    """
    indices = list(range(num_images))
    random.Random(seed).shuffle(indices)  # noqa: S311 (the published procedure, not a secret)
    return np.array(sorted(indices[num_images - int(TEST_RATIO * num_images) :]), dtype=np.int64)


def draw_validation_split(images: ImageTable) -> NDArray[np.bool_]:
    """Return which images are held out for validation: a tenth of each bucket's and class's.

    At least one image of each class that has two is held out. The hash of an image's id decides,
    so the split is the same for all seeds.
    """
    held_out, ids = np.zeros(len(images), dtype=np.bool_), images.ids
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row, group in enumerate(zip(images.buckets.tolist(), images.labels.tolist(), strict=True)):
        groups[group].append(row)
    for (_, label), rows in groups.items():
        rows.sort(key=lambda row: _hash_id(label, ids[row]))
        held_out[rows[: max(1, (len(rows) + 5) // 10) if len(rows) > 1 else 0]] = True
    return held_out


def _hash_id(label: int, image_id: str) -> bytes:
    """Return a key to sort by, which depends on no other image."""
    return hashlib.sha256(os.fsencode(f"{VALIDATION}\0{label}\0{image_id}")).digest()


def _hold_out_validation(images: ImageTable, index: ImageIndex) -> ImageTable:
    """Return training images, some of which are held out to test on."""
    held_out = draw_validation_split(images)
    for key, rows in zip(index.buckets, images.group_by_bucket(len(index.buckets)), strict=True):
        number = int(held_out[rows].sum())
        if not 0 < number < len(rows):
            raise DataError(
                f"bucket {key} of {path_text(index.root)} has {len(rows)} images, of which "
                f"{number} would be held out for validation; expected some to train on and "
                "some to hold out: pass split=auto, or a dataset with more images"
            )
    return replace(images, is_test=held_out)
