"""Check a dataset: what is there, and everything that is wrong with it.

The loader stops at the first problem, because a training must not start then. This module
continues: it walks the image folders, which all of CLEAR's layouts have, compares them with the
class lists and the metadata, decodes every image, and compares contents. A problem that only the
loader knows is reported in the loader's words.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.checking.look import (
    FoundImage,
    Look,
    OnImages,
    Problem,
    doubles,
    look_at,
)
from clear_mlflow.data.files import (
    ALL_IMAGES,
    CLASS_LIST,
    FILE_LISTS,
    IMAGE_FOLDER,
    METADATA,
    METADATA_FOLDER,
    TRAINING_FOLDER,
    is_folder,
    is_image_name,
    list_entry,
    names_in,
    path_text,
    read_class_names,
    read_json_object,
    read_lines,
    reason,
    resolve_folder,
    stored_path,
)
from clear_mlflow.data.layouts import find_layout, read_any

SCHEMA = 1

_NAME = "dataset"  # nobody sees it
_NAMES = ("clear10", "clear100")  # what archives unpack to
_SPLITS = (("train", "train"), ("train_image_only", "train"), ("test", "test"))
_BUCKET = re.compile("[0-9]{1,9}")

# What is wrong, in the order in which it is listed.
KINDS = {
    "structure": "the loader cannot read the dataset",
    "class-list": "a class list is not as it should be",
    "metadata": "a metadata file is not as it should be",
    "missing": "metadata names an image that is not there",
    "unreadable": "an image cannot be decoded",
    "empty-class": "a class has no images in a bucket",
    "unknown-class": "a folder is of no class in the class list",
    "train-and-test": "an image is in a training and in a test set",
    "across-buckets": "an image is in more than one bucket",
    "across-classes": "an image is in more than one class",
    "within-bucket": "an image is twice in one bucket and class",
    "unlisted": "an image that no metadata names",
    "not-an-image": "a file among the images that is no image",
}


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


def findings_of(*, seen: Sequence[Look], problems: Sequence[Problem], **rest: Any) -> Findings:
    """Findings with what images look like, and their problems in order."""
    good = [look for look in seen if not look.wrong]
    order = list(KINDS)
    return Findings(
        widths=_least_median_greatest([look.size[0] for look in good]),
        heights=_least_median_greatest([look.size[1] for look in good]),
        modes=dict(sorted(Counter(look.mode for look in good).items())),
        problems=tuple(
            sorted(problems, key=lambda problem: (order.index(problem.kind), problem.path))
        ),
        **rest,
    )


def _least_median_greatest(values: list[int]) -> tuple[int, float, int] | None:
    return (min(values), statistics.median(values), max(values)) if values else None


def _spread(values: tuple[int, float, int] | None) -> dict[str, float] | None:
    return None if values is None else dict(zip(("min", "median", "max"), values, strict=True))


def _tell_nobody(what: str, done: int, total: int | None) -> None:
    return None


def check(root: Path, *, on_progress: OnImages = _tell_nobody) -> Findings:
    """Look over the dataset at *root*; every problem is in the findings, once."""
    layout, folder = find_layout(root, names=_NAMES)
    folder = folder.resolve()
    trees = [tree for name, split in _trees(folder) if (tree := _survey(folder, name, split))]
    if not trees:
        raise DataError(
            f"{path_text(root)} has no folder {IMAGE_FOLDER}; pass the folder that the dataset "
            "was unpacked to"
        )
    problems = [problem for tree in trees for problem in tree.problems]
    problems += _between_class_lists(trees)
    images = [image for tree in trees for image in tree.images]
    seen = look_at(images, folder, on_progress)
    problems += [
        Problem("unreadable", image.path, look.wrong)
        for image, look in zip(images, seen, strict=True)
        if look.wrong
    ]
    digest = None
    parts = {image.path: image.split for image in images}
    try:
        stream = read_any(folder, name=_NAME)
        digest = stream.digest
        # Where folders do not show the test set, the loader names its images.
        for bucket in stream.buckets:
            parts |= dict.fromkeys(bucket.train.paths, "train")
            parts |= dict.fromkeys(bucket.test.paths, "test")
        problems += doubles(images, seen, parts)
    except DataError as error:
        problems += doubles(images, seen, parts)
        problems += _if_new(str(error), problems, folder)
    return findings_of(
        root=folder,
        layout=layout,
        digest=digest,
        buckets=tuple(sorted({key for tree in trees for key in tree.buckets}, key=_by_number)),
        class_names=tuple(sorted({name for tree in trees for name in tree.class_names})),
        counts=tuple(count for tree in trees for count in tree.counts()),
        seen=seen,
        problems=problems,
    )


def _by_number(key: str) -> tuple[int, str]:
    return (int(key) if _BUCKET.fullmatch(key) else -1, key)


def _if_new(message: str, problems: Sequence[Problem], root: Path) -> list[Problem]:
    """The loader's words, unless they are about what is found already."""
    for problem in problems:
        if problem.kind in ("unlisted", "not-an-image", "within-bucket"):
            continue  # never what the loader stops at
        if any(path_text(path) in message for path in (problem.path, *problem.others)):
            return []
        bucket, class_name = problem.path.parts[-2:]
        if (
            problem.kind == "empty-class"
            and shown(class_name) in message
            and f"bucket {bucket}" in message
        ):
            return []
    return [Problem("structure", root, message)]


