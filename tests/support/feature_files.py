"""Writes feature files as CLEAR has them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from clear_mlflow.data import load_stream
from clear_mlflow.data.stream import BucketStream

KIND = "moco_b0"


def load_test_stream(root: Path, cache_dir: Path, **chosen) -> BucketStream:
    return load_stream("clear10", str(root), cache_dir=cache_dir, **chosen)


def vector(tail: str, width: int = 5) -> np.ndarray:
    """Return the features of an image, which depend on its path below labeled_images."""
    draws = np.random.default_rng(list(hashlib.sha256(tail.encode()).digest()))
    return draws.normal(size=width).astype(np.float32)


def tail(path: Path) -> str:
    parts = path.parts
    return "/".join(parts[parts.index("labeled_images") :])


def write_released_features(split: Path, *, kind: str = KIND, width: int = 5) -> None:
    """Write features next to the images of one split, in another order than the metadata."""
    index: dict[str, dict[str, str]] = {}
    metadata = json.loads((split / "labeled_metadata.json").read_text())
    for bucket, classes in metadata.items():
        index[bucket] = {}
        for name, file in classes.items():
            images = json.loads((split / file).read_text())
            by_id = {
                image_id: torch.from_numpy(vector(entry["IMG_PATH"], width))
                for image_id, entry in sorted(images.items(), reverse=True)
            }
            index[bucket][name] = f"features/{kind}/{bucket}/{name}.pth"
            path = split / index[bucket][name]
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(by_id, path)
    (split / "features" / kind / "features.json").write_text(json.dumps(index))


def write_older_features(root: Path, *, kind: str = KIND, width: int = 5) -> None:
    """Write one file for every bucket, in the order of its file list."""
    for listed in root.glob("training_folder/filelists/*/all.txt"):
        lines = [line.rsplit(" ", 1) for line in listed.read_text().splitlines()]
        features = torch.from_numpy(np.stack([vector(path, width) for path, _ in lines]))
        path = root / "training_folder" / "features" / kind / listed.parent.name / "all.pth"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save((features, [int(label) for _, label in lines]), path)
