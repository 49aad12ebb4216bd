"""The layout in which CLEAR's authors released CLEAR-10 and CLEAR-100.

``train/`` (or ``train_image_only/``) and ``test/`` each hold ``class_names.txt``,
``labeled_metadata.json``, and the folders ``labeled_metadata`` and ``labeled_images``.

Source:
    Lin et al., The CLEAR Benchmark, arXiv:2201.06289, and the archives that its authors published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    CLASS_LIST,
    IMAGE_FOLDER,
    METADATA,
    METADATA_FOLDER,
    expect_object,
    in_stream_order,
    is_folder,
    path_text,
    read_class_names,
    read_json_object,
    resolve_root,
    stored_path,
)
from clear_mlflow.data.problems import Report, reported, stop
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import ImageSet, image_set, placed_images

EXPECTED = "the folders train (or train_image_only) and test, each with class_names.txt"

TRAIN_FOLDERS = ("train", "train_image_only")
TEST_FOLDER = "test"


def is_below(root: Path) -> bool:
    """Whether *root* has a folder that only this layout has."""
    return any(is_folder(root / folder) for folder in (*TRAIN_FOLDERS, TEST_FOLDER))


def listing(root: Path, report: Report = stop) -> Listing:
    """List CLEAR's released layout; test sets of buckets that are not trained on are left alone."""
    real_root = resolve_root(root)
    train = next((real_root / name for name in TRAIN_FOLDERS if is_folder(real_root / name)), None)
    if train is None:
        raise DataError(
            f"{path_text(real_root)} has no folder {' or '.join(TRAIN_FOLDERS)}; unpack the "
            "training archive there too"
        )
    metadata = read_json_object(train / METADATA, root=real_root)
    class_names = tuple(
        sorted({name for of in metadata.values() if isinstance(of, dict) for name in of})
    )
    with reported(report, "class-list", train / CLASS_LIST):
        class_names = read_class_names(train / CLASS_LIST, root=real_root)
    keys = in_stream_order(metadata, named_in=train / METADATA)
    return Listing(
        layout="released",
        root=real_root,
        class_names=class_names,
        images=_read_images(train, keys, metadata, class_names, root=real_root, report=report),
        released_test=lambda: _read_test(
            keys, class_names, train=train, root=real_root, report=report
        ),
    )


def _read_test(
    keys: list[str], class_names: tuple[str, ...], *, train: Path, root: Path, report: Report
) -> Mapping[str, ImageSet]:
    test = root / TEST_FOLDER
    if not is_folder(test):
        raise DataError(
            f"{path_text(test)} is missing; unpack the test archive there too, or pass split=0 to "
            "hold out 30 % of each bucket's training images"
        )
    with reported(report, "class-list", test / CLASS_LIST):
        odd = sorted(set(class_names) ^ set(read_class_names(test / CLASS_LIST, root=root)))
        if odd:
            raise DataError(
                f"{path_text(train / CLASS_LIST)} and {path_text(test / CLASS_LIST)} differ: "
                f"{safe_repr(odd[0])} is in one of them only; expected the same classes in both"
            )
    metadata = read_json_object(test / METADATA, root=root)
    in_stream_order(metadata, named_in=test / METADATA)
    for key in keys:
        if key not in metadata:
            error = DataError(
                f"{path_text(test / METADATA)} has no bucket {safe_repr(key)}, but "
                f"{path_text(train / METADATA)} has; expected a test set for every bucket"
            )
            report("metadata", test / METADATA, error)
    there = [key for key in keys if key in metadata]
    return _read_images(test, there, metadata, class_names, root=root, report=report)


def _read_images(
    base: Path,
    keys: list[str],
    metadata: Mapping[str, Any],
    class_names: tuple[str, ...],
    *,
    root: Path,
    report: Report,
) -> dict[str, ImageSet]:
    found = {}
    for key in keys:
        found[key] = image_set(())
        with reported(report, "metadata", base / METADATA):
            what = f"{path_text(base / METADATA)}, bucket {key},"
            class_files = expect_object(metadata[key], what=what)
            if unknown := sorted(set(class_files) - set(class_names)):
                error = DataError(
                    f"{path_text(base / METADATA)} has class {safe_repr(unknown[0])} in bucket "
                    f"{key}, but {path_text(base / CLASS_LIST)} does not name it; expected the "
                    "same classes in both"
                )
                report("class-list", base / CLASS_LIST, error)
            found[key] = placed_images(
                _named(base, key, class_files, class_names, root=root, report=report),
                base=base,
                key=key,
                class_names=class_names,
                others_allowed=True,
                root=root,
                report=report,
            )
    return found


def _named(
    base: Path,
    key: str,
    class_files: Mapping[str, Any],
    class_names: Collection[str],
    *,
    root: Path,
    report: Report,
) -> Iterator[tuple[Path, int, Path]]:
    """The images of one bucket: path, label, and the class file that names it."""
    seen: dict[Path, str] = {}
    for label, class_name in enumerate(class_names):
        if class_name not in class_files:
            error = DataError(
                f"{path_text(base / CLASS_LIST)} names class {safe_repr(class_name)}, but "
                f"{path_text(base / METADATA)} has no images of it in bucket {key}; expected "
                "images of every class in every bucket"
            )
            report("empty-class", base / IMAGE_FOLDER / key / class_name, error)
            continue
        file = base / METADATA
        try:
            file = stored_path(
                class_files[class_name], base=base, below=METADATA_FOLDER, named_in=file
            )
            if file in seen:
                raise DataError(
                    f"{path_text(base / METADATA)} gives classes {safe_repr(seen[file])} and "
                    f"{safe_repr(class_name)} of bucket {key} one file, {path_text(file)}; "
                    "expected a file of its own for each class"
                )
            seen[file] = class_name
            entries = read_json_object(file, root=root)
        except DataError as error:
            report("metadata", file, error)
            continue
        for image_id, entry in entries.items():
            with reported(report, "metadata", file):
                if not isinstance(entry, dict) or "IMG_PATH" not in entry:
                    raise DataError(
                        f"{path_text(file)} has image {safe_repr(image_id)} as {safe_repr(entry)}; "
                        "expected a JSON object with IMG_PATH: unpack the dataset again"
                    )
                path = stored_path(entry["IMG_PATH"], base=base, below=IMAGE_FOLDER, named_in=file)
                yield path, label, file
