"""The scans that the embedded datasets are made of, and the files that they become."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = tuple("0123456789")


def load_scans() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The scans in the order in which they are stored, (1797, 8, 8), 0 to 16, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.int64), digits.target.astype(np.int64)


class ReleasedWriter:
    """Writes images of scans in CLEAR's released layout; an image's name is its scan's number."""

    def __init__(self, root: Path, class_names: tuple[str, ...]) -> None:
        self._root = root
        self._class_names = class_names
        self._metadata: dict[str, dict[str, dict[str, str]]] = {}

    def add(
        self,
        split: str,
        bucket: str,
        label: int,
        numbers: NDArray[np.int64],
        pixels: NDArray[np.uint8],
    ) -> None:
        """Write one class of one bucket: *pixels* (N, height, width, 3) of scans *numbers* (N,)."""
        class_name, folder = self._class_names[label], self._root / split
        images = f"labeled_images/{bucket}/{class_name}"
        (folder / images).mkdir(parents=True)
        entries = {}
        for number, image in zip(numbers.tolist(), pixels, strict=True):
            path = f"{images}/{number}.bmp"
            Image.fromarray(image).save(folder / path, dpi=(72, 72))
            entries[str(number)] = {
                "ID": str(number),
                "EXT": "bmp",
                "IMG_DIR": images,
                "IMG_PATH": path,
            }
        metadata = f"labeled_metadata/{bucket}/{class_name}.json"
        (folder / metadata).parent.mkdir(parents=True, exist_ok=True)
        _write_json(folder / metadata, entries)
        self._metadata.setdefault(split, {}).setdefault(bucket, {})[class_name] = metadata

    def finish(self) -> None:
        """Write the lists of classes and of what was added."""
        for split, buckets in self._metadata.items():
            names = "\n".join(self._class_names) + "\n"
            (self._root / split / "class_names.txt").write_text(names, encoding="utf-8")
            _write_json(self._root / split / "labeled_metadata.json", buckets)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
