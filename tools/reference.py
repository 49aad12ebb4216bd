"""The text of docs/reference.md, from the commands themselves: ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from clear_mlflow.cli import main
from clear_mlflow.cli.help import EXIT_CODES
from clear_mlflow.learning.parameters.config import parameter_defaults

_HEAD = """# Commands

Written by `python tools/generate.py`; `clear-mlflow COMMAND --help` says the same. Under
`mlflow run . -e COMMAND` each option is a parameter, with underscores in place of hyphens
(`-P group_by=strategy`); `train` is the entry point `main`. `--experiment`, `--run-name` and
`--tag` of the commands that train are for the terminal: `mlflow run` has its own.

Your shell completes commands, options and values after one of these lines in its start-up file:

```sh
eval "$(_CLEAR_MLFLOW_COMPLETE=bash_source clear-mlflow)"   # ~/.bashrc
eval "$(_CLEAR_MLFLOW_COMPLETE=zsh_source clear-mlflow)"    # ~/.zshrc
_CLEAR_MLFLOW_COMPLETE=fish_source clear-mlflow | source    # ~/.config/fish/config.fish
```

## Exit codes
"""


def reference() -> str:
    """The whole page."""
    codes = (f"- {code}: {text}" for code, text in EXIT_CODES.items())
    return "\n".join((_HEAD, *codes, "", *_commands("clear-mlflow", main)))


def _commands(name: str, command: click.Command) -> Iterator[str]:
    """A section for each command that can be run, and a line for each option of its own."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from _commands(f"{name} {part.name}", part)
        return
    arguments = [part for part in command.params if isinstance(part, click.Argument)]
    options = [part for part in command.params if isinstance(part, click.Option)]
    words = [name, *(part.make_metavar(click.Context(command)) for part in arguments)]
    yield f"## {name}\n\n```text\n{' '.join(words)}{' [OPTIONS]' * bool(options)}\n```\n"
    yield "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) + "\n"
    parameters = {option.name for option in options} & parameter_defaults().keys()
    if len(parameters) > 10:
        yield "Every [parameter of a training](parameters.md) is an option, and:\n"
        options = [option for option in options if option.name not in parameters]
    if options:
        yield "| option | default | what it is |\n|---|---|---|"
        yield from map(_line, options)
        yield ""
    for code, text in getattr(command, "exit_codes", {}).items():
        if EXIT_CODES.get(code) != text:
            yield f"- Exit code {code}: {text}"
    yield ""


def _line(option: click.Option) -> str:
    default = f"`{option.default}`" if isinstance(option.default, str) else ""
    text = " ".join((option.help or "").split())
    if isinstance(option.type, click.Choice):
        text = f"One of `{'`, `'.join(map(str, option.type.choices))}`. {text}"
    cell = text.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{option.opts[0]}` | {'required' if option.required else default} | {cell} |"
