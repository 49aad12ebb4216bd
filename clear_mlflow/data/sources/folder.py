"""A folder for each bucket, and in it a folder for each class: ``ROOT/BUCKET/CLASS/*``.

If ROOT has the folders ``train`` and ``test``, each of them contains the buckets' folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    IMAGE_ENDINGS,
    check_folder,
    is_folder,
    list_images,
    list_names,
    path_text,
    resolve_root,
)
from clear_mlflow.data.images import (
    TRAIN,
    Entry,
    ImageIndex,
    OrderedArguments,
    build_index,
)

NEEDS_FOLDER = True
Arguments = OrderedArguments


def read_index(root: Path, arguments: OrderedArguments, *, cache_dir: Path) -> ImageIndex:
    """Read the images in BUCKET/CLASS/ of a folder, or of its folders train and test.

    Skips hidden files, and files next to the buckets. Raises DataError if another folder is next to
    train and test, or one of them is missing.
    """
    real_root = resolve_root(root)
    names = {folder.name for folder in _list_folders(real_root, root=real_root)}
    if names & {TRAIN, TEST}:
        if unmatched := sorted(names ^ {TRAIN, TEST}):
            problem = "is missing" if unmatched[0] in (TRAIN, TEST) else "is next to it"
            raise DataError(
                f"{path_text(real_root)} has a folder {sorted(names & {TRAIN, TEST})[0]}, and "
                f"{safe_repr(unmatched[0])} {problem}; expected only the folders train and test, "
                "or the buckets themselves"
            )
        entries = [
            entry
            for split in (TRAIN, TEST)
            for entry in _list_entries(real_root / split, split, real_root)
        ]
    else:
        entries = list(_list_entries(real_root, TRAIN, real_root))
    return build_index(entries, root=real_root, layout="folder", order=arguments.bucket_order)


def _list_entries(base: Path, split: str, root: Path) -> Iterator[Entry]:
    """Yield an entry of this split for each file in BUCKET/CLASS/ below *base*."""
    for bucket in _list_folders(base, root=root):
        for folder in _list_folders(bucket, root=root):
            for path in list_images(folder, root=root):
                yield Entry(path, folder.name, bucket.name, split)


def _list_folders(base: Path, *, root: Path) -> list[Path]:
    """Return the folders in *base*, without hidden ones. Other files are skipped."""
    check_folder(base, root=root)
    paths = [base / name for name in list_names(base)]
    folders = [path for path in paths if is_folder(path)]
    layout = f"{path_text(root)}/BUCKET/CLASS"
    for path in paths:
        if path.name.lower().endswith(IMAGE_ENDINGS) and not is_folder(path):
            raise DataError(f"{path_text(path)} is in no class; expected {layout}/{path.name}")
    if not folders:
        raise DataError(f"{path_text(base)} contains no folders; expected {layout}/*")
    return folders
