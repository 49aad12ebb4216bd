"""A folder for each bucket, in it one for each class: ``ROOT/BUCKET/CLASS/*``.

Where ROOT has a folder ``train`` and a folder ``test``, each holds the buckets' folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    IMAGE_ENDINGS,
    images_in,
    is_folder,
    names_in,
    note_system_files,
    path_text,
    resolve_folder,
    resolve_root,
)
from clear_mlflow.data.sources._entries import TRAIN, Entry, OrderedArguments, listing_of
from clear_mlflow.data.splits import Listing

NEEDS_FOLDER = True
Arguments = OrderedArguments


def listing(root: Path, arguments: OrderedArguments, *, cache_dir: Path) -> Listing:
    """List the stream in a folder; hidden files, and files beside the buckets, are left alone."""
    real_root = resolve_root(root)
    folders = _folders(real_root, root=real_root)
    named = {folder.name for folder in folders}
    if named & {TRAIN, TEST}:
        if odd := sorted(named ^ {TRAIN, TEST}):
            what = "is missing" if odd[0] in (TRAIN, TEST) else "lies beside them"
            raise DataError(
                f"{path_text(real_root)} has a folder {sorted(named & {TRAIN, TEST})[0]}, and "
                f"{safe_repr(odd[0])} {what}; expected the folders train and test and no others, "
                "or the buckets themselves"
            )
        entries = [e for part in (TRAIN, TEST) for e in _entries(real_root / part, part, real_root)]
    else:
        entries = list(_entries(real_root, TRAIN, real_root))
    order = arguments.buckets_in_order
    listed = listing_of(entries, root=real_root, layout="folder", order=order)
    notes = note_system_files(e.path for e in entries if isinstance(e.path, Path))
    return replace(listed, warnings=(*listed.warnings, *notes))


def _entries(base: Path, split: str, root: Path) -> Iterator[Entry]:
    for bucket in _folders(base, root=root):
        for folder in _folders(bucket, root=root):
            for path in images_in(folder, root=root):
                yield Entry(path, folder.name, bucket.name, split)


def _folders(base: Path, *, root: Path) -> list[Path]:
    """The folders in one that may hold files, too, as a table or a readme; but no images."""
    resolve_folder(base, root=root)
    found = [base / name for name in names_in(base)]
    folders = [path for path in found if is_folder(path)]
    layout = f"{path_text(root)}/BUCKET/CLASS"
    for path in found:
        if path.name.lower().endswith(IMAGE_ENDINGS) and not is_folder(path):
            raise DataError(f"{path_text(path)} is in no class; expected {layout}/{path.name}")
    if not folders:
        raise DataError(f"{path_text(base)} has no folders; expected {layout}/*")
    return folders
