"""The text of docs/reference.md, from the commands themselves and from MLproject.

``python tools/generate.py`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import yaml
from mlproject import mlproject

from clear_mlflow.cli import main

_HEAD = """# Commands and entry points

Written by `python tools/generate.py` from the program's own declarations; a test fails when the
two differ. `clear-mlflow COMMAND --help` says the same in a terminal. `auto` and `none` are values
like any other: under `mlflow run` a parameter always has one.

Your shell completes commands, options and values after one of these lines in its start-up file:

```sh
eval "$(_CLEAR_MLFLOW_COMPLETE=bash_source clear-mlflow)"   # ~/.bashrc
eval "$(_CLEAR_MLFLOW_COMPLETE=zsh_source clear-mlflow)"    # ~/.zshrc
_CLEAR_MLFLOW_COMPLETE=fish_source clear-mlflow | source    # ~/.config/fish/config.fish
```

`--experiment`, `--run-name` and `--tag` of the commands that train are for the terminal:
`mlflow run` opens the run itself, and has `--experiment-name` and `--run-name` of its own.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_commands("clear-mlflow", main), *_entry_points()))


def _commands(name: str, command: click.Command) -> Iterator[str]:
    """A section for each command that can be run, and a line for each of its options."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from _commands(f"{name} {part.name}", part)
        return
    options = [part for part in command.params if isinstance(part, click.Option)]
    arguments = [part for part in command.params if isinstance(part, click.Argument)]
    words = [name, *(f"{part.make_metavar(click.Context(command))}" for part in arguments)]
    yield f"## {name}\n"
    yield f"```text\n{' '.join([*words, '[OPTIONS]'] if options else words)}\n```\n"
    yield f"{_paragraphs(command.help)}\n"
    if options:
        yield "| option | default | what it is |"
        yield "|---|---|---|"
        for option in options:
            yield f"| `{'`, `'.join(option.opts)}` | {_default(option)} | {_cell(option)} |"
        yield ""
    if codes := getattr(command, "exit_codes", None):
        yield "| exit code | what it means |"
        yield "|---|---|"
        yield from (f"| {code} | {text} |" for code, text in codes.items())
        yield ""


def _entry_points() -> Iterator[str]:
    """What MLproject declares: the same options, by the names that ``mlflow run -P`` takes."""
    project = yaml.safe_load(mlproject())
    yield "## mlflow run\n"
    yield "```text\nmlflow run . --env-manager local -e ENTRY_POINT -P PARAMETER=VALUE\n```\n"
    yield "Parameters are the options of the command, with underscores.\n"
    yield "| entry point | command | parameters and their defaults |"
    yield "|---|---|---|"
    for name, entry in project["entry_points"].items():
        command = entry["command"].split()[3]
        parameters = " ".join(
            f"`{key}={value['default']}`" for key, value in entry["parameters"].items()
        )
        yield f"| `{name}` | [`{command}`](#clear-mlflow-{command}) | {parameters} |"
    yield ""


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _default(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if option.required:
        return "required"
    return "" if option.default is None else f"`{option.default}`"


def _cell(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    if isinstance(option.type, click.Choice):
        text = f"One of `{'`, `'.join(map(str, option.type.choices))}`. {text}"
    return text.replace("|", "\\|").replace("<", "&lt;")
