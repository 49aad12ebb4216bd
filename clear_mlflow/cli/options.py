"""How options are declared, how their texts become values, and those that several commands take."""

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


class Maybe(click.ParamType[Any]):
    """None for the default word, as ``mlflow run`` has texts alone; else what a parser gives."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any] = str) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a ConfigError that says what was expected."""
        if param is None or (value == param.default and value in (NONE, AUTO)):
            return None
        try:
            return self.parse(value)
        except ValueError as error:
            raise ConfigError(f"{param.name} is {safe_repr(value)}; {error}") from None


def option(
    name: str,
    values: str | Sequence[str],
    text: str,
    *,
    default: str | None = None,
    under: str = OTHER,
    parse: Callable[[str], Any] = str,
    to: str | None = None,
    **more: Any,
) -> _Decorator:
    """An option under a heading; the first of choices is its default; *to* is its parameter."""
    if isinstance(values, str):
        if "required" not in more:
            more["default"] = default or NONE
        more = {"type": Maybe(parse), "metavar": values, **more}
    else:
        more = {"type": click.Choice(values), "default": default or values[0], **more}
    return click.option(name, *([to] if to else []), cls=Option, group=under, help=text, **more)


def yes_or_no(name: str, text: str, *, under: str) -> _Decorator:
    """An option that is no unless given: ``mlflow run`` hands yes on, a user the bare name."""
    more: dict[str, Any] = {"is_flag": False, "flag_value": "yes"}
    return option(
        name, ["no", "yes"], text, under=under, callback=lambda _, __, v: v == "yes", **more
    )


def together(*options: _Decorator) -> _Decorator:
    """Several options as one decorator; the command's help lists them in this order."""

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
    """Yield standard output; everything else that is printed goes to standard error.

    Includes what C libraries and child processes print.
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
    """Send what libraries and the user's code print to standard error, if --json was passed."""
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


dry_run_option = yes_or_no("--dry-run", "Say what would be done, and write nothing.", under=WORK)


RUN = "Run"
# Not parameters of MLproject: mlflow run has options of its own for these, and opens the run.
run_options = together(
    option(
        "--experiment",
        "NAME",
        "MLflow experiment; created where there is none. none: that of MLFLOW_EXPERIMENT_NAME, "
        "else Default.",
        under=RUN,
    ),
    option("--run-name", "NAME", "Name of the run; none: made of what it trains.", under=RUN),
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
    """Set MLflow's environment variables, which apply to all runs that this process opens.

    Raises ConfigError if the process continues an existing run, which keeps what it has.
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
    key, sign, text = tag.partition("=")
    if not key.strip() or not sign:
        raise ConfigError(f"tag is {tag!r}; expected a key, = and a text, for example paper=draft")
    if key.startswith(("mlflow.", "clear_mlflow.")):
        raise ConfigError(
            f"tag is {tag!r}; names that begin with mlflow. or clear_mlflow. are the programs' own"
        )
    return key.strip(), text
