"""The command line. Commands that track a run are MLproject entry points as well."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import click

from clear_mlflow.cli.output import print_error
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.version import __version__

# Heading to the module and function of each command, by the command's name.
_COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Train": {
        "train": "train:train",
        "train-distributed": "train:train_distributed",
        "sweep": "sweep:sweep",
    },
    "Look at what is stored": {
        "open": "stored_runs:open_ui",
        "show": "show:show",
        "evaluate": "evaluate:evaluate",
        "compare": "stored_runs:compare",
        "identify": "identify:identify",
        "export": "stored_runs:export",
    },
    "Bring runs into MLflow": {"import": "import_runs:import_runs", "sync": "stored_runs:sync"},
    "Datasets": {"data": "data:data"},
}

EXIT_CODES: Mapping[str, str] = {
    "0": "Success.",
    "1": "A bug, reported with a traceback; or 'data check' found problems.",
    "2": "An error that you can fix, reported in one line on standard error. If it concerns one of "
    "several runs or files, the others were still processed.",
    "75": "train --if-held leave: a process on another machine may still be training this run. Try "
    "again later.",
    "128 + signal": "Stopped by a signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 137 for "
    "SIGKILL (for example out of memory). Everything measured so far is stored.",
}


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Each is imported when it is read."""

    _references: Mapping[str, str] = {k: v for part in _COMMANDS.values() for k, v in part.items()}

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = self._references[name].partition(":")
        command: click.Command = getattr(import_module(f"clear_mlflow.cli.{module}"), function)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)


@contextmanager
def _exit_after_user_errors() -> Iterator[None]:
    """Print user errors in one line, and exit: 2, 130 after Ctrl-C."""
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2: prints the help
            raise
        message = error.format_message()
        context = error.ctx or click.get_current_context()
        command = " ".join(filter(None, (context.command_path, context.invoked_subcommand)))
        print_error(f"{message[0].lower()}{message[1:].rstrip('.')}; see {command} --help")
        sys.exit(2)
    except ClearError as error:
        print_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        print_error("stopped")
        sys.exit(128 + signal.SIGINT)


class _MainGroup(click.Group):
    """Prints user errors in one line, and lets other errors raise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _exit_after_user_errors():
            if sys.flags.optimize > 1:
                raise ConfigError(
                    "Python removes docstrings, from which the options come; unset PYTHONOPTIMIZE, "
                    "or leave -OO out"
                )
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _exit_after_user_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under headings, with the first lines of help."""
        width = max(map(len, self.commands))
        for heading, names in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{n:{width}}", self.commands[n].get_short_help_str(200)) for n in names]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl(list(EXIT_CODES.items()))


# MLflow passes an undeclared parameter as --some_name; options are written --some-name.
@click.group(
    cls=_MainGroup,
    commands=cast("dict[str, click.Command]", _Commands()),
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="clear-mlflow")
def main() -> None:
    """Track continual learning in MLflow.

    Every run keeps its complete accuracy matrix, any metric can be computed from it later, and a
    comparison tells you which method is better.
    """
