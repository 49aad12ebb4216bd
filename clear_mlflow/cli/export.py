"""``clear-mlflow export``: runs as folders or one archive, which are read like a store."""

from __future__ import annotations

from pathlib import Path

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import chosen_runs, option, run_selection_options


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow export RUN_ID bundles/replay-0",
        "clear-mlflow export --experiment paper supplement.tar.xz --licence CC-BY-4.0",
    ),
)
@click.argument("runs", nargs=-1, metavar="[RUN|EXPERIMENT]...")
@click.argument("to", metavar="DIR|FILE.tar.xz", type=click.Path(path_type=Path))
@run_selection_options
@option(
    "--licence",
    "TEXT",
    "What others may do with it, for example CC-BY-4.0.",
    default="not stated",
    type=str,
)
def export(
    runs: tuple[str, ...],
    to: Path,
    run_id: tuple[str, ...] | None,
    experiment: str | None,
    filter_string: str | None,
    licence: str,
) -> None:
    """Write runs' rows, predictions and configuration as bundles, to be kept or published.

    load, show and compare read them like a store, and refuse one of which a byte was changed
    since.
    """
    selected = chosen_runs(runs, run_id, experiment)

    from clear_mlflow.api.export import export as export_runs

    click.echo(f"written to {export_runs(selected, to, filter=filter_string, licence=licence)}")
