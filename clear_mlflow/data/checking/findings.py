"""Check a dataset: what is there, and everything that is wrong with it.

A loader stops at the first problem, because a training must not start then. Here its parser reports
every problem and continues; then every image is decoded, contents are compared, and the image
folders of CLEAR's layouts are walked for what no metadata names.
"""

from __future__ import annotations

import dataclasses
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.data import own_listing
from clear_mlflow.data.checking.content import stream_of
from clear_mlflow.data.checking.look import FoundImage, OnImages, doubles, look_at
from clear_mlflow.data.files import (
    CLASS_LIST,
    IMAGE_FOLDER,
    is_folder,
    is_image_name,
    names_in,
    path_text,
    resolve_folder,
)
from clear_mlflow.data.layouts import find_layout, list_layout
from clear_mlflow.data.layouts.released import TEST_FOLDER, TRAIN_FOLDERS
from clear_mlflow.data.problems import KINDS, Problem, reported
from clear_mlflow.data.sources import stream_name
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import ImageSet

SCHEMA = 1

_NAMES = ("clear10", "clear100")  # what archives unpack to
_BUCKET = re.compile("[0-9]{1,9}")
_HARMLESS = ("unlisted", "not-an-image", "unknown-class", "within-bucket")  # to the loader


@dataclass(frozen=True)
class Count:
    """Images of one class in one bucket, as they lie on disk."""

    split: str  # train or test; all where the layout has no such folders
    bucket: str
    class_name: str
    images: int


@dataclass(frozen=True)
class Findings:
    """What is there, and what is wrong."""

    root: Path
    layout: str
    digest: str | None  # the stream's; None where the loader cannot read it
    buckets: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: tuple[Count, ...]
    widths: tuple[int, float, int] | None  # least, median, greatest, in pixels; None without images
    heights: tuple[int, float, int] | None
    modes: dict[str, int]
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs; docs/data-commands.md has the schema."""
        return {
            "schema": SCHEMA,
            "root": str(self.root),
            "layout": self.layout,
            "loads": self.digest is not None,
            "digest": self.digest,
            "buckets": list(self.buckets),
            "classes": list(self.class_names),
            "counts": [
                {"split": c.split, "bucket": c.bucket, "class": c.class_name, "images": c.images}
                for c in self.counts
            ],
            "images": sum(c.images for c in self.counts),
            "width": _spread(self.widths),
            "height": _spread(self.heights),
            "modes": self.modes,
            "problems": [
                {
                    "kind": p.kind,
                    "path": str(p.path),
                    "detail": p.detail,
                    "others": [str(path) for path in p.others],
                }
                for p in self.problems
            ],
        }


def _spread(values: tuple[int, float, int] | None) -> dict[str, float] | None:
    return None if values is None else dict(zip(("min", "median", "max"), values, strict=True))


class _Survey:
    """What is found of a dataset: its images, and every problem once."""

    def __init__(self, root: Path, layout: str, listing: Listing | None = None) -> None:
        self.root = root
        self.layout = layout
        self.listing = listing
        self.images: list[FoundImage] = []
        self.problems: list[Problem] = []
        # (split, bucket) in order, and the names of all classes.
        self.buckets: dict[tuple[str, str], None] = {}
        self.class_names: tuple[str, ...] = ()

    def report(self, kind: str, path: Path, error: DataError) -> None:
        """Messages begin with the path, which is shown beside the detail."""
        self.add(kind, path, str(error).removeprefix(f"{path_text(path)} "))

    def add(self, kind: str, path: Path, detail: str) -> None:
        """A problem."""
        self.problems.append(Problem(kind, path, detail))

    def take(self, split: str, images: Mapping[str, ImageSet], class_names: Sequence[str]) -> None:
        """The images that the parser listed for a split."""
        self.class_names = tuple(class_names)
        for key, of_bucket in images.items():
            self.buckets[split, key] = None
            for path, label in zip(of_bucket.paths, of_bucket.labels.tolist(), strict=True):
                self.images.append(FoundImage(split, key, class_names[label], path))

    def findings(self, name: str, on_progress: OnImages) -> Findings:
        """Decode the images, compare them, and see whether the loader takes the dataset."""
        seen = look_at(self.images, self.root, on_progress)
        gone = {image.path for image in self.images if not os.path.lexists(image.path)}
        for image, look in zip(self.images, seen, strict=True):
            if look.wrong:
                kind = "missing" if image.path in gone else "unreadable"
                self.add(kind, image.path, look.wrong)
        digest = None
        parts = {image.path: image.split for image in self.images}
        refusal = None
        if self.listing is not None and all(
            p.kind in (*_HARMLESS, "unreadable") for p in self.problems
        ):
            try:
                stream = stream_of(self.listing, name=name)
            except DataError as error:
                refusal = error
            else:
                digest = stream.digest
                # Where folders do not show the test set, the loader names its images.
                for bucket in stream.buckets:
                    parts |= dict.fromkeys(bucket.train.paths, "train")
                    parts |= dict.fromkeys(bucket.test.paths, TEST)
        self.problems += doubles(self.images, seen, parts)
        if refusal is not None and all(p.kind in _HARMLESS for p in self.problems):
            self.report("structure", self.root, refusal)
        number = Counter(
            (i.split, i.bucket, i.class_name) for i in self.images if i.path not in gone
        )
        good = [look for look in seen if not look.wrong]
        order = list(KINDS)
        return Findings(
            root=self.root,
            layout=self.layout,
            digest=digest,
            buckets=tuple(dict.fromkeys(key for _, key in self.buckets)),
            class_names=self.class_names,
            counts=tuple(
                Count(split, key, name, number[split, key, name])
                for split, key in self.buckets
                for name in self.class_names
            ),
            widths=_least_median_greatest([look.size[0] for look in good]),
            heights=_least_median_greatest([look.size[1] for look in good]),
            modes=dict(sorted(Counter(look.mode for look in good).items())),
            problems=tuple(
                sorted(self.problems, key=lambda problem: (order.index(problem.kind), problem.path))
            ),
        )


def _least_median_greatest(values: list[int]) -> tuple[int, float, int] | None:
    return (min(values), statistics.median(values), max(values)) if values else None


def check(root: Path, *, on_progress: OnImages = lambda what, done, total: None) -> Findings:
    """Look over the dataset of CLEAR at *root*; every problem is in the findings, once."""
    layout, folder = find_layout(root, names=_NAMES)
    survey = _Survey(folder.resolve(), layout)
    bases = _bases(survey.root)
    if not any(is_folder(base / IMAGE_FOLDER) for base in bases.values()):
        raise DataError(
            f"{path_text(root)} has no folder {IMAGE_FOLDER}; pass the folder that the dataset "
            "was unpacked to"
        )
    listed: set[str] = set()
    with reported(survey.report, "structure", survey.root):
        listing = list_layout(layout, survey.root, survey.report)
        listed.add(next(iter(bases)))
        survey.take(next(iter(bases)), listing.images, listing.class_names)
        if listing.released_test is not None:
            tests = listing.released_test()
            listed.add(TEST)
            survey.take(TEST, tests, listing.class_names)
            listing = dataclasses.replace(listing, released_test=lambda: tests)
        survey.listing = listing
    for split, base in bases.items():
        _walk(survey, split, base / IMAGE_FOLDER, is_listed=split in listed)
    return survey.findings("dataset", on_progress)


def check_own(
    dataset: str,
    data_root: str,
    arguments: Mapping[str, Any],
    *,
    cache_dir: Path,
    on_progress: OnImages,
) -> Findings:
    """Look over a stream of one's own; every problem is in the findings, once.

    What its folder, table or function says is read as a training reads it: where that cannot be
    read, there are no images to look at.
    """
    listing = own_listing(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
    survey = _Survey(listing.root, listing.layout, listing)
    tests = listing.released_test() if listing.released_test is not None else {}
    survey.take("train" if tests else "all", listing.images, listing.class_names)
    survey.take(TEST, tests, listing.class_names)
    there = {(image.split, image.bucket, image.class_name) for image in survey.images}
    for split, key in survey.buckets:
        for name in listing.class_names:
            if (split, key, name) not in there:
                detail = f"has no images of class {name!r} in bucket {key!r} ({split})"
                survey.add("empty-class", listing.root, detail)
    return survey.findings(stream_name(dataset, data_root, arguments), on_progress)


def _bases(root: Path) -> dict[str, Path]:
    """The folders that hold images' folders, and what for; as the loader reads them."""
    train = next((root / name for name in TRAIN_FOLDERS if is_folder(root / name)), None)
    if train is None and not is_folder(root / TEST_FOLDER):
        return {"all": root}
    found = {} if train is None else {"train": train}
    return {**found, TEST: root / TEST_FOLDER} if is_folder(root / TEST_FOLDER) else found


