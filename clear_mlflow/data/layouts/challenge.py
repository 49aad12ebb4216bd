"""The layout of the CLEAR challenge: images, and no lists of them.

``labeled_images/<bucket>/<class>/<id>.jpg``; the sorted names of the class folders are the classes.
"""

from __future__ import annotations

import os
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    CLASS_LIST,
    IMAGE_FOLDER,
    METADATA,
    TRAINING_FOLDER,
    Report,
    check_folder,
    describe_system_files,
    is_class_name,
    is_folder,
    list_images,
    list_names,
    path_text,
    raise_error,
    report_errors,
    resolve_root,
    sort_bucket_keys,
)
from clear_mlflow.data.image_index import ImageIndex, build_image_set

EXPECTED = "the folder labeled_images with nothing but <bucket>/<class>/<id>.jpg"

_ENDINGS = (".jpg", ".jpeg", ".png")


def matches(root: Path) -> bool:
    """Return True if *root* has images, and none of the lists that the other layouts have."""
    return is_folder(root / IMAGE_FOLDER) and not any(
        os.path.lexists(root / name) for name in (CLASS_LIST, METADATA, TRAINING_FOLDER)
    )


def read_index(root: Path, report: Report = raise_error) -> ImageIndex:
    """Read a dataset in the challenge layout. Hidden files are skipped."""
    real_root = resolve_root(root)
    folder = real_root / IMAGE_FOLDER
    check_folder(folder, root=real_root)
    bucket_names = list_names(folder)
    if not bucket_names:
        raise DataError(f"{path_text(folder)} is empty; unpack the dataset again")
    keys = sort_bucket_keys(bucket_names, source=folder)
    classes: dict[str, list[str]] = {}
    for key in keys:
        with report_errors(report, "structure", folder / key):
            check_folder(folder / key, root=real_root)
            classes[key] = list_names(folder / key)
    class_names = tuple(sorted({name for names in classes.values() for name in names}))
    first = classes.get(keys[0], [])
    for key, names in classes.items():
        unmatched = sorted(set(names) ^ set(first))
        if unmatched or not names:
            error = DataError(
                f"{path_text(folder / keys[0])} and {path_text(folder / key)} differ: "
                f"{safe_repr(unmatched[0]) if unmatched else 'no folder'} is in one of them only; "
                "expected one folder for each class, the same in every bucket"
            )
            report("empty-class", folder / key, error)
    for name in class_names:
        if not is_class_name(name):
            raise DataError(
                f"{path_text(folder / keys[0] / name)} is called {safe_repr(name)}; expected the "
                "name of a class"
            )
    images = {
        key: build_image_set(
            (class_names.index(name), path)
            for name in names
            for path in list_images(
                folder / key / name, root=real_root, endings=_ENDINGS, report=report
            )
        )
        for key, names in classes.items()
    }
    notes = describe_system_files(
        path for bucket_images in images.values() for path in bucket_images.paths
    )
    return ImageIndex("challenge", real_root, class_names, images, warnings=notes)
