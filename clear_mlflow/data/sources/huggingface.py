"""A dataset of Hugging Face's package ``datasets``: saved to a folder, or on a hub.

Its images are in Arrow files; each is written to the cache folder, by its content, so that all
later steps are the same for every stream.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError, require_package
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, MAX_TABLE_ROWS
from clear_mlflow.data import files
from clear_mlflow.data.files import format_names, path_text, reason
from clear_mlflow.data.images import NONE, TRAIN, ImageIndex
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    build_column_index,
    convert_column,
    select_columns,
)

if TYPE_CHECKING:
    from pandas import Categorical

NEEDS_FOLDER = False
HAS_TIMES = True
CACHE_FOLDER = "huggingface-v1"

_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Arguments of a Hugging Face dataset.

    Args:
        image: column of the images.
        vector: column of feature vectors, instead of images; none: there are images.
        standardise, may_repeat: options of vectors; see ``vectors``.
        hub: name of the dataset on the hub, such as user/name; none: it is in the stream's folder.
        revision: branch, tag or commit on the hub.
        subset: configuration on the hub; none: the default.
    """

    image: str = "image"
    vector: str = NONE
    standardise: str = "first"
    may_repeat: bool = False
    hub: str = NONE
    revision: str = "main"
    subset: str = NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _HUB_NAME.fullmatch(self.hub):
            raise ConfigError(
                f"dataset_args has hub={safe_repr(self.hub)}; expected a name: user/name"
            )


def read_index(
    root: Path | None, arguments: Arguments, *, cache_dir: Path, borders: str = NONE
) -> ImageIndex:
    """Read a dataset, and write its images to the cache folder.

    root: folder that ``save_to_disk`` wrote, or None to load the dataset ``hub``, which may
    download it. Raises ConfigError unless exactly one of both is set, and DataError if it cannot be
    read.
    """
    if (root is None) == (arguments.hub == NONE):
        raise ConfigError(
            f"dataset huggingface has data_root {'auto' if root is None else path_text(root)} and "
            f"hub={arguments.hub}; expected one of them: the folder that save_to_disk wrote, or "
            "dataset_args=hub=NAME"
        )
    source_name = arguments.hub if root is None else path_text(root)
    dataset = _load_dataset(root, arguments, source_name)
    folder = (cache_dir / CACHE_FOLDER).resolve()
    has_vectors = arguments.vector != NONE
    warnings: tuple[str, ...]
    content: list[Path] | NDArray[Any]
    try:
        rows, warnings = _join_splits(dataset, arguments, source_name)
        if not 0 < rows.num_rows <= MAX_TABLE_ROWS:
            raise DataError(
                f"{source_name} has {rows.num_rows} rows; expected 1 to {MAX_TABLE_ROWS}"
            )
        columns = _read_columns(rows, arguments, borders, source_name)
        if has_vectors:
            column = rows.select_columns([arguments.vector]).with_format("numpy", dtype=None)
            content = np.array(column[:][arguments.vector])
        else:
            content = _write_images(rows, arguments.image, folder, source_name)
    except (DataError, ConfigError):
        raise
    except Exception as error:  # a damaged dataset makes the package raise anything
        raise DataError(f"{source_name} cannot be read: {reason(error)[:300]}") from error
    fields = {"standardise": arguments.standardise, "may_repeat": arguments.may_repeat}
    index = build_column_index(
        content,
        columns,
        arguments,
        borders,
        root=Path() if has_vectors else folder,
        layout="huggingface",
        source_name=source_name,
        first_row=0,
        source=source_name if root is not None else f"{arguments.hub}@{arguments.revision}",
        **(fields if has_vectors else {}),
    )
    return dataclasses.replace(index, warnings=(*warnings, *index.warnings))


def _load_dataset(root: Path | None, arguments: Arguments, source_name: str) -> Any:
    with require_package("datasets", "dataset huggingface"):
        import datasets
    if root is not None:
        _check_files(files.resolve_root(root))
    subset = None if arguments.subset == NONE else arguments.subset
    try:
        if root is not None:
            return datasets.load_from_disk(str(root))
        return datasets.load_dataset(arguments.hub, subset, revision=arguments.revision)
    except Exception as error:  # no hub, no such dataset, damaged files: anything can be raised
        raise DataError(
            f"{source_name} cannot be loaded: {type(error).__name__}: {reason(error)[:300]}; "
            "expected what datasets' save_to_disk wrote, or the name of a dataset on a hub"
        ) from error


