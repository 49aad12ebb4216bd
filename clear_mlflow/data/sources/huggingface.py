"""A dataset of Hugging Face's package ``datasets``: saved to a folder, or on a hub by its name.

Its images lie in Arrow files; each is written to the cache folder, by its content, so that all that
follows is as of every stream.
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

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, MAX_TABLE_ROWS
from clear_mlflow.data.files import (
    is_class_name,
    names_of,
    path_text,
    read_json_object,
    reason,
    regular_file,
    resolve_root,
)
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    listing_of_columns,
    text_column,
    wanted_columns,
)
from clear_mlflow.data.sources._entries import NONE, TRAIN
from clear_mlflow.data.sources.vectors import warn_collapsed
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    from pandas import Categorical

NEEDS_FOLDER = False
CACHE_FOLDER = "huggingface-v1"

_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Where the dataset is, which column holds images, and what every set of columns has.

    Args:
        image: column of the images.
        vector: column of feature vectors, in the place of images; none: there are images.
        standardise, may_repeat: as of ``vectors``.
        hub: the dataset's name on the hub, as user/name; none: it lies in the stream's folder.
        revision: its branch, tag or commit there.
        subset: its configuration there, where it has several; none: its default.
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


def listing(root: Path | None, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the images of a dataset; those that are not in the cache folder are written there."""
    if (root is None) == (arguments.hub == NONE):
        raise ConfigError(
            f"dataset huggingface has data_root {'auto' if root is None else path_text(root)} and "
            f"hub={arguments.hub}; expected one of them: the folder that save_to_disk wrote, or "
            "dataset_args=hub=NAME"
        )
    named_in = arguments.hub if root is None else path_text(root)
    found = _loaded(root, arguments, named_in)
    import datasets

    store = _Store((cache_dir / CACHE_FOLDER).resolve())
    try:
        rows, warnings = _one_dataset(found, arguments, named_in)
        if not 0 < rows.num_rows <= MAX_TABLE_ROWS:
            raise DataError(f"{named_in} has {rows.num_rows} rows; expected 1 to {MAX_TABLE_ROWS}")
        columns = _columns(rows, arguments, named_in)
        paths: list[Path] | NDArray[np.float32] = []
        if arguments.vector == NONE:
            name, undecoded = arguments.image, datasets.Image(decode=False)
            images = rows.select_columns([name]).cast_column(name, undecoded).with_format(None)
            paths = [
                store.path(image[name], f"{named_in} row {row}", row)
                for row, image in enumerate(images)
            ]
        else:
            column = rows.select_columns([arguments.vector]).with_format("numpy")
            numbers = np.array(column[:][arguments.vector])
            paths = numbers.astype(np.float32)
            warnings += warn_collapsed(paths, lambda j: numbers[:, j])
    except (DataError, ConfigError):
        raise
    except Exception as error:  # what a damaged dataset makes the package raise has no end
        raise DataError(f"{named_in} cannot be read: {reason(error)[:300]}") from error
    listed = listing_of_columns(
        paths,
        columns,
        arguments,
        root=store.folder if arguments.vector == NONE else Path(),
        layout="huggingface",
        named_in=named_in,
        first_row=0,
    )
    source = named_in if root is not None else f"{arguments.hub}@{arguments.revision}"
    told = (*warnings, *listed.warnings)
    how = NONE if arguments.vector == NONE else arguments.standardise
    may_repeat = arguments.may_repeat and arguments.vector != NONE
    return dataclasses.replace(
        listed, source=source, warnings=told, standardise=how, may_repeat=may_repeat
    )


def _loaded(root: Path | None, arguments: Arguments, named_in: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "dataset huggingface needs the package datasets; pip install "
            "'clear_mlflow[huggingface]'"
        ) from error
    if root is not None:
        _refuse_outside(resolve_root(root))
    subset = None if arguments.subset == NONE else arguments.subset
    try:
        if root is not None:
            return datasets.load_from_disk(str(root))
        return datasets.load_dataset(arguments.hub, subset, revision=arguments.revision)
    except Exception as error:  # no hub, no such dataset, damaged files: there is no closed set
        raise DataError(
            f"{named_in} cannot be loaded: {type(error).__name__}: {reason(error)[:300]}; expected "
            "what datasets' save_to_disk wrote, or the name of a dataset on a hub"
        ) from error


