"""Looking into images: can each be decoded, how large is it, and which are copies of which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, sha256_of
from clear_mlflow.data.decoding.decode import FORMATS, Resize, decode
from clear_mlflow.data.files import path_text, regular_file
from clear_mlflow.data.problems import Problem
from clear_mlflow.data.stream import ImageSet

_FILES_IN_A_TASK = 16

OnImages = Callable[[str, int, "int | None"], None]


class FoundImage(NamedTuple):
    """An image of a dataset that is checked."""

    split: str
    bucket: str
    class_name: str
    path: Path


class Look(NamedTuple):
    """What is in an image's file."""

    content: str  # SHA-256, hexadecimal
    size: tuple[int, int]
    mode: str
    wrong: str  # why it cannot be decoded; empty where it can


def look_at(images: Sequence[FoundImage], root: Path, on_progress: OnImages) -> list[Look]:
    """Decode every image, in several threads; each below *root*, or it is wrong."""
    blocks = [images[i : i + _FILES_IN_A_TASK] for i in range(0, len(images), _FILES_IN_A_TASK)]
    seen: list[Look] = []
    on_progress("looking at images", 0, len(images))
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        for block in pool.map(lambda block: [_look(i.path, root) for i in block], blocks):
            seen += block
            on_progress("looking at images", len(seen), len(images))
    return seen


def _look(path: Path, root: Path) -> Look:
    try:
        num_bytes = regular_file(path, root=root).st_size
        if num_bytes > MAX_IMAGE_BYTES:
            return Look(
                "", (0, 0), "", f"has {num_bytes} bytes; expected {MAX_IMAGE_BYTES} at most"
            )
        content = sha256_of(path)
        with Image.open(path, formats=FORMATS) as image:
            size, mode = image.size, image.mode
        # What training does: so that what passes here is what it can decode.
        one = ImageSet(paths=(path,), labels=np.zeros(1, dtype=np.int64))
        decode(one, Resize(8))
    except UnidentifiedImageError:
        return Look("", (0, 0), "", "is no image of a known format")
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        return Look("", (0, 0), "", _short(error, path))
    return Look(content, size, mode, "")


def _short(error: Exception, path: Path) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix(f"{path_text(path)} ")


def doubles(
    images: Sequence[FoundImage], seen: Sequence[Look], parts: Mapping[Path, str]
) -> list[Problem]:
    """A problem for each content that several images have."""
    by_content: defaultdict[str, list[FoundImage]] = defaultdict(list)
    for image, look in zip(images, seen, strict=True):
        if not look.wrong:
            by_content[look.content].append(image)
    return [
        Problem(
            _double_kind(copies, parts),
            copies[0].path,
            f"{len(copies)} copies of one image",
            tuple(image.path for image in copies[1:]),
        )
        for copies in by_content.values()
        if len(copies) > 1
    ]


def _double_kind(copies: Sequence[FoundImage], parts: Mapping[Path, str]) -> str:
    """The worst that can be said of it, for each problem is listed once."""
    if len({parts[image.path] for image in copies}) > 1:
        return "train-and-test"
    if len({image.bucket for image in copies}) > 1:
        return "across-buckets"
    return "across-classes" if len({image.class_name for image in copies}) > 1 else "within-bucket"
