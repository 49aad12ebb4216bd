"""Looking into images: can each be decoded, and how large is it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, sha256_of
from clear_mlflow.data.checking.content import Image
from clear_mlflow.data.decoding.decode import FORMATS, Resize, decode
from clear_mlflow.data.files import path_text, regular_file
from clear_mlflow.data.stream import ImageSet

_FILES_IN_A_TASK = 16

OnImages = Callable[[str, int, "int | None"], None]


class Look(NamedTuple):
    """What is in an image's file."""

    content: str  # SHA-256, hexadecimal
    size: tuple[int, int]
    mode: str
    wrong: str  # why it cannot be decoded; empty where it can


def look_at(images: Sequence[Image], root: Path, on_progress: OnImages) -> list[Look]:
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
        with PIL.Image.open(path, formats=FORMATS) as image:
            size, mode = image.size, image.mode
        # What training does: so that what passes here is what it can decode.
        one = ImageSet(paths=(path,), labels=np.zeros(1, dtype=np.int64))
        decode(one, Resize(8))
    except PIL.UnidentifiedImageError:
        return Look("", (0, 0), "", "is no image of a known format")
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        return Look("", (0, 0), "", _short(error, path))
    return Look(content, size, mode, "")


def _short(error: Exception, path: Path) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix(f"{path_text(path)} ")
