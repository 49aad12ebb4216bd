"""Photos of any shape whose classes a network can learn: stripes of two colours each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image


def textured_photo(label: int, bucket: int, number: int) -> Image.Image:
    """100 to 220 pixels a side, hardly ever square: a class has an angle, a width and two colours.

    Widths drift from bucket to bucket; each photo is tinted, and has grain of its own.
    """
    own, draws = (
        np.random.default_rng([1, label]),
        np.random.default_rng([7, label, bucket, number]),
    )
    angle, period = np.pi * own.random(), 12 + 20 * own.random() + 3 * bucket
    colours = own.integers(40, 216, (2, 1, 1, 3))
    width, height = draws.integers(100, 220, 2).tolist()
    x, y = np.arange(width), np.arange(height)[:, np.newaxis]
    along = x * np.cos(angle) + y * np.sin(angle) + period * draws.random()
    share = (0.5 + 0.5 * np.sin(2 * np.pi * along / period))[..., np.newaxis]
    levels = share * colours[0] + (1 - share) * colours[1]
    levels = levels + draws.integers(-25, 26, (height, width, 1)) + draws.integers(-40, 41, 3)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def write_textured(root: Path, *, buckets: int, classes: int, train: int, test: int) -> None:
    """A dataset in CLEAR's released layout, of JPEG photos; *train* and *test* of each class."""
    names = [f"texture{label}" for label in range(classes)]
    for split, first, count in (("train", 0, train), ("test", train, test)):
        listed: dict[str, dict[str, str]] = {}
        for bucket in range(1, buckets + 1):
            listed[str(bucket)] = {}
            for label, name in enumerate(names):
                images = f"labeled_images/{bucket}/{name}"
                (root / split / images).mkdir(parents=True)
                entries = {}
                for number in range(first, first + count):
                    image_id = str(10000 * (100 * bucket + label) + number)
                    path = f"{images}/{image_id}.jpg"
                    textured_photo(label, bucket, number).save(root / split / path, quality=90)
                    entries[image_id] = {
                        "ID": image_id,
                        "EXT": "jpg",
                        "IMG_DIR": images,
                        "IMG_PATH": path,
                    }
                listed[str(bucket)][name] = f"labeled_metadata/{bucket}/{name}.json"
                file = root / split / listed[str(bucket)][name]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(entries), encoding="utf-8")
        (root / split / "class_names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        text = json.dumps(listed)
        (root / split / "labeled_metadata.json").write_text(text, encoding="utf-8")
