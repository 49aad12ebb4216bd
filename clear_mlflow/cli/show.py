"""The command show."""

from __future__ import annotations

import click

from clear_mlflow.cli import output
from clear_mlflow.cli.command import command


@command(
    arguments={"run": "RUN|BUNDLE"},
    options=[output.JSON_OPTION],
    examples=("clear-mlflow show RUN_ID", "clear-mlflow show RUN_ID --json"),
)
def show(run: str) -> None:
    """Show a run's retained accuracy by bucket, its matrix, and its metrics.

    A metric without a value has a reason. Everything is computed from the run's artifacts; nothing
    is written.

    Args:
        run: id of a run or its first six digits or more, or path of a bundle or of an
            offline folder.
    """
    from clear_mlflow.api.load import load
    from clear_mlflow.report.terminal_tables import describe_retention

    stored_run = load(run)
    if output.wants_json():
        output.print_json(stored_run.to_dict())
        return
    matrix = stored_run.record.masked_matrix  # raises without rows, as --json does
    click.echo(f"{stored_run.name} {stored_run.status}\n")
    if lines := list(describe_retention(matrix)):
        click.echo("\n".join([*lines, ""]))
    output.print_scores(stored_run.scores)
    output.print_links(stored_run.links)
