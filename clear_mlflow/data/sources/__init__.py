"""Streams of a user's own: a module for each kind, called as ``dataset`` names it.

A module has ``Arguments``, a frozen dataclass of what ``dataset_args`` may say (see
:class:`~clear_mlflow.data.sources._entries.StreamArguments`), ``NEEDS_FOLDER``, and
``listing(root, arguments, cache_dir=...)``, which gives its images. A new module is found here.
So is a function that gives a listing, as ``package.module:function``.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import make_dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clear_mlflow.data.embedded import EMBEDDED

CLEAR = ("clear10", "clear100")  # read in whichever of CLEAR's layouts lies in the folder
SOURCES = tuple(
    sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
)
VECTORS = "vectors"  # a kind of stream, and the name of the features that it is made of
OF_VECTORS = (VECTORS, "weather")
DATASETS = (*EMBEDDED, *CLEAR, *SOURCES)

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_own_function(dataset: str) -> bool:
    """Whether a dataset is named as ``package.module:function``."""
    return _REFERENCE.fullmatch(dataset) is not None


def is_own_stream(dataset: str) -> bool:
    """Whether a dataset is read by a module of this package, or by a function."""
    return dataset in SOURCES or is_own_function(dataset)


def needs_folder(dataset: str) -> bool:
    """Whether a dataset cannot be read without ``data_root``."""
    return dataset in SOURCES and bool(source_of(dataset).NEEDS_FOLDER)


def source_of(dataset: str) -> Any:
    """What reads a dataset: a module of this package, or what looks like one."""
    if is_own_function(dataset):
        from clear_mlflow.data.sources._function import FunctionSource

        return FunctionSource(dataset)
    if dataset in SOURCES:
        return import_module(f"{__name__}.{dataset}")
    # CLEAR and the embedded datasets: there is one way to read them.
    return SimpleNamespace(Arguments=make_dataclass("Arguments", []))


def stream_name(dataset: str, data_root: str, arguments: Mapping[str, object]) -> str:
    """What a stream is called in records: what its arguments say, else as its folder or file is.

    >>> stream_name("folder", "/data/yearbook", {}), stream_name("lab.photos:by_year", "auto", {})
    ('yearbook', 'by_year')
    >>> stream_name("table", "/data/photos.csv", {})
    'photos'
    >>> stream_name("clear10", "/data/somewhere", {})
    'clear10'
    """
    if not is_own_stream(dataset):
        return dataset
    given = str(arguments.get("name", "auto"))
    if given != "auto":
        return given
    if is_own_function(dataset):
        return dataset.partition(":")[2]
    if data_root == "auto":
        return dataset
    path = Path(data_root).absolute()
    is_file = path.suffix.lower() in (".csv", ".parquet", ".npz", ".safetensors")
    return (path.stem if is_file else path.name) or dataset