def _one_dataset(found: Any, arguments: Arguments, named_in: str) -> tuple[Any, list[str]]:
    """The rows of train and test one after the other, with a column for it; what is left out."""
    import datasets

    if not isinstance(found, datasets.DatasetDict):
        return found, []
    if TRAIN not in found:
        raise DataError(
            f"{named_in} has the splits {names_of(list(found))}; expected train, or train and test"
        )
    left = sorted(set(found) - {TRAIN, TEST})
    told = [f"left out: split {safe_repr(name)}, {found[name].num_rows} images" for name in left]
    if TEST not in found:
        return found[TRAIN], told
    parts = []
    for split in (TRAIN, TEST):
        part = found[split]
        if arguments.split in part.column_names:
            part = part.remove_columns(arguments.split)
        parts.append(part.add_column(arguments.split, [split] * part.num_rows))
    return datasets.concatenate_datasets(parts), told


def _refuse_outside(root: Path) -> None:
    """Make sure that all files which a saved dataset names lie in its own folder."""
    folders = [root]
    if (root / _SPLITS).is_file():
        named = read_json_object(root / _SPLITS, root=root).get("splits")
        if not isinstance(named, list) or not all(_is_plain(name) for name in named):
            raise DataError(
                f"{path_text(root / _SPLITS)} has splits {safe_repr(named)}; expected names"
            )
        folders = [root / name for name in named]
    for folder in folders:
        if not (folder / _STATE).is_file():
            raise DataError(
                f"{path_text(folder)} has no {_STATE}; expected a folder that datasets' "
                "save_to_disk wrote"
            )
        files = read_json_object(folder / _STATE, root=root).get("_data_files")
        for file in files if isinstance(files, list) else [files]:
            name = file.get("filename") if isinstance(file, dict) else None
            if not _is_plain(name):
                raise DataError(
                    f"{path_text(folder / _STATE)} names the file {safe_repr(name)}; expected a "
                    "name in its own folder"
                )
            regular_file(folder / str(name), root=root)


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)


def _columns(rows: Any, arguments: Arguments, named_in: str) -> dict[str, Categorical]:
    """The columns but the images', as texts."""
    import datasets
    import pyarrow as pa

    features = rows.features
    role = "image" if arguments.vector == NONE else "vector"
    content = getattr(arguments, role)
    wanted = wanted_columns(arguments, list(features), named_in, **{role: content})
    if role == "image" and not isinstance(features[content], datasets.Image):
        raise DataError(
            f"{named_in} has {safe_repr(features[content])} as column {safe_repr(content)}; "
            f"expected images, its columns are {names_of(list(features))}: pass "
            "dataset_args=image=COLUMN"
        )
    del wanted[content]
    table = rows.select_columns(list(wanted)).with_format("arrow")[:]
    found = {}
    for name, role in wanted.items():
        column = table[name]
        if isinstance(features[name], datasets.ClassLabel):
            names = pa.array([*features[name].names, None])  # -1 says that a row has no label
            column = pa.chunked_array([names.take(pa.array(column.to_numpy() % len(names)))])
        found[name] = text_column(column, role, named_in, 0)
    return found


class _Store:
    """Images as files: a folder for each content, in it the file by the name that it had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copies: Counter[tuple[str, str]] = Counter()

    def path(self, image: Any, place: str, row: int) -> Path:
        """The file of an image, written where it is not there."""
        content = image.get("bytes") if isinstance(image, dict) else None
        if not isinstance(content, bytes) or not 0 < len(content) <= MAX_IMAGE_BYTES:
            raise DataError(
                f"{place} holds no image; expected the image itself, of 1 to {MAX_IMAGE_BYTES} "
                "bytes, and not a path to one: save_to_disk keeps images"
            )
        name = os.path.basename(str(image.get("path") or ""))  # noqa: PTH119 (a text of others)
        if not is_class_name(name) or name.startswith(".") or len(name.encode()) > 200:
            name = f"{row:08d}"
        digest = hashlib.sha256(content).hexdigest()
        copy = self._copies[digest, name]
        self._copies[digest, name] += 1
        file = self.folder / digest[:2] / f"{digest}-{copy}" / name
        if not (file.is_file() and file.stat().st_size == len(content)):
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
            with os.fdopen(handle, "wb") as writing:
                writing.write(content)
            Path(temporary).replace(file)
        return file
