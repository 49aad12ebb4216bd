"""The layout of the CLEAR challenge: images, and no lists of them.

``labeled_images/<bucket>/<class>/<id>.jpg``; the sorted names of the class folders are the classes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from clear_mlflow.data import files
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import Entry, ImageIndex, build_index

EXPECTED = "the folder labeled_images with nothing but <bucket>/<class>/<id>.jpg"


def matches(root: Path) -> bool:
    """Return True if *root* has images, but no layout's lists."""
    return files.is_folder(root / files.IMAGE_FOLDER) and not any(
        os.path.lexists(root / name)
        for name in (files.CLASS_LIST, files.METADATA, files.TRAINING_FOLDER)
    )


def read_index(root: Path) -> ImageIndex:
    """Read a dataset in the challenge layout, without hidden files.

    Raises DataError at the first problem.
    """
    real_root = files.resolve_root(root)
    folder = real_root / files.IMAGE_FOLDER
    files.check_folder(folder, root=real_root)
    entries = []
    for key in files.list_names(folder):
        files.check_folder(folder / key, root=real_root)
        for name in files.list_names(folder / key):
            images = files.list_images(folder / key / name, root=real_root)
            entries += [Entry(path, name, key) for path in images]
    index = build_index(entries, root=real_root, layout="challenge", source_name=path_text(folder))
    return replace(index, needs_all_classes=True)
