"""Format ``--help``: options under headings, the meaning of ``auto``, and examples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from clear_mlflow.core.errors import ClearError
from clear_mlflow.learning.parameters.config import auto_values
from clear_mlflow.learning.parameters.recipes import AUTO, NONE

OTHER = "Other options"

# Of every command.
EXIT_CODES: Mapping[str, str] = {
    "0": "The work is done.",
    "1": "A bug, of this program or of a library, with a traceback. Of data check: problems found.",
    "2": "Something that you can mend, in one line on standard error; of several runs or files, "
    "some failed, and all others are done.",
    "75": "Of `train --if-held leave`: another machine may train into the run; start again later.",
    "128 + signal": "Stopped by a signal: 130 by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP, 137 by "
    "SIGKILL (for lack of memory, for example). What was done is stored.",
}


class Option(click.Option):
    """A click option that the help lists under the heading *group*."""

    def __init__(self, *args: Any, group: str = OTHER, **kwargs: Any) -> None:
        if kwargs.get("default") == NONE:
            kwargs.setdefault("show_default", False)
        super().__init__(*args, **kwargs)
        self.group = group


class Command(click.Command):
    """A command whose help has options under headings, and examples."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Error messages name options as on the command line (--some-name)."""
        try:
            return super().invoke(ctx)
        except ClearError as error:
            error.args = (spell_options(str(error)),)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, in order of declaration."""
        options = [part for part in self.get_params(ctx) if isinstance(part, click.Option)]
        groups = list(dict.fromkeys(map(_get_heading, options)))
        options.sort(key=lambda o: (_get_heading(o) == OTHER, groups.index(_get_heading(o))))
        for group, members in groupby(options, _get_heading):
            with formatter.section(group):
                records = [option.get_help_record(ctx) for option in members]
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class HeadedGroup(click.Group):
    """A command group whose help lists its commands under headings, and then exit codes."""

    def __init__(self, *args: Any, headings: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headings = headings

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, each with the first line of its help."""
        width = max(map(len, self.commands))
        for heading, names in self.headings.items():
            with formatter.section(heading):
                commands = (self.commands[name] for name in names)
                formatter.write_dl(
                    [(f"{c.name:{width}}", c.get_short_help_str(200)) for c in commands]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl(list(EXIT_CODES.items()))


def spell_options(text: str) -> str:
    """Replace parameters in a message by options of the running command.

    ``scale="percent"`` becomes ``--scale percent``.
    """
    context = click.get_current_context(silent=True)  # None in threads
    options = {
        parameter.name: parameter.opts[0]
        for parameter in (context.command.params if context else ())
        if isinstance(parameter, click.Option)
    }

    def spell(match: re.Match[str]) -> str:
        option = options.get(match[1]) or options.get(f"rows_{match[1]}")
        value = match[2] or match[3]
        return f"{option} {value}".removesuffix(" True") if option else match[0]

    return re.sub(r"""(?<![\w./'"-])([a-z_]+)=(?:"([^"]*)"|([^\s;,)"]*[^\s;,.)":]))""", spell, text)


def _get_heading(option: click.Parameter) -> str:
    """Return the heading that the help lists an option under."""
    return getattr(option, "group", OTHER)


def describe_auto(name: str) -> str:
    """Return what ``auto`` means for a training parameter, or "" if no recipe sets it.

    >>> describe_auto("epochs")
    'auto: 24 on digits; 18 on digits-writers; 100 on clear10, clear100, own streams, features.'
    """
    where: dict[str, list[str]] = {}
    for dataset, text in auto_values(name).items():
        where.setdefault(text, []).append(dataset)
    parts = [f"{text} on {', '.join(datasets)}" for text, datasets in where.items()]
    return f"{AUTO}: {'; '.join(parts)}." if parts else ""