def _join_splits(
    dataset: Any, arguments: Arguments, source_name: str
) -> tuple[Any, tuple[str, ...]]:
    """Return the rows and splits of train and test, and warnings."""
    import datasets

    if not isinstance(dataset, datasets.DatasetDict):
        return dataset, ()
    if TRAIN not in dataset:
        raise DataError(
            f"{source_name} has the splits {format_names(list(dataset))}; expected train, or train "
            "and test"
        )
    warnings = tuple(
        f"left out: split {safe_repr(name)}, {format_count(dataset[name].num_rows, 'image')}"
        for name in sorted(set(dataset) - {TRAIN, TEST})
    )
    if TEST not in dataset:
        return dataset[TRAIN], warnings
    parts = []
    for split in (TRAIN, TEST):
        part = dataset[split]
        if arguments.split in part.column_names:
            part = part.remove_columns(arguments.split)
        parts.append(part.add_column(arguments.split, [split] * part.num_rows))
    return datasets.concatenate_datasets(parts), warnings


def _check_files(root: Path) -> None:
    """Raise DataError if a saved dataset names files elsewhere."""
    folders = [root]
    if (root / _SPLITS).is_file():
        splits = files.read_json_object(root / _SPLITS, root=root).get("splits")
        if not isinstance(splits, list) or not all(_is_file_name(name) for name in splits):
            raise DataError(
                f"{path_text(root / _SPLITS)} has splits {safe_repr(splits)}; expected names"
            )
        folders = [root / name for name in splits]
    for folder in folders:
        if not (folder / _STATE).is_file():
            raise DataError(
                f"{path_text(folder)} contains no {_STATE}; expected a folder that datasets' "
                "save_to_disk wrote"
            )
        stored = files.read_json_object(folder / _STATE, root=root).get("_data_files")
        for file in stored if isinstance(stored, list) else [stored]:
            name = file.get("filename") if isinstance(file, dict) else None
            if not _is_file_name(name):
                raise DataError(
                    f"{path_text(folder / _STATE)} names the file {safe_repr(name)}; expected a "
                    "name in its own folder"
                )
            files.stat_file(folder / str(name), root=root)


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)


def _read_columns(
    rows: Any, arguments: Arguments, borders: str, source_name: str
) -> dict[str, Categorical]:
    import datasets
    import pyarrow as pa

    features = rows.features
    role = "image" if arguments.vector == NONE else "vector"
    content = getattr(arguments, role)
    roles = select_columns(arguments, borders, list(features), source_name, **{role: content})
    if role == "image" and not isinstance(features[content], datasets.Image):
        raise DataError(
            f"{source_name} has {safe_repr(features[content])} as column {safe_repr(content)}; "
            f"expected images, its columns are {format_names(list(features))}: pass "
            "dataset_args=image=COLUMN"
        )
    del roles[role]
    table = rows.select_columns(list(roles.values())).with_format("arrow")[:]
    columns = {}
    for role, name in roles.items():
        column = table[name]
        if isinstance(features[name], datasets.ClassLabel):
            names = pa.array([*features[name].names, None])  # -1 marks a row without a label
            column = pa.chunked_array([names.take(pa.array(column.to_numpy() % len(names)))])
        columns[role] = convert_column(column, role, source_name, 0)
    return columns


def _write_images(rows: Any, column: str, folder: Path, source_name: str) -> list[Path]:
    """Write missing images by content, and return each row's path."""
    import datasets

    undecoded = datasets.Image(decode=False)
    images = rows.select_columns([column]).cast_column(column, undecoded).with_format(None)
    copies: Counter[tuple[str, str]] = Counter()
    paths = []
    for row, values in enumerate(images):
        image = values[column]
        content = image.get("bytes") if isinstance(image, dict) else None
        if not isinstance(content, bytes) or not 0 < len(content) <= MAX_IMAGE_BYTES:
            raise DataError(
                f"{source_name} row {row} contains no image; expected the image itself, of 1 to "
                f"{MAX_IMAGE_BYTES} bytes, and not a path to one: save_to_disk stores images"
            )
        name = os.path.basename(str(image.get("path") or ""))  # noqa: PTH119 (of unknown origin)
        if not files.is_class_name(name) or name.startswith(".") or len(name.encode()) > 200:
            name = f"{row:08d}"
        digest = hashlib.sha256(content).hexdigest()
        file = folder / digest[:2] / f"{digest}-{copies[digest, name]}" / name
        copies[digest, name] += 1
        if not (file.is_file() and file.stat().st_size == len(content)):
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
            Path(temporary).replace(file)
        paths.append(file)
    return paths
