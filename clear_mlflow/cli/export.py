"""``clear-mlflow export``: runs as folders or one archive, which are read like a store."""

from __future__ import annotations

from typing import Any

import click

from clear_mlflow.api.export import export as export_runs
from clear_mlflow.cli.from_function import command
from clear_mlflow.cli.options import SELECTION


@command(
    export_runs,
    arguments={"runs": "[RUN|EXPERIMENT]...", "to": "DIR|FILE.tar.xz"},
    headings={SELECTION: ("filter",)},
    examples=(
        "clear-mlflow export RUN_ID bundles/replay-0",
        "clear-mlflow export paper supplement.tar.xz --licence CC-BY-4.0",
    ),
)
def export(**options: Any) -> None:
    """Export runs, and print the path that was written."""
    click.echo(f"written to {export_runs(**options)}")
