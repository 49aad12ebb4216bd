"""The command line: one module per sub-command; those that track are MLproject entry points."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from clear_mlflow.cli.compare import compare, show
from clear_mlflow.cli.data import data
from clear_mlflow.cli.evaluate import evaluate
from clear_mlflow.cli.export import export
from clear_mlflow.cli.help import HeadedGroup
from clear_mlflow.cli.import_runs import import_runs
from clear_mlflow.cli.open_ui import open_ui
from clear_mlflow.cli.sweep import sweep
from clear_mlflow.cli.sync import sync
from clear_mlflow.cli.train import train, train_distributed
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.text import one_line
from clear_mlflow.core.version import __version__


class _Group(HeadedGroup):
    """The top command: prints user errors in one line, and lets other errors raise.

    Exit code 2 after a ClearError, 130 after Ctrl-C.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClearError as error:
            click.echo(f"error: {one_line(str(error))}", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("error: stopped", err=True)
            sys.exit(128 + signal.SIGINT)


# MLflow hands an undeclared parameter on as --some_name; options are written --some-name.
_CONTEXT = {
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}


@click.group(
    cls=_Group,
    context_settings=_CONTEXT,
    headings={
        "Train": ("train", "train-distributed", "sweep"),
        "Look at what is stored": ("open", "show", "evaluate", "compare", "export"),
        "Bring runs into MLflow": ("import", "sync"),
        "Datasets": ("data",),
    },
)
@click.version_option(__version__, prog_name="clear-mlflow")
def main() -> None:
    """Train on CLEAR's stream of buckets, keep every row in MLflow, and re-score from the rows."""


for _command in (
    train,
    train_distributed,
    evaluate,
    compare,
    export,
    open_ui,
    show,
    sweep,
    import_runs,
    sync,
    data,
):
    main.add_command(_command)
