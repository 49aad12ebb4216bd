"""The command identify."""

from __future__ import annotations

from typing import Any

import click

from clear_mlflow.api.identify import identify as identify_values
from clear_mlflow.api.identify import is_number
from clear_mlflow.cli import output
from clear_mlflow.cli.command import command
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr

_MAX_MATCHES = 8  # printed for each number


@command(
    identify_values,
    arguments={"matrix": "FILE|RUN|BUNDLE", "values": "[FILE|RUN|BUNDLE]... VALUE..."},
    headings={"How a file is read": "format scale future orientation rows"},
    options=[output.JSON_OPTION],
    examples=(
        "clear-mlflow identify RUN_ID 91.04 0.0312",
        "clear-mlflow identify matrix.csv 6.145 --scale percent --future not-tested",
        'clear-mlflow identify a.csv b.csv c.csv "66.91 +- 1.20" --scale percent',
    ),
)
def identify(**options: Any) -> None:
    """Print a table for each number, and the formulas in it."""
    words = options.pop("values") or ()
    is_matrix = [not is_number(word) and word[:1] != "-" for word in words]
    num_matrices = [*is_matrix, False].index(False)
    options["matrix"] = [options["matrix"], *words[:num_matrices]]
    for word in words:
        if word[:2] == "--":  # click takes it as a value, like a negative number
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    if not words[num_matrices:]:
        raise ConfigError(
            f"got {' '.join(map(safe_repr, options['matrix']))} without a published number after "
            "it; pass one or more matrices, then numbers such as 6.145"
        )
    results = identify_values(values=words[num_matrices:], **options)
    if output.wants_json():
        output.print_json({"numbers": [result.to_dict() for result in results]})
        return
    formulas: dict[str, str] = {}
    for result in results:
        click.echo(f"{result}")
        lines = []
        for match in result.matches[:_MAX_MATCHES]:
            names = ", ".join(match.names)
            formulas[names] = match.formula
            lines.append((names, str(match.step), match.reading, match.number))
        if lines:
            output.print_table(("definition", "step", "read as", "value"), lines)
        if result.matches[_MAX_MATCHES:]:
            click.echo(f"and {len(result.matches) - _MAX_MATCHES} more; --json lists all")
        click.echo()
    for names, formula in formulas.items():
        output.build_console().print(f"{names}: {formula}")
    click.echo(
        "\nBy chance: listed matches to expect of a number that has nothing to do with the matrix,"
        "\nif it is equally likely anywhere within 5 % of the range of all values tried."
    )


identify.context_settings["ignore_unknown_options"] = True  # negative numbers are values
