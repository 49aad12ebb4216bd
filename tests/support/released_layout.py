"""Writes small datasets in CLEAR's released layout, with real JPEG and PNG images."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from clear_mlflow.data.content import build_stream
from clear_mlflow.data.layouts import find_layout, read_layout
from clear_mlflow.data.stream import BucketStream


def write_image(path: Path, *, size: tuple[int, int] = (40, 30), seed: str = "") -> None:
    """Write an image with unique content, in the format of the file name's ending."""
    draws = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))
    blocks = Image.fromarray(draws.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks.resize(size, Image.Resampling.NEAREST).save(path)


def write_split(
    folder: Path,
    *,
    buckets: Iterable[str],
    classes: Iterable[str],
    per_class: int,
    extension: str = "jpg",
    size: tuple[int, int] = (40, 30),
    final_newline: bool = True,
) -> None:
    """Write one split. An image's content depends on split, bucket, class and number."""
    classes = list(classes)
    split = "test" if folder.name == "test" else "train"
    metadata: dict[str, dict[str, str]] = {}
    for bucket in buckets:
        metadata[bucket] = {}
        for class_name in classes:
            entries = {}
            for number in range(per_class):
                image_id = str(235821044 + number)
                images = f"labeled_images/{bucket}/{class_name}"
                path = f"{images}/{image_id}.{extension}"
                seed = f"{split}/{bucket}/{class_name}/{number}"
                write_image(folder / path, size=size, seed=seed)
                entries[image_id] = {
                    "ID": image_id,
                    "EXT": extension,
                    "IMG_DIR": images,
                    "IMG_PATH": path,
                }
            metadata[bucket][class_name] = f"labeled_metadata/{bucket}/{class_name}.json"
            write_json(folder / metadata[bucket][class_name], entries)
    text = "\n".join(classes) + ("\n" if final_newline else "")
    (folder / "class_names.txt").write_text(text, encoding="utf-8")
    write_json(folder / "labeled_metadata.json", metadata)


def write_released(
    root: Path,
    *,
    buckets: Iterable[str] = ("1", "2", "3"),
    test_buckets: Iterable[str] | None = None,
    classes: Iterable[str] = ("bus", "camera", "sweater"),
    train: int = 3,
    test: int = 2,
    train_folder: str = "train",
    extension: str = "jpg",
    size: tuple[int, int] = (40, 30),
    final_newline: bool = True,
) -> Path:
    """Write a complete dataset, and return *root*.

    *train* and *test*: images per class and bucket.
    """
    buckets, classes = list(buckets), list(classes)
    for folder, keys, per_class in (
        (train_folder, buckets, train),
        ("test", list(test_buckets) if test_buckets is not None else buckets, test),
    ):
        write_split(
            root / folder,
            buckets=keys,
            classes=classes,
            per_class=per_class,
            extension=extension,
            size=size,
            final_newline=final_newline,
        )
    return root


def zip_folder(root: Path, folder: str) -> bytes:
    """Return an archive of a folder of *root*."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted((root / folder).rglob("*")):
            archive.write(path, path.relative_to(root))
    return file.getvalue()


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def read_any(root: Path, *, name: str) -> BucketStream:
    """Return the stream at *root* in any layout, without cached hashes."""
    return build_stream(read_layout(*find_layout(root, names=(name,))), name=name)
