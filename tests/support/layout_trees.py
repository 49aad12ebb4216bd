"""Writes one small dataset in each of CLEAR's public layouts."""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from released_layout import write_image, write_json, write_metadata

from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream


@dataclass(frozen=True)
class Photo:
    """One image with its bucket, class and split.

    Its number, like a Flickr id, and its content are unique.
    """

    part: str  # "train" or "test": of the released layout; the others have training images only
    bucket: str
    class_name: str
    number: int

    @property
    def image_id(self) -> str:
        return str(100 + int(hashlib.sha256(repr(self).encode()).hexdigest()[:10], 16))

    @property
    def path(self) -> str:
        return f"labeled_images/{self.bucket}/{self.class_name}/{self.image_id}.jpg"

    def write(self, base: Path) -> None:
        write_image(base / self.path, size=(8, 6), seed=repr(self))


@dataclass(frozen=True)
class Photos:
    """A dataset, independent of any layout."""

    buckets: tuple[str, ...] = ("1", "2", "3")
    test_buckets: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ("bus", "camera")
    train: int = 5  # per class and bucket
    test: int = 2

    def of(self, part: str, bucket: str) -> list[Photo]:
        """Return photos in the order of a stream: class, then image id as text."""
        photos = [
            Photo(part, bucket, class_name, number)
            for class_name in self.classes
            for number in range(self.train if part == "train" else self.test)
        ]
        return sorted(photos, key=lambda photo: (photo.class_name, photo.image_id))

    @property
    def keys_of_tests(self) -> tuple[str, ...]:
        return self.buckets if self.test_buckets is None else self.test_buckets

    @property
    def in_order(self) -> list[str]:
        return sorted(self.buckets, key=int)


def write_released(
    root: Path, photos: Photos, *, final_newline: bool = True, train_folder: str = "train"
) -> Path:
    for folder, part, keys in (
        (root / train_folder, "train", photos.buckets),
        (root / "test", "test", photos.keys_of_tests),
    ):
        image_ids = {}
        for key in keys:
            own = photos.of(part, key)
            for photo in own:
                photo.write(folder)
            image_ids[key] = {
                name: [p.image_id for p in reversed(own) if p.class_name == name]
                for name in photos.classes
            }
        write_metadata(folder, image_ids, photos.classes, final_newline=final_newline)
    return root


def write_unpacked(root: Path, photos: Photos, *, final_newline: bool = True) -> Path:
    """Write the released layout as Renate unpacks it."""
    options = {"final_newline": final_newline, "train_folder": "train_image_only"}
    write_released(root / "clear10", photos, **options)
    return root


def write_older(
    root: Path,
    photos: Photos,
    *,
    final_newline: bool = True,
    order: Callable[[list[Photo]], Iterable[Photo]] = list,
    seeds: Iterable[int] = range(5),
) -> Path:
    """Write the older layout. *order*: order of the list of all images, which is split."""
    training = root / "training_folder"
    write_json(training / "bucket_indices.json", list(photos.buckets))
    _write_lines(root / "class_names.txt", photos.classes, final_newline)
    for key in photos.buckets:
        listed = list(order(photos.of("train", key)))
        for photo in listed:
            photo.write(root)
        lines = [f"{p.path} {photos.classes.index(p.class_name)}" for p in listed]
        _write_lines(training / "filelists" / key / "all.txt", lines, final_newline)
        for seed in seeds:
            folder = training / "testset_ratio_0.3" / f"split_{seed}" / key
            # As the authors' prepare_training_folder.py does it.
            random.seed(seed)
            indices = list(range(len(lines)))
            random.shuffle(indices)
            num_train = len(lines) - int(len(lines) * 0.3)
            for name, part in (("train", indices[:num_train]), ("test", indices[num_train:])):
                _write_lines(folder / f"{name}.txt", [lines[i] for i in part], final_newline)
                write_json(folder / f"{name}_indices.json", part)
    return root


def write_challenge(root: Path, photos: Photos, *, final_newline: bool = True) -> Path:
    """Write the challenge layout, which has no lists."""
    for key in photos.buckets:
        for photo in photos.of("train", key):
            photo.write(root)
    return root


LAYOUTS: dict[str, Callable[..., Path]] = {
    "released": write_released,
    "unpacked": write_unpacked,
    "older": write_older,
    "challenge": write_challenge,
}


def find_contents(root: Path, photos: Photos) -> dict[str, Photo]:
    """Return the photo of each file's SHA-256, by the image id at the end of its name."""
    photos_by_id = {
        photo.image_id: photo
        for part, keys in (("train", photos.buckets), ("test", photos.keys_of_tests))
        for key in keys
        for photo in photos.of(part, key)
    }
    return {
        hashlib.sha256(path.read_bytes()).hexdigest(): photos_by_id[path.stem.rpartition("-")[2]]
        for path in root.rglob("*.jpg")
    }


def as_photos(
    stream: BucketStream, truth: dict[str, Photo]
) -> dict[str, dict[str, list[tuple[str, Photo]]]]:
    """Return the content of a stream by its files: bucket, part, [(class, photo)]."""
    return {
        bucket.key: {
            part: [
                (
                    stream.dataset.class_names[label],
                    truth[hashlib.sha256(path.read_bytes()).hexdigest()],
                )
                for path, label in zip(images.paths, images.labels.tolist(), strict=True)
            ]
            for part, images in (("train", bucket.train), ("test", bucket.test))
        }
        for bucket in list_buckets(stream)
    }


class BucketSets(NamedTuple):
    """The images of one bucket."""

    key: str
    train: ImageTable
    test: ImageTable


def list_buckets(stream: BucketStream) -> list[BucketSets]:
    return [*map(BucketSets, stream.dataset.buckets, stream.train, stream.test)]


def _write_lines(file: Path, lines: Iterable[str], final_newline: bool) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n" * final_newline, encoding="utf-8")
