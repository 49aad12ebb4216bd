"""Declarations of options, conversion of their text, and options that several commands have."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import IO, Any, TypeAlias

import click

from clear_mlflow.cli.help import OTHER, Option
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.process.streams import open_output

_Decorator: TypeAlias = Callable[[Any], Any]


class OptionalValue(click.ParamType[Any]):
    """Converts text with *parse*; the default "none" or "auto" becomes None.

    ``mlflow run`` passes every option as text, so None is written as a word.
    """

    name = "value"

    def __init__(self, parse: Callable[[str], Any] = str) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value, or None. Raises ConfigError if the value is invalid."""
        if param is None or (value == param.default and value in (NONE, AUTO)):
            return None
        try:
            return self.parse(value)
        except ValueError as error:
            raise ConfigError(f"{param.name} is {safe_repr(value)}; {error}") from None


def option(
    name: str,
    values: str | Sequence[str],
    help_text: str,
    *,
    default: str | None = None,
    heading: str = OTHER,
    parse: Callable[[str], Any] = str,
    parameter: str | None = None,
    **click_arguments: Any,
) -> _Decorator:
    """Return a decorator that adds an option to a command.

    Args:
        name: the option, for example ``--format``.
        values: list of choices, of which the first is the default, or a placeholder for the help.
        help_text: text of the help.
        default: default value; None for the first choice, or "none" if any text may be passed.
        heading: heading of the help that lists the option.
        parse: converts the text; its ValueError becomes a ConfigError.
        parameter: name of the function's parameter; None for that of the option.
        **click_arguments: passed on to :func:`click.option`, and override the above.
    """
    if isinstance(values, str):
        if "required" not in click_arguments:
            click_arguments["default"] = default or NONE
        declared: dict[str, Any] = {"type": OptionalValue(parse), "metavar": values}
    else:
        declared = {"type": click.Choice(values), "default": default or values[0]}
    parameter_names = [parameter] if parameter else []
    keywords = {"group": heading, "help": help_text, **declared, **click_arguments}
    return click.option(name, *parameter_names, cls=Option, **keywords)


def flag_option(name: str, help_text: str, *, heading: str) -> _Decorator:
    """Return a decorator that adds a boolean option, False by default.

    True is passed as the bare option, or as "yes", which ``mlflow run`` needs.
    """
    return option(
        name,
        ["no", "yes"],
        help_text,
        heading=heading,
        callback=lambda _context, _option, word: word == "yes",
        is_flag=False,
        flag_value="yes",
    )


def combine_options(*options: _Decorator) -> _Decorator:
    """Return one decorator that adds several options, in this order."""

    def decorate(command: Any) -> Any:
        for declared in reversed(options):
            command = declared(command)
        return command

    return decorate


# Headings of several commands.
SELECTION, WORK, COMPARISON, METRICS = "Which runs", "How the work is done", "Comparison", "Metrics"

# Key of a context's meta: the file that --json prints to.
JSON_OUT = "clear_mlflow.json_out"


@contextmanager
def _redirect_stdout() -> Iterator[IO[str]]:
    """Yield a file that writes to standard output, and redirect all other output to stderr.

    Output of C libraries and child processes is redirected, too. Restored at the end.
    """
    with ExitStack() as stack:
        stdout: IO[str] = sys.stdout
        with suppress(OSError, AttributeError):  # in tests it is not a file; if closed, None
            descriptor = stdout.fileno()
            stdout = stack.enter_context(open_output(os.dup(descriptor), "utf-8"))
            stack.callback(os.dup2, stdout.fileno(), descriptor)
            os.dup2(2, descriptor)
        with redirect_stdout(sys.stderr):
            yield stdout


def _reserve_stdout_for_json(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    """If --json was passed, keep standard output for :func:`print_json` (callback of the option).

    Until the command ends, everything else that is printed goes to standard error.
    """
    if is_given:
        context.meta[JSON_OUT] = context.with_resource(_redirect_stdout())


# Not passed to the command, which calls wants_json().
json_option = click.option(
    "--json",
    cls=Option,
    is_flag=True,
    expose_value=False,
    callback=_reserve_stdout_for_json,
    help="Print JSON for programs, and nothing else; see docs/json.md.",
)


def wants_json() -> bool:
    """Return True if the running command was called with --json."""
    return JSON_OUT in click.get_current_context().meta


dry_run_option = flag_option(
    "--dry-run", "Say what would be done, and write nothing.", heading=WORK
)


RUN = "Run"
# Not parameters of MLproject: mlflow run has options of its own for these, and opens the run.
run_options = combine_options(
    option(
        "--experiment",
        "NAME",
        "MLflow experiment; created where there is none. none: that of MLFLOW_EXPERIMENT_NAME, "
        "else Default.",
        heading=RUN,
    ),
    option("--run-name", "NAME", "Name of the run; none: made of what it trains.", heading=RUN),
    click.option(
        "--tag",
        cls=Option,
        group=RUN,
        multiple=True,
        metavar="KEY=TEXT",
        help="A tag of each run that is opened; may be given several times.",
    ),
)


def apply_run_options(
    experiment: str | None, run_name: str | None, tag: Sequence[str], *, resume: str | None = None
) -> None:
    """Set MLflow's environment variables for the experiment and tags of runs opened from now on.

    run_name is only checked. resume: id of the run that is resumed, or None. Raises ConfigError
    if options are passed although an existing run is continued, or if a tag is not KEY=TEXT.
    """
    passed = [
        f"{name} is {value!r}"
        for name, value in (("experiment", experiment), ("run_name", run_name))
        if value
    ] + [f"tag is {text!r}" for text in tag]
    existing_run_id = resume or os.environ.get("MLFLOW_RUN_ID")
    if passed and existing_run_id:
        raise ConfigError(
            f"{passed[0]}, and run {existing_run_id} is there already, with its own experiment, "
            "name and tags; leave the option out"
        )
    tags = dict(_split_tag(text) for text in tag)
    # MLflow's own variables: every run that is opened from here on follows them.
    if experiment:
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
        os.environ["MLFLOW_EXPERIMENT_NAME"] = experiment
    if tags:
        others = json.loads(os.environ.get("MLFLOW_RUN_CONTEXT") or "{}")
        os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({**others, **tags})


def _split_tag(tag: str) -> tuple[str, str]:
    """Split KEY=TEXT. Raises ConfigError if it has no key, or one that MLflow uses itself."""
    key, sign, text = tag.partition("=")
    if not key.strip() or not sign:
        raise ConfigError(f"tag is {tag!r}; expected a key, = and a text, for example paper=draft")
    if key.startswith(("mlflow.", "clear_mlflow.")):
        raise ConfigError(
            f"tag is {tag!r}; names that begin with mlflow. or clear_mlflow. are the programs' own"
        )
    return key.strip(), text
