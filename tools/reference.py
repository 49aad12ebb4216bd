"""The text of docs/reference.md, from the commands themselves: ``python tools/generate.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from clear_mlflow.cli import EXIT_CODES, main
from clear_mlflow.learning.parameters.config import parameter_defaults

_HEAD = """# Commands

Written by `python tools/generate.py`; `clear-mlflow COMMAND --help` says more. Under
`mlflow run . -e COMMAND` each option is a parameter, with underscores (`-P group_by=strategy`);
`train` is the entry point `main`. `--experiment`, `--run-name` and `--tag` of commands that train
are for the terminal: `mlflow run` has its own.

Your shell completes commands and options after one of these lines in its start-up file:

```sh
eval "$(_CLEAR_MLFLOW_COMPLETE=bash_source clear-mlflow)"   # ~/.bashrc
eval "$(_CLEAR_MLFLOW_COMPLETE=zsh_source clear-mlflow)"    # ~/.zshrc
_CLEAR_MLFLOW_COMPLETE=fish_source clear-mlflow | source    # ~/.config/fish/config.fish
```

## Exit codes
"""


def reference() -> str:
    """The whole page."""
    commands = dict(_commands("clear-mlflow", main))
    counted = Counter(line for command in commands.values() for line in _lines(command))
    shared = {line for line, times in counted.items() if times > 1}
    return "\n".join(
        (
            _HEAD,
            *(f"- {code}: {text}" for code, text in EXIT_CODES.items()),
            "\n## Options of several commands\n",
            *(line for line in counted if line in shared),
            *(
                part
                for name, command in commands.items()
                for part in _section(name, command, shared)
            ),
        )
    )


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Each command that can be run, by its whole name."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from _commands(f"{name} {part.name}", part)
    else:
        yield name, command


def _section(name: str, command: click.Command, shared: set[str]) -> Iterator[str]:
    arguments = [part for part in command.params if isinstance(part, click.Argument)]
    words = [name, *(part.make_metavar(click.Context(command)) for part in arguments)]
    yield f"\n## `{name}`\n"
    if arguments:
        yield f"```text\n{' '.join(words)} [OPTIONS]\n```\n"
    yield " ".join((command.help or "").partition("\n\n")[0].split()) + "\n"
    if _trains(command):
        yield "Every [parameter of a training](parameters.md) is an option.\n"
    lines = list(_lines(command))
    yield from (line for line in lines if line not in shared)
    if several := [line.split("`")[1] for line in lines if line in shared]:
        yield f"\n[Of several commands](#options-of-several-commands): `{'`, `'.join(several)}`."


def _trains(command: click.Command) -> bool:
    return len({part.name for part in command.params} & parameter_defaults().keys()) > 10


def _lines(command: click.Command) -> Iterator[str]:
    """A line for each option that is no parameter of a training."""
    left_out = parameter_defaults() if _trains(command) else {}
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in left_out:
            choice = option.type if isinstance(option.type, click.Choice) else None
            values = f" {'|'.join(map(str, choice.choices))}" if choice else ""
            default = option.default if isinstance(option.default, str) else ""
            told = ", required" if option.required else f" (`{default}`)" if default else ""
            text = " ".join((option.help or "").split()).replace("<", "&lt;")
            yield f"- `{option.opts[0]}{values}`{told}: {text}"
