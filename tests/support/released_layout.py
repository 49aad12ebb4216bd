"""Writes small datasets in CLEAR's released layout, with real JPEG and PNG images."""

import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from clear_mlflow.data.layouts import read_layout
from clear_mlflow.data.stream import BucketStream, build_stream


def write_image(path: Path, *, size: tuple[int, int] = (40, 30), seed: str = "") -> None:
    """Write an image with unique content, in the format of the file name's ending."""
    draws = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))
    blocks = Image.fromarray(draws.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks.resize(size, Image.Resampling.NEAREST).save(path)


def write_metadata(
    folder: Path,
    image_ids: Mapping[str, Mapping[str, Sequence[str]]],
    classes: Iterable[str],
    *,
    extension: str = "jpg",
    final_newline: bool = True,
) -> None:
    """Write the lists of one split. *image_ids*: bucket to class to image ids."""
    files: dict[str, dict[str, str]] = {}
    for bucket, ids_by_class in image_ids.items():
        files[bucket] = {}
        for name, ids in ids_by_class.items():
            images = f"labeled_images/{bucket}/{name}"
            entry = {"EXT": extension, "IMG_DIR": images}
            entries = {i: {"ID": i, **entry, "IMG_PATH": f"{images}/{i}.{extension}"} for i in ids}
            files[bucket][name] = f"labeled_metadata/{bucket}/{name}.json"
            write_json(folder / files[bucket][name], entries)
    write_json(folder / "labeled_metadata.json", files)
    text = "\n".join(classes) + "\n" * final_newline
    (folder / "class_names.txt").write_text(text, encoding="utf-8")


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
    for name, keys, per_class in (
        (train_folder, buckets, train),
        ("test", list(test_buckets) if test_buckets is not None else buckets, test),
    ):
        folder, split = root / name, "test" if name == "test" else "train"
        ids = [str(235821044 + number) for number in range(per_class)]
        for bucket, class_name, number in itertools.product(keys, classes, range(per_class)):
            file = f"labeled_images/{bucket}/{class_name}/{ids[number]}.{extension}"
            seed = f"{split}/{bucket}/{class_name}/{number}"
            write_image(folder / file, size=size, seed=seed)
        image_ids = {key: dict.fromkeys(classes, ids) for key in keys}
        options = {"extension": extension, "final_newline": final_newline}
        write_metadata(folder, image_ids, classes, **options)
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
    return build_stream(read_layout(root, names=(name,)), name=name)
