"""A folder for each bucket, and in it a folder for each class: ``ROOT/BUCKET/CLASS/*``.

If ROOT has the folders ``train`` and ``test``, each of them contains the buckets' folders.
"""

from __future__ import annotations

from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data import files
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import (
    TRAIN,
    Entry,
    ImageIndex,
    OrderedArguments,
    build_index,
)

NEEDS_FOLDER = True
HAS_TIMES = False
Arguments = OrderedArguments


def read_index(root: Path, arguments: OrderedArguments, *, cache_dir: Path) -> ImageIndex:
    """Read the images in BUCKET/CLASS/, or in folders train and test.

    Skips hidden files, and files next to the buckets. Raises DataError if another folder is next to
    train and test, or one of them is missing.
    """
    real_root = files.resolve_root(root)
    names = {folder.name for folder in _list_folders(real_root, root=real_root)}
    bases = {TRAIN: real_root}
    if names & {TRAIN, TEST}:
        if unmatched := sorted(names ^ {TRAIN, TEST}):
            problem = "is missing" if unmatched[0] in (TRAIN, TEST) else "is next to it"
            raise DataError(
                f"{path_text(real_root)} has a folder {sorted(names & {TRAIN, TEST})[0]}, and "
                f"{safe_repr(unmatched[0])} {problem}; expected only the folders train and test, "
                "or the buckets themselves"
            )
        bases = {split: real_root / split for split in (TRAIN, TEST)}
    entries = (
        Entry(path, folder.name, bucket.name, split)
        for split, base in bases.items()
        for bucket in _list_folders(base, root=real_root)
        for folder in _list_folders(bucket, root=real_root)
        for path in files.list_images(folder, root=real_root)
    )
    return build_index(entries, root=real_root, layout="folder", order=arguments.bucket_order)


def _list_folders(base: Path, *, root: Path) -> list[Path]:
    """List the visible folders in *base*, or raise DataError."""
    files.check_folder(base, root=root)
    paths = [base / name for name in files.list_names(base)]
    folders = [path for path in paths if files.is_folder(path)]
    layout = f"{path_text(root)}/BUCKET/CLASS"
    for path in paths:
        if path.name.lower().endswith(files.IMAGE_ENDINGS) and not files.is_folder(path):
            raise DataError(f"{path_text(path)} is in no class; expected {layout}/{path.name}")
    if not folders:
        raise DataError(f"{path_text(base)} contains no folders; expected {layout}/*")
    return folders
