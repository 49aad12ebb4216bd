"""Check the arguments of a function by its annotations, as the command line checks options."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr

_P = ParamSpec("_P")
_R = TypeVar("_R")

_DESCRIPTIONS: Mapping[Any, str] = {
    NoneType: "None",
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    Path: "a path",
    Mapping: "a dictionary",
    Sequence: "a list",
}


def resolve_annotation(function: Callable[..., Any], annotation: str, **types: Any) -> list[Any]:
    """Return the types in an annotation: int, NoneType for "int | None".

    function: whose module the names in the annotation are from. types: types by name that the
    module imports only for type checkers. Raises NameError if another such name occurs.
    """
    source = SimpleNamespace(__annotations__={"value": annotation})
    namespace = {**vars(sys.modules[function.__module__]), **types}
    return split_union(get_type_hints(source, namespace)["value"])


def split_union(annotation: Any) -> list[Any]:
    """Return the types in a union, or the only type."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return list(get_args(annotation)) if is_union else [annotation]


def validate_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that checks its arguments' types. Raises ConfigError.

    Skips annotations with a type that is imported only for type checkers, such as Runs.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call_function(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # raised again by the call, with the function's name
            arguments = {}
        for name, value in arguments.items():
            with suppress(NameError):
                types = resolve_annotation(function, signature.parameters[name].annotation)
                check_type(name, value, types)
        return function(*args, **kwargs)

    return call_function


def list_results(function: Callable[_P, Iterable[_R]]) -> Callable[_P, list[_R]]:
    """Return a function that lists what a generator, its ``__wrapped__``, yields."""

    @functools.wraps(function)
    def call_function(*args: _P.args, **kwargs: _P.kwargs) -> list[_R]:
        return list(function(*args, **kwargs))

    signature = inspect.signature(function)
    returned = str(signature.return_annotation).replace("Iterable", "list", 1)
    call_function.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return call_function


def check_type(name: str, value: object, types: Sequence[Any]) -> None:
    """Raise ConfigError if a parameter's value has none of these types."""
    if not any(_has_type(value, expected) for expected in types):
        expected = " or ".join(map(_describe_type, types))
        message = f"{name} is {safe_repr(value, 100)}; expected {expected}"
        raise ConfigError(message, parameter=name)


def _has_type(value: Any, expected: Any) -> bool:
    """Return True if a value has a type, finite if a number."""
    if get_origin(expected) is Literal:
        return isinstance(value, str) and value in get_args(expected)
    if expected in (int, float):
        number_type = Integral if expected is int else Real
        is_number = isinstance(value, number_type) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    expected = get_origin(expected) or expected
    if expected is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return isinstance(value, expected)


def _describe_type(expected: Any) -> str:
    """Return words for a type, such as "'local' or 'ray'"."""
    if get_origin(expected) is Literal:
        return " or ".join(map(repr, get_args(expected)))
    expected = get_origin(expected) or expected
    return _DESCRIPTIONS.get(expected) or f"an object of {expected.__name__}"
