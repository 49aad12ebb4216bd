"""Make click commands from functions: the signature declares the options, the docstring the help.

============================ ======================================================================
annotation                   option
============================ ======================================================================
``bool``                     no or yes; the bare option means yes
``Literal["a", "b"]``        a choice
``str``, ``int``, ``float``, a value
``Path``
``X | None``                 the word ``none`` means None
``X | Literal["auto"]``      the word ``auto`` is passed on
``Sequence[X]``, ``tuple``   values separated by commas; ``none`` means none of them
``list[X]``                  an option that can be repeated
============================ ======================================================================
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin

import click

from clear_mlflow.api._arguments import resolve_annotation
from clear_mlflow.cli.help import OTHER, Command, Option
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.learning.parameters.recipes import NONE

_Headings: TypeAlias = Mapping[str, Sequence[str]]  # heading to names of parameters


def command(
    source: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    arguments: Mapping[str, str] | None = None,
    headings: _Headings | None = None,
    omit: Collection[str] = (),
    examples: tuple[str, ...] = (),
    is_entry_point: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a command of a function.

    The function is called with the parameters of *source*, and with those of options that click's
    decorators added to it.

    Args:
        source: function whose signature and docstring declare options and help. None: the
            decorated function itself.
        name: name of the command. None: the name of the decorated function.
        arguments: parameters that are positional, with their placeholders in the help.
            ``[X]`` can be left out, and ``X...`` can be repeated.
        headings: headings of the help, each with the parameters that are listed under it.
        omit: parameters of source that do not become options.
        examples: command lines that end the help.
        is_entry_point: True if MLproject has the command. ``mlflow run`` passes only options, so
            each argument that can be left out is an option as well.
    """

    def decorate(function: Callable[..., None]) -> Command:
        declared, placeholders = source or function, arguments or {}
        parameters = inspect.signature(declared).parameters
        added: list[click.Parameter] = getattr(function, "__click_params__", [])[::-1]
        skipped = {*omit, *(parameter.name or "" for parameter in added)}
        if not is_entry_point:
            skipped |= placeholders.keys()

        def run(**values: Any) -> None:
            for parameter in placeholders:
                _merge_argument(values, parameters[parameter])
            function(**values)

        return Command(
            name or function.__name__.replace("_", "-"),
            params=[
                *(_build_argument(declared, key, text) for key, text in placeholders.items()),
                *added,
                *build_options(declared, headings=headings or {}, omit=skipped),
            ],
            callback=run,
            help=parse_docstring(declared)[0],
            examples=examples,
        )

    return decorate


def add_options(function: Callable[..., Any], **kwargs: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of a function to a command.

    Takes the arguments of :func:`build_options`.
    """

    def decorate(command_function: Any) -> Any:
        present = getattr(command_function, "__click_params__", [])
        command_function.__click_params__ = [*present, *reversed(build_options(function, **kwargs))]
        return command_function

    return decorate


def build_options(
    function: Callable[..., Any], *, headings: _Headings, omit: Collection[str] = ()
) -> list[Option]:
    """Build an option for each parameter of a function, except positional-only ones.

    Raises TypeError if a parameter has no entry in the docstring, or an annotation that cannot be
    an option.
    """
    _, entries = parse_docstring(function)
    heading_of = {name: heading for heading, names in headings.items() for name in names}
    options = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in omit or parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            continue
        if parameter.name not in entries:
            raise TypeError(f"{function.__name__} does not document its parameter {parameter.name}")
        flag = f"--{parameter.name.replace('_', '-')}"
        option = Option(
            [flag, parameter.name],
            group=heading_of.get(parameter.name, OTHER),
            help=entries[parameter.name],
            **_declare_option(function, parameter),
        )
        options.append(option)
    return options


def parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description in a docstring, and the text of each parameter in ``Args:``.

    Markup is removed, and None is written as the command line's word none.
    """
    description, *sections = re.split(r"\n\n(?=[A-Z][a-z]+:\n)", inspect.getdoc(function) or "")
    arguments = next((section for section in sections if section.startswith("Args:")), "")
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.M)
    return _strip_markup(description), {
        name: _strip_markup(entry[0].upper() + " ".join(entry[1:].split()))
        for name, entry in entries
    }


def _strip_markup(text: str) -> str:
    """Remove reStructuredText roles and double backquotes. None becomes none."""
    text = re.sub(r":\w+:`([^`]+)`", r"\1", text).replace("``", "")
    return re.sub(r"\bNone\b", NONE, text)


