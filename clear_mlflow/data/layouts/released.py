"""The layout in which CLEAR's authors released CLEAR-10 and CLEAR-100.

``train/`` (or ``train_image_only/``) and ``test/`` each contain ``class_names.txt``,
``labeled_metadata.json`` and the folders ``labeled_metadata`` and ``labeled_images``.

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
    Report,
    check_object,
    is_folder,
    join_stored_path,
    path_text,
    raise_error,
    read_class_names,
    read_json_object,
    report_errors,
    resolve_root,
    sort_bucket_keys,
)
from clear_mlflow.data.image_index import ImageIndex, build_image_set, build_listed_set
from clear_mlflow.data.stream import ImageSet

EXPECTED = "the folders train (or train_image_only) and test, each with class_names.txt"

TRAIN_FOLDERS = ("train", "train_image_only")
TEST_FOLDER = "test"


def matches(root: Path) -> bool:
    """Return True if *root* has a folder that only this layout has."""
    return any(is_folder(root / folder) for folder in (*TRAIN_FOLDERS, TEST_FOLDER))


def read_index(root: Path, report: Report = raise_error) -> ImageIndex:
    """Read CLEAR's released layout. Skips test sets of buckets without a training set."""
    real_root = resolve_root(root)
    train = next((real_root / name for name in TRAIN_FOLDERS if is_folder(real_root / name)), None)
    if train is None:
        raise DataError(
            f"{path_text(real_root)} contains no folder {' or '.join(TRAIN_FOLDERS)}; unpack the "
            "training archive there too"
        )
    metadata = read_json_object(train / METADATA, root=real_root)
    class_names = tuple(
        sorted({name for files in metadata.values() if isinstance(files, dict) for name in files})
    )
    with report_errors(report, "metadata", train / CLASS_LIST):
        class_names = read_class_names(train / CLASS_LIST, root=real_root)
    keys = sort_bucket_keys(metadata, source=train / METADATA)
    return ImageIndex(
        layout="released",
        root=real_root,
        class_names=class_names,
        images=_read_images(train, keys, metadata, class_names, root=real_root, report=report),
        read_test=lambda: _read_test(keys, class_names, train=train, root=real_root, report=report),
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
    with report_errors(report, "metadata", test / CLASS_LIST):
        test_names = read_class_names(test / CLASS_LIST, root=root)
        if unmatched := sorted(set(class_names) ^ set(test_names)):
            raise DataError(
                f"{path_text(train / CLASS_LIST)} and {path_text(test / CLASS_LIST)} differ: "
                f"{safe_repr(unmatched[0])} is in one of them only; expected the same classes in "
                "both"
            )
    metadata = read_json_object(test / METADATA, root=root)
    sort_bucket_keys(metadata, source=test / METADATA)
    for key in keys:
        if key not in metadata:
            error = DataError(
                f"{path_text(test / METADATA)} contains no bucket {safe_repr(key)}, but "
                f"{path_text(train / METADATA)} has; expected a test set for every bucket"
            )
            report("metadata", test / METADATA, error)
    keys = [key for key in keys if key in metadata]
    return _read_images(test, keys, metadata, class_names, root=root, report=report)


def _read_images(
    base: Path,
    keys: list[str],
    metadata: Mapping[str, Any],
    class_names: tuple[str, ...],
    *,
    root: Path,
    report: Report,
) -> dict[str, ImageSet]:
    sets = {}
    for key in keys:
        sets[key] = build_image_set(())
        with report_errors(report, "metadata", base / METADATA):
            source = f"{path_text(base / METADATA)}, bucket {key},"
            class_files = check_object(metadata[key], source=source)
            if unknown := sorted(set(class_files) - set(class_names)):
                error = DataError(
                    f"{path_text(base / METADATA)} has class {safe_repr(unknown[0])} in bucket "
                    f"{key}, but {path_text(base / CLASS_LIST)} does not name it; expected the "
                    "same classes in both"
                )
                report("metadata", base / CLASS_LIST, error)
            sets[key] = build_listed_set(
                _list_bucket(base, key, class_files, class_names, root=root, report=report),
                base=base,
                key=key,
                class_names=class_names,
                any_folder_names=True,
                root=root,
                report=report,
            )
    return sets


def _list_bucket(
    base: Path,
    key: str,
    class_files: Mapping[str, Any],
    class_names: Collection[str],
    *,
    root: Path,
    report: Report,
) -> Iterator[tuple[Path, int, Path]]:
    """Yield the images of one bucket: path, label, and the class file that lists it."""
    classes_by_file: dict[Path, str] = {}
    for label, class_name in enumerate(class_names):
        if class_name not in class_files:
            error = DataError(
                f"{path_text(base / CLASS_LIST)} names class {safe_repr(class_name)}, but "
                f"{path_text(base / METADATA)} contains no images of it in bucket {key}; expected "
                "images of every class in every bucket"
            )
            report("empty-class", base / IMAGE_FOLDER / key / class_name, error)
            continue
        file = base / METADATA
        try:
            file = join_stored_path(
                class_files[class_name], base=base, below=METADATA_FOLDER, list_file=file
            )
            if file in classes_by_file:
                raise DataError(
                    f"{path_text(base / METADATA)} has one file, {path_text(file)}, for classes "
                    f"{safe_repr(classes_by_file[file])} and {safe_repr(class_name)} of bucket "
                    f"{key}; expected one file for each class"
                )
            classes_by_file[file] = class_name
            entries = read_json_object(file, root=root)
        except DataError as error:
            report("metadata", file, error)
            continue
        for image_id, entry in entries.items():
            try:  # faster than report_errors for each image
                if not isinstance(entry, dict) or "IMG_PATH" not in entry:
                    raise DataError(
                        f"{path_text(file)} has image {safe_repr(image_id)} as {safe_repr(entry)}; "
                        "expected a JSON object with IMG_PATH: unpack the dataset again"
                    )
                path = join_stored_path(
                    entry["IMG_PATH"], base=base, below=IMAGE_FOLDER, list_file=file
                )
            except DataError as error:
                report("metadata", file, error)
                continue
            yield path, label, file
