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
    images_in,
    in_stream_order,
    is_class_name,
    is_folder,
    names_in,
    note_system_files,
    path_text,
    resolve_folder,
    resolve_root,
)
from clear_mlflow.data.problems import Report, reported, stop
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import image_set

EXPECTED = "the folder labeled_images with nothing but <bucket>/<class>/<id>.jpg"

_OF_OTHER_LAYOUTS = (CLASS_LIST, METADATA, TRAINING_FOLDER)
_ENDINGS = (".jpg", ".jpeg", ".png")


def is_below(root: Path) -> bool:
    """Whether *root* has images, and none of the lists that the other layouts have."""
    return is_folder(root / IMAGE_FOLDER) and not any(
        os.path.lexists(root / name) for name in _OF_OTHER_LAYOUTS
    )


def listing(root: Path, report: Report = stop) -> Listing:
    """List a dataset in the challenge layout; hidden files are left alone."""
    real_root = resolve_root(root)
    folder = real_root / IMAGE_FOLDER
    resolve_folder(folder, root=real_root)
    names = names_in(folder)
    if not names:
        raise DataError(f"{path_text(folder)} holds nothing; unpack the dataset again")
    keys = in_stream_order(names, named_in=folder)
    classes: dict[str, list[str]] = {}
    for key in keys:
        with reported(report, "structure", folder / key):
            resolve_folder(folder / key, root=real_root)
            classes[key] = names_in(folder / key)
    class_names = tuple(sorted({name for found in classes.values() for name in found}))
    first = classes.get(keys[0], [])
    for key, found in classes.items():
        odd = sorted(set(found) ^ set(first))
        if odd or not found:
            error = DataError(
                f"{path_text(folder / keys[0])} and {path_text(folder / key)} differ: "
                f"{safe_repr(odd[0]) if odd else 'no folder'} is in one of them only; expected one "
                "folder for each class, the same in every bucket"
            )
            report("empty-class", folder / key, error)
    for name in class_names:
        if not is_class_name(name):
            raise DataError(
                f"{path_text(folder / keys[0] / name)} is called {safe_repr(name)}; expected the "
                "name of a class"
            )
    images = {
        key: image_set(
            (class_names.index(name), path)
            for name in found
            for path in images_in(
                folder / key / name, root=real_root, endings=_ENDINGS, report=report
            )
        )
        for key, found in classes.items()
    }
    notes = note_system_files(
        path for bucket_images in images.values() for path in bucket_images.paths
    )
    return Listing("challenge", real_root, class_names, images, warnings=notes)
