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
``Sequence[X]``              values separated by commas; ``none`` means none of them
``tuple[str, ...]``          an option that can be repeated
============================ ======================================================================

``mlflow run`` passes every option as text, so all values can be written as words.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from clear_mlflow.api._arguments import resolve_annotation
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.text import safe_repr

# Headings in the help of several commands.
SELECTION, WORK, COMPARISON, METRICS = "Which runs", "How the work is done", "Comparison", "Metrics"
_OTHER = "Other options"
_NONE = "none"  # the word for None
_MAX_PLACEHOLDER = 60  # characters; longer lists of choices follow the help, which is wrapped
# A call is one word: arguments in an error of another program are not options.
_WORD = re.compile(r"(?:\w\([^()]*\)|[^ ])+")
# A parameter in a sentence, and not a word of a value: "budget is 1 and lr is 2; leave lr at auto".
_MENTION = r"(?:^|(?<=: )|(?<=and )|(?<=but )|(?<=leave )){}(?= (?:is|names|at|out)\b)"


class Command(click.Command):
    """A command whose help has options under headings, and examples.

    headings: heading to names of parameters, with spaces between. examples: command lines that end
    the help.
    """

    def __init__(
        self,
        *args: Any,
        headings: Mapping[str, str],
        examples: tuple[str, ...],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self._heading_by_name = {name: h for h, names in headings.items() for name in names.split()}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, in order of declaration."""
        records = defaultdict(list)
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                records[self._heading_by_name.get(option.name or "", _OTHER)].append(record)
        for heading in sorted(records, key=_OTHER.__eq__):  # other options come last
            with formatter.section(heading):
                formatter.write_dl(records[heading])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command(
    source: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    arguments: Mapping[str, str] | None = None,
    headings: Mapping[str, str] | None = None,
    options: Sequence[click.Option] = (),
    omit: Collection[str] = (),
    examples: tuple[str, ...] = (),
    is_entry_point: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a command of a function.

    The options are the parameters of *source*, and the function's own that have a default. Error
    messages name options as they are typed.

    Args:
        source: function whose signature and docstring declare options and help, or a dataclass
            that declares only the options; None for the decorated function itself.
        name: name of the command, or None for the name of the decorated function.
        arguments: parameters that are positional, with their placeholders in the help.
            ``[X]`` can be left out, and ``X...`` can be repeated.
        headings: headings of the help, each with the names of the parameters that are listed under
            it, with spaces between.
        options: further options, which are listed first.
        omit: parameters of source that do not become options.
        examples: command lines that end the help.
        is_entry_point: True if MLproject has the command. ``mlflow run`` passes only options, so
            each argument that can be left out is an option as well.
    """
    placeholders = arguments or {}

    def decorate(function: Callable[..., None]) -> Command:
        declared = source or function
        parameters = inspect.signature(declared).parameters
        skipped = {*omit, *(() if is_entry_point else placeholders), *(o.name for o in options)}
        params: list[click.Parameter] = [
            _build_argument(declared, parameters[key], text) for key, text in placeholders.items()
        ]
        params += [*options, *_build_options(declared, skipped)]
        if source:
            own = inspect.signature(function).parameters.values()
            params += _build_options(function, [p.name for p in own if p.default is p.empty])

        def run(**values: Any) -> None:
            try:
                for key in placeholders:
                    _merge_argument(values, parameters[key])
                function(**values)
            except ClearError as error:
                error.args = (spell_error(str(error), error.parameter),)
                raise

        return Command(
            name or function.__name__.replace("_", "-"),
            params=params,
            callback=run,
            help=_parse_docstring(function if isinstance(source, type) else declared)[0],
            headings=headings or {},
            examples=examples,
        )

    return decorate


def _build_options(function: Callable[..., Any], omit: Collection[str]) -> list[click.Option]:
    """Build an option for each parameter of a function, except ``**options``.

    Raises KeyError if the docstring or the table of annotations lacks a parameter.
    """
    _, entries = _parse_docstring(function)
    return [
        build_option(name, help=entries[name], **_declare_option(function, parameter))
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in omit and parameter.kind is not parameter.VAR_KEYWORD
    ]


def build_option(name: str, **keywords: Any) -> click.Option:
    """Return the option for a parameter. Prints no default of "none".

    keywords: arguments of click.Option.
    """
    keywords.setdefault("show_default", keywords.get("default") != _NONE)
    choices = getattr(keywords.get("type"), "choices", ())
    if len("|".join(choices)) > _MAX_PLACEHOLDER:
        keywords |= {"metavar": "NAME", "help": f"{keywords['help']} One of {', '.join(choices)}."}
    return click.Option([f"--{name.replace('_', '-')}", name], **keywords)


def _parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring's description, and its ``Args:`` by name.

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
    return re.sub(r"\bNone\b", _NONE, text)


def _build_argument(
    function: Callable[..., Any], parameter: inspect.Parameter, placeholder: str
) -> click.Argument:
    """Return the positional argument for a parameter. See :func:`command` for *placeholder*."""
    keywords: dict[str, Any] = {"metavar": placeholder, "required": placeholder[0] != "["}
    if placeholder.endswith("..."):
        keywords["nargs"] = -1
    else:
        keywords["type"] = _declare_option(function, parameter)["type"]
    # The option of an entry point has the parameter's own name.
    return click.Argument([f"{parameter.name}_argument"], **keywords)


def _merge_argument(values: dict[str, Any], parameter: inspect.Parameter) -> None:
    """Merge an argument and the option of the same name.

    The result is in values[name]. If the argument can be repeated, the values of both become a
    tuple, or None without any; but a single value of a parameter annotated as ``Runs`` stays a
    string. Of any other argument, the result is the parameter's default if neither was passed, and
    both are a ConfigError.
    """
    name = parameter.name
    argument, option = values.pop(f"{name}_argument"), values.get(name)
    if "" in (argument if isinstance(argument, tuple) else (argument,)):
        raise ConfigError(f"{name} is ''; expected a name, an id or a path", parameter=name)
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
        message = f"{name} is {argument} and {option}; pass only one of them"
        raise ConfigError(message, parameter=name)


def _declare_option(function: Callable[..., Any], parameter: inspect.Parameter) -> dict[str, Any]:
    """Return type, default and metavar of a parameter's click.Option.

    They follow from its annotation and default. A bool is a choice of yes and no, and an option for
    a tuple can be repeated.
    """
    # The terminal passes ids and names of runs.
    members = resolve_annotation(function, parameter.annotation, Runs=Sequence[str])
    values: dict[str, Any] = {_NONE: None} if NoneType in members else {}
    values |= {v: v for t in members if get_origin(t) is Literal for v in get_args(t)}
    if bool in members:
        values |= {"no": False, "yes": True}
    keywords: dict[str, Any] = {"required": True}
    if parameter.default is not parameter.empty:
        keywords = {"default": _describe_default(parameter.default)}
    types = [t for t in members if t not in (NoneType, bool) and get_origin(t) is not Literal]
    if not types:
        keywords["type"] = click.Choice(list(values))
        keywords["callback"] = lambda _context, _option, word: values.get(word, word)
        if values.keys() == {"yes", "no"}:
            keywords |= {"is_flag": False, "flag_value": "yes"}
        return keywords
    value_type = get_origin(types[-1]) or types[-1]
    if value_type is tuple:
        return {"type": str, "multiple": True, "metavar": "TEXT"}
    if value_type is Sequence:
        values = {_NONE: (), **values}
    parse, metavar, expected = _PARSERS[value_type]
    return {**keywords, "type": _Value(parse, expected, values), "metavar": metavar}


def _describe_default(default: Any) -> str:
    """Return a default as the command line writes it."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return _NONE if default in (None, ()) else str(default)


class _Value(click.ParamType[Any]):
    """click type that looks a word up, or parses it."""

    name = "value"

    def __init__(
        self, parse: Callable[[str], Any], expected: str, words: Mapping[str, Any]
    ) -> None:
        self._parse, self._expected, self._words = parse, expected, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or raise a ConfigError that states what was expected."""
        if not isinstance(value, str):
            return value
        if value in self._words:
            return self._words[value]
        try:
            return self._parse(value)
        except ValueError:
            name = param.opts[0].removesuffix("_argument") if param else self.name
            message = f"{name} is {safe_repr(value)}; expected {self._expected}"
            raise ConfigError(message, parameter=param.name if param else None) from None


def _split_names(text: str) -> tuple[str, ...]:
    """Split a text at commas, without duplicates. Raises ValueError without a name.

    >>> _split_names("a, b,,a")
    ('a', 'b')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError
    return names


def _parse_path(text: str) -> Path:
    if not text:  # such as "$DIR", which was never set: not the working folder
        raise ValueError
    return Path(text)


# Type to the function that parses a text, the placeholder in the help, and what it expects.
_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str, str]] = {
    str: (str, "TEXT", "a text"),
    int: (int, "N", "a whole number, for example 2"),
    float: (float, "NUMBER", "a number, for example 0.5"),
    Path: (_parse_path, "PATH", "a path"),
    Sequence: (_split_names, "NAME[,NAME...]", "names with commas between"),
}


def spell_error(message: str, parameter: str | None = None) -> str:
    """Write assignments and passed parameters in an error as options.

    It knows the running command. parameter: what the error is about, or None, as for a field of a
    file: only assignments are spelled then. An error about NAME may be about the option rows_NAME.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return message
    message = spell_options(message, context.command.params)
    for key, option in _list_options(context.command.params).items():
        if parameter and context.get_parameter_source(key) is ParameterSource.COMMANDLINE:
            name = parameter if key == f"rows_{parameter}" else key
            message = re.sub(_MENTION.format(re.escape(name)), option, message)
    return message


def spell_options(message: str, params: Sequence[click.Parameter]) -> str:
    """Write each assignment in a message as an option.

    params: parameters of the command; others stay as they are. NAME may be its option rows_NAME.

    >>> params = [build_option("scale"), build_option("lr_step")]
    >>> spell_options('lr_step is 7; pass scale="percent", or lr=2', params)
    'lr_step is 7; pass --scale percent, or lr=2'
    >>> spell_options("no answer of Pool(host='a', scale=9)", params)
    "no answer of Pool(host='a', scale=9)"
    """
    options = _list_options(params)

    def spell(word: str) -> str:
        name, sign, value = word.lstrip("(").partition("=")
        if sign and (option := options.get(name) or options.get(f"rows_{name}")):
            brackets = word.removesuffix(f"{name}={value}")
            return f"{brackets}{option} {value.replace(chr(34), '')}".removesuffix(" True")
        return word

    return _WORD.sub(lambda match: spell(match[0]), message)


def _list_options(params: Sequence[click.Parameter]) -> dict[str, str]:
    return {str(param.name): param.opts[0] for param in params if isinstance(param, click.Option)}
