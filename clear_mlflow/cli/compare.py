"""``clear-mlflow compare`` and ``show``: print a comparison of runs, or one run."""

from __future__ import annotations

from typing import Any

import click

from clear_mlflow.api.compare import compare as compare_runs
from clear_mlflow.cli.from_function import command
from clear_mlflow.cli.options import COMPARISON, METRICS, SELECTION, json_option, wants_json


@command(
    compare_runs,
    arguments={"runs": "[RUN|EXPERIMENT|BUNDLE]..."},
    headings={
        SELECTION: ("runs", "filter"),
        COMPARISON: (
            *("group_by", "rank_by", "lower_is_better", "baseline", "margin", "at_equal"),
        ),
        METRICS: ("metrics",),
    },
    omit=("log",),
    examples=(
        "clear-mlflow compare first",
        "clear-mlflow compare RUN_ID RUN_ID bundles/",
        "clear-mlflow compare first --group-by strategy,memory --baseline naive",
        "clear-mlflow compare first --margin 1",
    ),
    is_entry_point=True,
)
@json_option
def compare(**options: Any) -> None:
    """Compare runs, store the comparison, and print it."""
    from clear_mlflow.cli.output import console, print_comparison, print_json, print_links

    compared = compare_runs(**options)
    if wants_json():
        print_json(compared.to_dict())
        return
    print_comparison(compared.comparison, console())
    click.echo()
    print_links(compared.links)


@command(
    arguments={"run": "RUN|BUNDLE"},
    examples=("clear-mlflow show RUN_ID", "clear-mlflow show RUN_ID --json"),
)
@json_option
def show(run: str) -> None:
    """Show a run's accuracy matrix, and each metric with its value or why it is undefined.

    Everything is computed from the run's artifacts; nothing is written.

    Args:
        run: id of a run or its first six digits or more, or path of a bundle.
    """
    from clear_mlflow.api.load import load
    from clear_mlflow.cli.output import console, print_json, print_links, print_scores

    stored_run = load(run)
    if wants_json():
        print_json(stored_run.to_dict())
        return
    stored_run.record  # noqa: B018  (raises if there are no rows, as --json does)
    click.echo(f"{stored_run.name} {stored_run.status}\n")
    print_scores(stored_run.scores, console())
    print_links(stored_run.links)