# -- the dataset's trees ------------------------------------------------------------------------


def _trees(root: Path) -> Iterator[tuple[Path, str]]:
    # A training folder is read under one name only, as the loader does it.
    found: set[str] = set()
    for name, split in _SPLITS:
        if split not in found and is_folder(root / name):
            found.add(split)
            yield root / name, split
    if not found:
        yield root, "all"


# -- one tree of images -------------------------------------------------------------------------


@dataclass
class _Tree:
    root: Path
    base: Path
    split: str
    class_names: tuple[str, ...] = ()
    has_class_list: bool = False
    buckets: list[str] = field(default_factory=list)
    images: list[FoundImage] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: str, path: Path, detail: str) -> None:
        # Messages of the readers begin with the path, which is shown beside the detail.
        self.problems.append(Problem(kind, path, detail.removeprefix(f"{path_text(path)} ")))

    def counts(self) -> list[Count]:
        number = Counter((image.bucket, image.class_name) for image in self.images)
        return [
            Count(self.split, bucket, name, number[bucket, name])
            for bucket in self.buckets
            for name in self.class_names
        ]


def _survey(root: Path, base: Path, split: str) -> _Tree | None:
    """Everything about one tree that needs no image to be opened."""
    folder = base / IMAGE_FOLDER
    if not is_folder(folder):
        return None
    tree = _Tree(root, base, split)
    on_disk = _on_disk(folder, tree)
    _read_class_list(tree, root, on_disk)
    listed = _listed(tree, root)
    tree.buckets = sorted(
        {bucket for bucket, _ in on_disk} | set(listed[1] if listed else ()), key=_by_number
    )
    for (bucket, name), files in sorted(on_disk.items()):
        if name not in tree.class_names:
            tree.add(
                "unknown-class",
                folder / bucket / name,
                f"holds {len(files)} files; expected a class of {CLASS_LIST}",
            )
            continue
        for path in files:
            if listed is not None and path in listed[0]:
                tree.images.append(FoundImage(split, bucket, name, path))
            elif not is_image_name(path.name):
                tree.add("not-an-image", path, "its name has no image's ending")
            elif listed is not None:
                tree.add("unlisted", path, "no metadata names it, so it is not used")
            else:
                tree.images.append(FoundImage(split, bucket, name, path))
    if listed is not None:
        there = {path for files in on_disk.values() for path in files}
        for path in sorted(listed[0].keys() - there):
            named_in = path_text(listed[0][path].relative_to(root))
            tree.add("missing", path, f"{named_in} names it")
    # Where images are missing, or what names them is broken, that is the problem.
    explained = {problem.path for problem in tree.problems if problem.kind == "metadata"}
    explained |= {problem.path.parent for problem in tree.problems if problem.kind == "missing"}
    for count in tree.counts():
        class_folder = folder / count.bucket / count.class_name
        about = base / METADATA_FOLDER / count.bucket / f"{count.class_name}.json"
        if not count.images and explained.isdisjoint((class_folder, about, base / METADATA)):
            tree.add(
                "empty-class",
                class_folder,
                f"class {shown(count.class_name)} has no images in bucket {count.bucket}",
            )
    return tree


def _on_disk(folder: Path, tree: _Tree) -> dict[tuple[str, str], list[Path]]:
    """Files by bucket and class; what lies anywhere else is a problem."""
    found: dict[tuple[str, str], list[Path]] = {}
    for bucket in _entries(folder, tree):
        if not is_folder(bucket):
            tree.add("not-an-image", bucket, "a file where the buckets' folders are")
            continue
        for name in _entries(bucket, tree):
            if not is_folder(name):
                tree.add("not-an-image", name, "a file where the classes' folders are")
                continue
            files = _entries(name, tree)
            for path in files:
                if is_folder(path):
                    tree.add("not-an-image", path, "a folder among the images")
            found[bucket.name, name.name] = [path for path in files if not is_folder(path)]
    return found


