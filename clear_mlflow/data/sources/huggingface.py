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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, MAX_TABLE_ROWS
from clear_mlflow.data.files import (
    is_class_name,
    path_text,
    read_json_object,
    reason,
    regular_file,
    resolve_root,
)
from clear_mlflow.data.sources._arrow import check_type, text_column
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    listing_of_columns,
    names_of,
    wanted_columns,
)
from clear_mlflow.data.sources._entries import NONE, TRAIN
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    import pyarrow as pa

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
        hub: the dataset's name on the hub, as user/name; none: it lies in the stream's folder.
        revision: its branch, tag or commit there.
        subset: its configuration there, where it has several; none: its default.
    """

    image: str = "image"
    hub: str = NONE
    revision: str = "main"
    subset: str = NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _HUB_NAME.fullmatch(self.hub):
            raise ConfigError(f"dataset_args has hub={shown(self.hub)}; expected a name: user/name")


def listing(root: Path | None, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the images of a dataset; those that are not in the cache folder are written there.

    Raises:
        ConfigError: the package ``datasets`` is not installed, or neither or both of a folder and
            a name on the hub are given.
        DataError: the dataset is missing, damaged, or not as its arguments say; or see
            :func:`~clear_mlflow.data.sources._columns.listing_of_columns`.
    """
    if (root is None) == (arguments.hub == NONE):
        raise ConfigError(
            f"dataset huggingface has data_root {'auto' if root is None else path_text(root)} and "
            f"hub={arguments.hub}; expected one of them: the folder that save_to_disk wrote, or "
            "dataset_args=hub=NAME"
        )
    named_in = arguments.hub if root is None else path_text(root)
    parts, warnings = _parts(root, arguments, named_in)
    rows = sum(part.num_rows for part in parts.values())
    if not 0 < rows <= MAX_TABLE_ROWS:
        raise DataError(f"{named_in} has {rows} rows; expected 1 to {MAX_TABLE_ROWS}")
    try:
        table, roles = _table(parts, arguments, named_in)
        columns = {
            name: text_column(table[name], role, named_in, 0) for name, role in roles.items()
        }
        folder = cache_dir / CACHE_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        store = _Store(folder.resolve())
        paths = [
            store.path(image, f"{named_in} row {row}", row)
            for row, image in enumerate(_images(parts, arguments, named_in))
        ]
    except (DataError, ConfigError):
        raise
    except Exception as error:  # what a damaged dataset makes the package raise has no end
        raise DataError(f"{named_in} cannot be read: {reason(error)[:300]}") from error
    found = listing_of_columns(
        paths,
        columns,
        arguments,
        root=folder.resolve(),
        layout="huggingface",
        named_in=named_in,
        first_row=0,
    )
    source = named_in if root is not None else f"{arguments.hub}@{arguments.revision}"
    return dataclasses.replace(found, source=source, warnings=(*warnings, *found.warnings))


def _parts(
    root: Path | None, arguments: Arguments, named_in: str
) -> tuple[dict[str, Any], list[str]]:
    """The dataset's rows by split, or all of them as ``train``; and what is left out."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "dataset huggingface needs the package datasets; pip install "
            "'clear_mlflow[huggingface]'"
        ) from error
    if root is not None:
        _refuse_outside(resolve_root(root))
    try:
        found = (
            datasets.load_from_disk(str(root))
            if root is not None
            else datasets.load_dataset(
                arguments.hub,
                None if arguments.subset == NONE else arguments.subset,
                revision=arguments.revision,
            )
        )
    except Exception as error:  # no hub, no such dataset, damaged files: there is no closed set
        raise DataError(
            f"{named_in} cannot be loaded: {type(error).__name__}: {reason(error)[:300]}; expected "
            "what datasets' save_to_disk wrote, or the name of a dataset on a hub"
        ) from error
    if not isinstance(found, datasets.DatasetDict):
        return {TRAIN: found}, []
    parts = {split: found[split] for split in (TRAIN, TEST) if split in found}
    if TRAIN not in parts:
        raise DataError(
            f"{named_in} has the splits {names_of(list(found))}; expected train, or train and test"
        )
    left = sorted(set(found) - set(parts))
    return parts, [f"left out: split {shown(name)}, {found[name].num_rows} images" for name in left]


def _refuse_outside(root: Path) -> None:
    """Make sure that all files which a saved dataset names lie in its own folder."""
    folders = [root]
    if (root / _SPLITS).is_file():
        named = read_json_object(root / _SPLITS, root=root).get("splits")
        if not isinstance(named, list) or not all(_is_plain(name) for name in named):
            raise DataError(
                f"{path_text(root / _SPLITS)} has splits {shown(named)}; expected names"
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
                    f"{path_text(folder / _STATE)} names the file {shown(name)}; expected a name "
                    "in its own folder"
                )
            regular_file(folder / str(name), root=root)


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)


def _table(
    parts: dict[str, Any], arguments: Arguments, named_in: str
) -> tuple[pa.Table, dict[str, str]]:
    """The columns but the images', and what each is, of all splits one after the other."""
    import datasets
    import pyarrow as pa

    features = parts[TRAIN].features
    if not isinstance(features.get(arguments.image), datasets.Image):
        raise DataError(
            f"{named_in} has {shown(features.get(arguments.image))} as column "
            f"{shown(arguments.image)}; expected images, its columns are "
            f"{names_of(list(features))}: pass dataset_args=image=COLUMN"
        )
    wanted = wanted_columns(arguments, list(features), named_in)[: 2 if len(parts) > 1 else 3]
    when = "bucket" if arguments.buckets == NONE else "time"
    roles = dict(zip(wanted, ("label", when, "split"), strict=False))
    tables = []
    for split, part in parts.items():
        table = part.select_columns(wanted).with_format("arrow")[:]
        kind = part.features[arguments.label]
        if isinstance(kind, datasets.ClassLabel):
            names = pa.array([*kind.names, None])  # -1 says that a row has no label
            numbers = table[arguments.label].to_numpy()
            table = table.set_column(
                table.column_names.index(arguments.label),
                arguments.label,
                names.take(pa.array(numbers % len(names))),
            )
        if len(parts) > 1:
            table = table.append_column(arguments.split, pa.array([split] * len(table)))
        tables.append(table)
    if len(parts) > 1:
        roles[arguments.split] = "split"
    table = pa.concat_tables(tables)
    for name, role in roles.items():
        check_type(table.schema.field(name).type, name, role, named_in)
    return table, roles


def _images(parts: dict[str, Any], arguments: Arguments, named_in: str) -> Iterator[Any]:
    import datasets

    for part in parts.values():
        undecoded = part.select_columns([arguments.image]).cast_column(
            arguments.image, datasets.Image(decode=False)
        )
        for row in undecoded.with_format(None):
            yield row[arguments.image]


class _Store:
    """Images as files: a folder for each content, in it the file by the name that it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        file = self._folder / digest[:2] / f"{digest}-{copy}" / name
        if not (file.is_file() and file.stat().st_size == len(content)):
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
            with os.fdopen(handle, "wb") as writing:
                writing.write(content)
            Path(temporary).replace(file)
        return file
