"""Streams of a user's own: one module for each source, named like the ``dataset``.

A module has ``Arguments``, a frozen dataclass of its ``dataset_args`` (see
:class:`~clear_mlflow.data.images.StreamArguments`), ``NEEDS_FOLDER``, ``HAS_TIMES``, and
``read_index(root, arguments, cache_dir=...)``, with ``borders=...`` if each image has a time. A
new module needs no registration. A function that returns an index is a source, too:
``package.module:function``.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

from clear_mlflow.core.errors import ClearError, ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.version import import_custom
from clear_mlflow.data.embedded import EMBEDDED
from clear_mlflow.data.files import path_text, reason, resolve_root
from clear_mlflow.data.images import ImageIndex, StreamArguments

CLEAR = ("clear10", "clear100")  # read in the layout that the folder has
SOURCES = tuple(
    sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
)
VECTORS = "vectors"  # a source, and the name of the features of its streams
VECTOR_DATASETS = (VECTORS, "weather")
DATASETS = (*EMBEDDED, *CLEAR, *SOURCES)

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PARAMETER_TYPES = (bool, int, float, str)


def is_custom_function(name: str) -> bool:
    """Return True if a dataset or model is named like ``package.module:function``."""
    return _REFERENCE.fullmatch(name) is not None


def is_custom_stream(dataset: str) -> bool:
    """Return True if a module or function of a stream reads it."""
    return dataset in SOURCES or is_custom_function(dataset)


def needs_folder(dataset: str) -> bool:
    """Return True if a dataset cannot be read without ``data_root``."""
    return dataset in SOURCES and bool(load_source(dataset).NEEDS_FOLDER)


def load_source(dataset: str) -> Any:
    """Return the module that reads a dataset, or an equal object.

    Imports a user's function, and raises ConfigError if that fails. For CLEAR and the embedded
    datasets, the object has only ``Arguments``, without fields.
    """
    if is_custom_function(dataset):
        return FunctionSource(dataset)
    if dataset in SOURCES:
        return import_module(f"{__name__}.{dataset}")
    # CLEAR and the embedded datasets are without arguments.
    return SimpleNamespace(Arguments=dataclasses.make_dataclass("Arguments", []))


def stream_name(dataset: str, data_root: str, arguments: Mapping[str, object]) -> str:
    """Return a stream's name in records: argument, folder or file.

    >>> stream_name("folder", "/data/yearbook", {}), stream_name("lab.photos:by_year", "auto", {})
    ('yearbook', 'by_year')
    >>> stream_name("table", "/data/photos.csv", {})
    'photos'
    >>> stream_name("clear10", "/data/somewhere", {})
    'clear10'
    """
    if not is_custom_stream(dataset):
        return dataset
    name = str(arguments.get("name", "auto"))
    if name != "auto":
        return name
    if is_custom_function(dataset):
        return dataset.partition(":")[2]
    if data_root == "auto":
        return dataset
    path = Path(data_root).absolute()
    is_file = path.suffix.lower() in (".csv", ".parquet", ".npz", ".safetensors")
    return (path.stem if is_file else path.name) or dataset


class FunctionSource:
    """A source of a user's function, with a module's attributes."""

    NEEDS_FOLDER = False
    HAS_TIMES = False

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._function = import_custom("dataset", reference, "function")
        self._fields = self._read_parameters()
        # dataset_args are the arguments of every stream, and the function's parameters.
        self.Arguments = dataclasses.make_dataclass(
            "Arguments", self._fields, bases=(StreamArguments,), frozen=True
        )

    def read_index(self, root: Path | None, arguments: Any, *, cache_dir: Path) -> ImageIndex:
        """Call the function with the folder and its parameters among *arguments*.

        Raises DataError for its exceptions, except for a ClearError, and if it returns no
        ImageIndex.
        """
        parameters = {name: getattr(arguments, name) for name, *_ in self._fields}
        try:
            index = self._function(None if root is None else resolve_root(root), **parameters)
        except ClearError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"dataset {self._reference} raised {type(error).__name__}: {reason(error)}"
            ) from error
        if not isinstance(index, ImageIndex):
            raise DataError(
                f"dataset {self._reference} returned {safe_repr(index)}; expected an ImageIndex, "
                "which clear_mlflow.data.build_index returns"
            )
        return dataclasses.replace(index, source=f"{self._reference}, {path_text(index.root)}")

    def _read_parameters(self) -> list[tuple[str, type, Any]]:
        """Return the function's parameters after the folder as fields of a dataclass."""
        try:
            parameters = list(inspect.signature(self._function).parameters.values())
            hints = get_type_hints(self._function)
        except (TypeError, ValueError, NameError) as error:
            raise self._build_error(f"cannot be called ({reason(error)})") from error
        if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
            raise self._build_error("takes no folder")
        reserved = {field.name for field in dataclasses.fields(StreamArguments)}
        for parameter in parameters[1:]:
            if parameter.name in reserved:
                raise self._build_error(f"takes {parameter.name}, an argument of every dataset")
            if hints.get(parameter.name) not in _PARAMETER_TYPES or not isinstance(
                parameter.default, _PARAMETER_TYPES
            ):
                raise self._build_error(f"takes {parameter}")
        return [
            (p.name, hints[p.name], dataclasses.field(default=p.default)) for p in parameters[1:]
        ]

    def _build_error(self, problem: str) -> ConfigError:
        return ConfigError(
            f"dataset {self._reference} {problem}; expected a function of the folder and, by "
            "keyword, of annotated ints, floats, bools and strs with defaults: def photos(root: "
            "Path | None, *, first: int = 1930) -> ImageIndex"
        )
