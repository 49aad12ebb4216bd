"""A stream that a function of the user's own gives, named as ``package.module:function``."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_type_hints

from clear_mlflow.core.errors import ClearError, ConfigError, DataError
from clear_mlflow.core.importing import import_attribute
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import path_text, reason, resolve_root
from clear_mlflow.data.sources._entries import StreamArguments
from clear_mlflow.data.splits import Listing

_KINDS = (bool, int, float, str)


class FunctionSource:
    """Looks as a module of this package does; the function gives a ``Listing`` of a folder."""

    NEEDS_FOLDER = False

    def __init__(self, reference: str) -> None:
        self._reference = reference
        try:
            self._function = import_attribute(reference)
        except Exception as error:  # whatever a user's import may raise
            raise ConfigError(
                f"dataset {reference} cannot be loaded ({type(error).__name__}: {reason(error)}); "
                "pass package.module:function, importable from here"
            ) from error
        self.Arguments = self._arguments()

    def listing(self, root: Path | None, arguments: Any, *, cache_dir: Path) -> Listing:
        """What the function gives."""
        own = {
            name: value
            for name, value in dataclasses.asdict(arguments).items()
            if name in self._own
        }
        try:
            found = self._function(None if root is None else resolve_root(root), **own)
        except ClearError:
            raise
        except Exception as error:
            raise DataError(
                f"dataset {self._reference} raised {type(error).__name__}: {reason(error)}"
            ) from error
        if not isinstance(found, Listing):
            raise DataError(
                f"dataset {self._reference} gave {safe_repr(found)}; expected a Listing, as "
                "clear_mlflow.data.listing_of makes one"
            )
        return dataclasses.replace(found, source=f"{self._reference}, {path_text(found.root)}")

    def _arguments(self) -> type:
        """The dataclass that ``dataset_args`` is read as: the function's keywords."""
        try:
            taken = list(inspect.signature(self._function).parameters.values())
            hints = get_type_hints(self._function)
        except (TypeError, ValueError, NameError) as error:
            raise self._refusal(f"cannot be called ({reason(error)})") from error
        if not taken or taken[0].kind is inspect.Parameter.KEYWORD_ONLY:
            raise self._refusal("takes no folder")
        fields = []
        for parameter in taken[1:]:
            kind = hints.get(parameter.name)
            if kind not in _KINDS or not isinstance(parameter.default, _KINDS):
                raise self._refusal(f"takes {parameter}")
            fields.append((parameter.name, kind, parameter.default))
        self._own = frozenset(name for name, *_ in fields)
        return dataclasses.make_dataclass(
            "Arguments",
            [(name, kind, dataclasses.field(default=default)) for name, kind, default in fields],
            bases=(StreamArguments,),
            frozen=True,
        )

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(
            f"dataset {self._reference} {what}; expected a function of the folder and, by keyword, "
            "of annotated ints, floats, bools and strs with defaults: def photos(root: Path | "
            "None, *, first: int = 1930) -> Listing"
        )
