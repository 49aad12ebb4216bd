"""The parts of pages in docs/ that follow from code.

A part is between the comments ``<!-- generated: NAME -->`` and ``<!-- end -->``. On docs/python.md
it is the text after each link to a name of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import griffe

from clear_mlflow.cli import EXIT_CODES, main
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    list_auto_values,
    list_parameter_defaults,
)
from clear_mlflow.learning.parameters.recipes import RECIPES
from clear_mlflow.metrics import (
    ALL_METRICS,
    CHANGE,
    PREDICTION_METRICS,
    PREQUENTIAL_METRICS,
    SCRATCH_METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
)

ROOT = Path(__file__).parent.parent
_PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(?=<!-- end -->)", re.S)
_PYTHON_NAME = re.compile(r"^- \[`(clear_mlflow\.[\w.]+)`\]\(.*$", re.M)
_ROLE = re.compile(r":\w+:`([^`]+)`|``(.+?)``")
_FEATURES = "features"  # the recipe of stored features
# docs/metrics.md defines these symbols.
_SYMBOLS = {"the number of test images per bucket": "n", "the initialisation row": "b"}


def update_page(name: str) -> str:
    """Return the text of a page below docs/ with its generated parts as they are now."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return _PART.sub(lambda match: match[1] + "".join(f"{x}\n" for x in PARTS[match[2]]()), page)


def list_exit_codes() -> Iterator[str]:
    """Yield an item for each exit code."""
    return (f"- {code}: {meaning}" for code, meaning in EXIT_CODES.items())


def list_commands(
    name: str = "clear-mlflow",
    command: click.Command = main,
    commands_by_line: dict[str, str] | None = None,
) -> Iterator[str]:
    """Yield a heading, the summary and the options of each command.

    An option that an earlier command has with the same text is listed by its name. Adds the lines
    of the other options to *commands_by_line*, with the command.
    """
    commands_by_line = {} if commands_by_line is None else commands_by_line
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from list_commands(f"{name} {part.name}", part, commands_by_line)
        return
    context = click.Context(command, info_name=name)
    arguments = " ".join(command.collect_usage_pieces(context)[1:])
    yield f"## `{name}`\n"
    if arguments:
        yield f"Arguments: `{arguments}`\n"
    summary = (command.help or "").split("\n\n")[0]
    yield " ".join(summary.split()).replace("<", "&lt;") + "\n"
    options = [option for option in command.params if isinstance(option, click.Option)]
    if len({option.name for option in options} & list_parameter_defaults().keys()) > 10:
        yield "Every [parameter](parameters.md) is an option, too.\n"
        options = [option for option in options if option.name not in list_parameter_defaults()]
    repeated: dict[str, list[str]] = {}
    for option in options:
        if option.name != "json" and (record := option.get_help_record(context)):
            spelling, text = record
            default = re.search(r" \[default: (.+)\]$", text)
            sentence = re.split(r"(?<=\.)\s", text)[0].replace("<", "&lt;")
            line = f"- `{spelling}`{f' (`{default[1]}`)' if default else ''}: {sentence}"
            if line in commands_by_line:
                repeated.setdefault(commands_by_line[line], []).append(f"`{spelling.split()[0]}`")
            else:
                commands_by_line[line] = name
                yield line
    for other, names in repeated.items():
        yield f"- {', '.join(names)}: as for [`{other}`](#{other.replace(' ', '-')})."
    if any(option.name == "json" for option in options):
        yield "- `--json`: Print [JSON](json.md#json-for-programs)."
    if options:
        yield ""