def _entries(folder: Path, tree: _Tree) -> list[Path]:
    """What lies in a folder, without what is hidden: the loader leaves that alone, too."""
    try:
        resolve_folder(folder, root=tree.root)
        return [folder / name for name in names_in(folder)]
    except DataError as error:
        tree.add("structure", folder, f"cannot be read: {reason(error)}")
        return []


def _read_class_list(tree: _Tree, root: Path, on_disk: dict[tuple[str, str], list[Path]]) -> None:
    path = tree.base / CLASS_LIST
    tree.class_names = tuple(sorted({name for _, name in on_disk}))
    if tree.split == "all" and not os.path.lexists(path):
        return  # the challenge layout has none
    try:
        tree.class_names = read_class_names(path, root=root)
        tree.has_class_list = True
    except DataError as error:
        tree.add("class-list", path, str(error))


def _between_class_lists(trees: Sequence[_Tree]) -> list[Problem]:
    lists = [tree for tree in trees if tree.has_class_list]
    if len({tree.class_names for tree in lists}) < 2:
        return []
    odd = sorted(set(lists[0].class_names) ^ set(lists[1].class_names))
    return [
        Problem(
            "class-list",
            lists[1].base / CLASS_LIST,
            f"differs from {path_text(lists[0].base / CLASS_LIST)} in "
            f"{', '.join(shown(name) for name in odd[:8])}",
        )
    ]


# -- what the metadata names --------------------------------------------------------------------

# The images that are named, each with the file that does so; and the buckets that are named.
_Listed = tuple[dict[Path, Path], list[str]]


def _listed(tree: _Tree, root: Path) -> _Listed | None:
    """What the tree's metadata names; ``None`` where it has none that can be read at all."""
    if tree.split == "all":
        lists = tree.base / TRAINING_FOLDER / FILE_LISTS
        return _from_file_lists(tree, lists) if is_folder(lists) else None
    try:
        metadata = read_json_object(tree.base / METADATA, root=root)
    except DataError as error:
        tree.add("metadata", tree.base / METADATA, str(error))
        return None
    named: dict[Path, Path] = {}
    for bucket, classes in metadata.items():
        if not isinstance(classes, dict):
            tree.add(
                "metadata", tree.base / METADATA, f"bucket {shown(bucket)} holds {shown(classes)}"
            )
            continue
        for stored in classes.values():
            _from_class_file(tree, root, stored, named)
    return named, list(metadata)


def _from_class_file(tree: _Tree, root: Path, stored: object, named: dict[Path, Path]) -> None:
    path = tree.base / METADATA
    try:
        path = stored_path(
            stored, base=tree.base, below=METADATA_FOLDER, named_in=tree.base / METADATA
        )
        entries = read_json_object(path, root=root)
    except DataError as error:
        tree.add("metadata", path, str(error))
        return
    for image_id, entry in entries.items():
        if not isinstance(entry, dict) or "IMG_PATH" not in entry:
            tree.add("metadata", path, f"image {shown(image_id)} has no IMG_PATH")
            continue
        try:
            image = stored_path(
                entry["IMG_PATH"], base=tree.base, below=IMAGE_FOLDER, named_in=path
            )
        except DataError as error:
            tree.add("metadata", path, str(error))
            continue
        if image in named:
            tree.add("metadata", path, f"{path_text(image)} is named twice")
        named.setdefault(image, path)


def _from_file_lists(tree: _Tree, folder: Path) -> _Listed:
    named: dict[Path, Path] = {}
    buckets = []
    for bucket in _entries(folder, tree):
        path = bucket / ALL_IMAGES
        if not is_folder(bucket):
            continue
        buckets.append(bucket.name)
        try:
            lines = read_lines(path, root=tree.root)
        except DataError as error:
            tree.add("metadata", path, str(error))
            continue
        for number, line in enumerate(lines, start=1):
            try:
                image, _ = list_entry(
                    line,
                    number,
                    base=tree.base,
                    num_classes=len(tree.class_names),
                    named_in=path,
                )
            except DataError as error:
                tree.add("metadata", path, str(error))
                continue
            named.setdefault(image, path)
    return named, buckets