def _walk(survey: _Survey, split: str, folder: Path, *, is_listed: bool) -> None:
    """Look for what no metadata names; where it cannot be read, take what there is."""
    known = {image.path for image in survey.images} | {p.path for p in survey.problems}
    on_disk = sorted(_files(survey, folder))
    if not is_listed:
        names = {name for _, name, _ in on_disk}
        survey.class_names = tuple(sorted({*survey.class_names, *names}))
        keys = {key for key, _, _ in on_disk}
        survey.buckets |= {(split, key): None for key in sorted(keys, key=_by_number)}
    for (key, name), number in Counter((key, name) for key, name, _ in on_disk).items():
        if name not in survey.class_names:
            detail = f"holds {number} files; expected a class of {CLASS_LIST}"
            survey.add("unknown-class", folder / key / name, detail)
    for key, name, path in on_disk:
        if path in known or name not in survey.class_names:
            continue
        if not is_image_name(path.name):
            survey.add("not-an-image", path, "its name has no image's ending")
        elif is_listed:
            survey.add("unlisted", path, "no metadata names it, so it is not used")
        else:
            survey.images.append(FoundImage(split, key, name, path))


def _by_number(key: str) -> tuple[int, str]:
    return (int(key) if _BUCKET.fullmatch(key) else -1, key)


def _files(survey: _Survey, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Files with their bucket and class; what lies anywhere else is a problem."""
    for bucket in _folders(survey, folder, "a file where the buckets' folders are"):
        for of_class in _folders(survey, bucket, "a file where the classes' folders are"):
            for path in _entries(survey, of_class):
                if is_folder(path):
                    survey.add("not-an-image", path, "a folder among the images")
                else:
                    yield bucket.name, of_class.name, path


def _folders(survey: _Survey, folder: Path, why: str) -> Iterator[Path]:
    for path in _entries(survey, folder):
        if is_folder(path):
            yield path
        else:
            survey.add("not-an-image", path, why)


def _entries(survey: _Survey, folder: Path) -> list[Path]:
    """What lies in a folder, without what is hidden: the loader leaves that alone, too."""
    if not any(problem.path == folder for problem in survey.problems):
        with reported(survey.report, "structure", folder):
            resolve_folder(folder, root=survey.root)
            return [folder / name for name in names_in(folder)]
    return []
