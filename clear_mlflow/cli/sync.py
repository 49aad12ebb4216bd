"""``clear-mlflow sync``: send what trainings left on local disk while their store was away."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from clear_mlflow.cli.help import Command


@click.command(
    cls=Command,
)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def sync(folder: Path | None) -> None:
    """Send what trainings left on local disk while their store was away, and close their runs.

    FOLDER is the journal of one run, or holds several. Without it, all journals are sent that are
    in the cache folder (CLEAR_MLFLOW_CACHE) or in unsent_rows of the working folder. Each is sent
    to the store that its training wrote to; with FOLDER, MLFLOW_TRACKING_URI takes precedence.
    Sending twice doubles nothing.
    """
    from clear_mlflow.cli.output import print_links
    from clear_mlflow.core.text import one_line
    from clear_mlflow.process.signals import interrupt_on_signal
    from clear_mlflow.store.client import set_up_mlflow
    from clear_mlflow.tracking.sync import select_folders, sync_folders

    set_up_mlflow()
    folders = select_folders(folder)
    if not folders:
        click.echo("nothing waits for a store")
        return
    failed = 0
    links: tuple[str, ...] = ()
    with interrupt_on_signal() as received:
        try:
            for synced in sync_folders(folders, use_recorded_store=folder is None):
                failed += not (synced.is_stored or synced.is_live)
                links = synced.links or links
                which = f"run {synced.run_id}" if synced.run_id else str(synced.folder)
                line = one_line(f"{which}: {synced.num_sent} sent; {synced.message}")
                with suppress(OSError):
                    click.echo(line, err=not synced.is_stored)
        except KeyboardInterrupt:
            with suppress(OSError):
                click.echo("error: stopped; what is left waits for the next sync", err=True)
            sys.exit(128 + received[0])
    with suppress(OSError):
        print_links(links)  # of the last one
    sys.exit(2 if failed else 0)
