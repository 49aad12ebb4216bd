"""``clear-mlflow export``: a run as a folder or a zip that is read like a store."""

from __future__ import annotations

from pathlib import Path

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import option


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow export RUN_ID replay-0.zip --licence CC-BY-4.0",
        "clear-mlflow export RUN_ID bundles/replay-0",
    ),
)
@click.argument("run")
@click.argument("to", metavar="DIR|ZIP", type=click.Path(path_type=Path))
@option(
    "--licence",
    "TEXT",
    "What others may do with it, for example CC-BY-4.0.",
    default="not stated",
    type=str,
)
def export(run: str, to: Path, licence: str) -> None:
    """Write a run's rows, predictions and configuration as a bundle, to be kept or published.

    load, show and compare read a bundle like a store, and refuse it when a byte was changed since.
    """
    from clear_mlflow.api.export import export as export_run

    click.echo(f"run {run} is in {export_run(run, to, licence=licence)}")
