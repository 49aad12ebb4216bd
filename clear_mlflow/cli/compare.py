"""``clear-mlflow compare``: runs side by side, and whether a difference is real."""

from __future__ import annotations

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import (
    COMPARISON,
    chosen_runs,
    comparison_options,
    families_option,
    json_option,
    metric_option,
    option,
    run_selection_options,
)
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import number


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow compare first",
        "clear-mlflow compare RUN_ID RUN_ID bundles/",
        "clear-mlflow compare --experiment first --group-by strategy,memory --baseline naive",
        "clear-mlflow compare --experiment first --margin 1",
    ),
)
@click.argument("runs", nargs=-1, metavar="[RUN|EXPERIMENT|BUNDLE]...")
@run_selection_options
@comparison_options
@option(
    "--lower-is-better",
    [AUTO, "yes", "no"],
    "Direction of the metric in rank_by if it is your own function. auto: as the function's "
    "attribute lower_is_better declares.",
    under=COMPARISON,
)
@families_option
@metric_option
@option(
    "--baseline",
    "GROUP",
    "The group that all others are tested against, by its name or a label, for example naive. "
    "Choose it before you see results: then fewer comparisons are adjusted for.",
    under=COMPARISON,
)
@option(
    "--margin",
    "POINTS",
    "The largest difference that does not matter to you, in percentage points, or in the score's "
    "own unit. Verdicts then also say whether methods are equivalent within it.",
    under=COMPARISON,
    parse=number(above=0),
)
@option(
    "--at-equal",
    ("off", "training_flops", "images", "stored_bytes", "seconds"),
    "Compare only runs that cost the same within 1 % (docs/cost.md).",
    under=COMPARISON,
)
@json_option
def compare(
    runs: tuple[str, ...],
    run_id: tuple[str, ...] | None,
    experiment: str | None,
    filter_string: str | None,
    group_by: tuple[str, ...] | None,
    rank_by: str | None,
    lower_is_better: str,
    metrics: tuple[str, ...] | None,
    metric: tuple[str, ...] | None,
    baseline: str | None,
    margin: float | None,
    at_equal: str,
    as_json: bool,
) -> None:
    """Set runs side by side: a leaderboard, matrices, curves, and which differences are real.

    Opens a run in the experiment of the compared ones that holds it all: one page, a table and
    pictures. Runs tested on other data or by another protocol are grouped apart and never tested
    against each other.
    """
    selected = chosen_runs(runs, run_id, experiment)

    from clear_mlflow.api.compare import compare as compare_runs
    from clear_mlflow.cli.output import console, print_comparison, print_json, print_links

    compared = compare_runs(
        selected,
        filter=filter_string,
        group_by=AUTO if group_by is None else group_by,
        rank_by=rank_by or AUTO,
        lower_is_better="auto" if lower_is_better == AUTO else lower_is_better == "yes",
        metrics=(*(metrics or ()), *(metric or ())),
        baseline=baseline,
        margin=margin,
        at_equal=None if at_equal == "off" else at_equal,  # type: ignore[arg-type]
    )
    if as_json:
        print_json(compared.to_dict())
        return
    print_comparison(compared.comparison, console())
    click.echo()
    print_links(compared.links)
