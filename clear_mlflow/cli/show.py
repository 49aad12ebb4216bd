"""``clear-mlflow show``: one run's matrix and metrics, for people or for programs."""

from __future__ import annotations

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import json_option


@click.command(
    cls=Command,
    examples=("clear-mlflow show RUN_ID", "clear-mlflow show RUN_ID --json"),
)
@click.argument("run", metavar="RUN|BUNDLE")
@json_option
def show(run: str, as_json: bool) -> None:
    """Show a run's accuracy matrix, and each metric with its value or why it has none.

    All is computed from what the run's artifacts hold; nothing is written.
    """
    from clear_mlflow.api.load import load
    from clear_mlflow.cli.output import console, print_json, print_links, print_scores

    found = load(run)
    if as_json:
        print_json(found.to_dict())
        return
    found.record  # noqa: B018  # a run without one is refused, as for --json
    click.echo(f"{found.name} {found.status}\n")
    print_scores(found.scores, console())
    print_links(found.links)