def list_recipes() -> Iterator[str]:
    """Yield a table of the values of ``auto``, a column for each different recipe."""
    datasets: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for dataset, recipe in RECIPES.items():
        datasets.setdefault(tuple(recipe.items()), []).append(dataset)
    columns = list(datasets.values())
    heads = [", ".join(d if " " in d else f"`{d}`" for d in names) for names in columns]
    yield f"|parameter|{'|'.join(heads)}|with `features=NAME`|"
    yield "|---" * (len(columns) + 2) + "|"
    for name in list_parameter_defaults():
        if values := list_auto_values(name):
            cells = [f"`{values[d]}`" if d in values else "by the device" for d, *_ in columns]
            on_features = f"`{values[_FEATURES]}`" if _FEATURES in values else "as without"
            if name == "image_size":
                on_features = "not used"
            yield f"|`{name}`|{'|'.join(cells)}|{on_features}|"


def list_parameters() -> Iterator[str]:
    """Yield the parameters of a training, in groups."""
    for group in dict.fromkeys(option.group for option in PARAMETERS.values()):
        yield f"### {group}\n"
        for name, option in PARAMETERS.items():
            if option.group == group:
                choices = "|".join(option.choices)
                values = f"={choices}" if choices else ""
                help_text = option.help.replace("<", "&lt;")
                yield f"- `{name}{values}` (`{option.default}`): {help_text}"
        yield ""


def list_metrics(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield a table with a row for each definition and all names that share it."""
    yield "| name | formula | defined when |\n|---|---|---|"
    names_by_definition: dict[str, list[str]] = {}
    for metric in metrics:
        text = " ".join(metric.documentation.split()) + " "
        match = re.search(r"Formula: (.+?)\. Defined when (.+?)\. ", text)
        if match is None:
            raise ValueError(
                f"the docstring of {metric.name} lacks 'Formula: ... Defined when ...'"
            )
        extent = re.search(r"in \[(\S+), (\S+)\]", text)
        minimum = extent[1] if extent else "-1" if metric.score_role == CHANGE else "0"
        marks = (
            f"{' ±' if minimum == '-1' else ''}{' ↓' if metric.higher_is_better is False else ''}"
        )
        condition = re.sub(r"^k >= 1(, | and |$)", "", match[2])
        for words, symbol in _SYMBOLS.items():
            condition = condition.replace(words, symbol)
        definition = f"{match[1]}{marks} | {condition}"
        names_by_definition.setdefault(definition, []).append(f"`{metric.name}`")
    for definition, names in names_by_definition.items():
        yield f"| {', '.join(names)} | {definition} |"


PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "exit codes": list_exit_codes,
    "commands": list_commands,
    "recipes": list_recipes,
    "parameters": list_parameters,
    "matrix metrics": lambda: list_metrics(
        metric for metric in ALL_METRICS if not metric.name.startswith("published/")
    ),
    "prediction metrics": lambda: list_metrics(PREDICTION_METRICS),
    "within-bucket metrics": lambda: list_metrics(WITHIN_BUCKET_METRICS),
    "prequential metrics": lambda: list_metrics(PREQUENTIAL_METRICS),
    "metrics against scratch": lambda: list_metrics(SCRATCH_METRICS),
}


def update_python_page() -> str:
    """Return docs/python.md with a link to each source and a docstring's first sentence."""
    package = griffe.load("clear_mlflow", search_paths=[ROOT])

    def describe(match: re.Match[str]) -> str:
        member = package[match[1].removeprefix("clear_mlflow.")]
        if isinstance(member, griffe.Alias):
            member = member.final_target
        if member.docstring is None:
            raise ValueError(f"{match[1]} of docs/python.md has no docstring")
        sentence = " ".join(member.docstring.value.partition("\n\n")[0].split())
        sentence = _ROLE.sub(lambda role: f"`{role[1] or role[2]}`", sentence)
        return f"- [`{match[1]}`](../{member.relative_filepath.as_posix()}): {sentence}"

    return _PYTHON_NAME.sub(describe, (ROOT / "docs" / "python.md").read_text(encoding="utf-8"))


def insert_directives(page: str) -> str:
    """Replace each name on docs/python.md by mkdocstrings' directive, for the site."""
    return _PYTHON_NAME.sub(r"\n::: \1\n", page)