def _build_argument(function: Callable[..., Any], name: str, placeholder: str) -> click.Argument:
    """Return the positional argument for a parameter. See :func:`command` for *placeholder*."""
    # The option of an entry point has the parameter's own name.
    keywords: dict[str, Any] = {"metavar": placeholder, "required": placeholder[0] != "["}
    if placeholder.endswith("..."):
        return click.Argument([f"{name}_argument"], nargs=-1, **keywords)
    parameter = inspect.signature(function).parameters[name]
    keywords["type"] = _declare_option(function, parameter)["type"]
    return click.Argument([f"{name}_argument"], **keywords)


def _merge_argument(values: dict[str, Any], parameter: inspect.Parameter) -> None:
    """Merge the values of an argument and of the option of the same name into values[name].

    Raises ConfigError if both were passed, unless the argument takes several values.
    """
    name = parameter.name
    argument, option = values.pop(f"{name}_argument"), values.get(name)
    if isinstance(argument, tuple):
        names = (*argument, *(option or ()))
        # As in Python, a single name may be an experiment: an error then lists the experiments.
        is_single = parameter.annotation == "Runs" and len(names) == 1
        values[name] = names[0] if is_single else names or None
    elif argument is None:
        values.setdefault(name, parameter.default)
    elif option is None:
        values[name] = argument
    else:
        raise ConfigError(f"{name} is {argument} and {option}; pass only one of them")


def _declare_option(function: Callable[..., Any], parameter: inspect.Parameter) -> dict[str, Any]:
    """Return arguments of click.Option for a parameter, from its annotation and default."""
    # The terminal passes ids and names of runs.
    members = resolve_annotation(function, parameter.annotation, Runs=Sequence[str])
    values: dict[str, Any] = {NONE: None} if NoneType in members else {}
    values |= {v: v for t in members if get_origin(t) is Literal for v in get_args(t)}
    if bool in members:
        values |= (
            {"yes": True, "no": False} if parameter.default is True else {"no": False, "yes": True}
        )
    keywords: dict[str, Any] = {"required": True}
    if parameter.default is not parameter.empty:
        keywords = {"default": _describe_default(parameter.default)}
    types = [t for t in members if t not in (NoneType, bool) and get_origin(t) is not Literal]
    if not types:
        keywords["type"] = click.Choice(list(values))
        keywords["callback"] = lambda _context, _option, word: values.get(word, word)
        if values.keys() == {"yes", "no"}:
            keywords |= {"is_flag": False, "flag_value": "yes"}
    elif types[-1] in _PARSERS:
        parser, placeholder = _PARSERS[types[-1]]
        keywords |= {"type": _Value(parser, values), "metavar": placeholder}
    elif get_origin(types[-1]) is list:
        keywords = {"type": str, "multiple": True, "metavar": "TEXT"}
    else:
        keywords |= {"type": _Value(split_names, {NONE: (), **values}), "metavar": "NAME[,NAME...]"}
    return keywords


def _describe_default(default: Any) -> str:
    """Return a default as text of the command line: yes, no, none, or the value."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return NONE if default in (None, ()) else str(default)


class _Value(click.ParamType[Any]):
    """click type that looks a word up in *values*, and otherwise calls *parse* with it."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any], values: Mapping[str, Any]) -> None:
        self.parse, self.values = parse, values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or raise a ConfigError that states what was expected."""
        if not isinstance(value, str):
            return value
        if value in self.values:
            return self.values[value]
        try:
            return self.parse(value)
        except ValueError as error:
            name = str(param and param.name).removesuffix("_argument")
            raise ConfigError(f"{name} is {safe_repr(value)}; {error}") from None


def split_names(text: str) -> tuple[str, ...]:
    """Split a text at commas, without duplicates. Raises ValueError if there are no names.

    >>> split_names("a, b,,a")
    ('a', 'b')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError("expected names with commas between")
    return names


def _parse_whole_number(text: str) -> int:
    """Parse an integer of up to 18 digits. Raises ValueError with the expected form."""
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise ValueError("expected a whole number, for example 2")
    return int(text)


def _parse_number(text: str) -> float:
    """Parse a finite number. Raises ValueError with the expected form."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("expected a number, for example 0.5")
    return number


_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "TEXT"),
    int: (_parse_whole_number, "N"),
    float: (_parse_number, "NUMBER"),
    Path: (Path, "PATH"),
}
