"""``clear-mlflow identify``: print the definitions behind published numbers."""

from __future__ import annotations

from typing import Any

import click

from clear_mlflow.api.identify import identify as identify_values
from clear_mlflow.cli import output
from clear_mlflow.cli.command import command

_MAX_LINES = 8  # of the table of one number


@command(
    identify_values,
    arguments={"matrix": "FILE|RUN|BUNDLE", "values": "VALUE..."},
    headings={"How a file is read": "format scale future orientation"},
    options=[output.JSON_OPTION],
    examples=(
        "clear-mlflow identify RUN_ID 91.04 0.0312",
        "clear-mlflow identify matrix.csv 6.145 --scale percent --future not-tested",
    ),
)
def identify(**options: Any) -> None:
    """Print a table for each number, and the formulas in it."""
    results = identify_values(**options)
    if output.wants_json():
        output.print_json({"numbers": [result.to_dict() for result in results]})
        return
    formulas: dict[str, str] = {}
    for result in results:
        click.echo(f"{result}")
        lines = []
        for match in result.matches[:_MAX_LINES]:
            names = ", ".join(match.names)
            formulas[names] = match.formula
            lines.append((names, str(match.step), match.reading, f"{match.value:.6g}"))
        if lines:
            output.print_table(("definition", "step", "read as", "value"), lines)
        if result.matches[_MAX_LINES:]:
            click.echo(f"and {len(result.matches) - _MAX_LINES} more; --json lists all")
        click.echo()
    for names, formula in formulas.items():
        output.console().print(f"{names}: {formula}", markup=False, highlight=False)
    click.echo(
        "\nBy chance: matches to expect of a number that has nothing to do with the matrix,"
        "\nif it is equally likely anywhere within 5 % of the range of all values tried."
    )


identify.context_settings["ignore_unknown_options"] = True  # negative numbers are values
