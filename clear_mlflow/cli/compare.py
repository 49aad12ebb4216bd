"""``clear-mlflow compare``: runs side by side, and whether a difference is real."""

from __future__ import annotations

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import (
    COMPARISON,
    comparison_options,
    families_option,
    metric_option,
    names,
    option,
    run_selection_options,
)
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.values import number
from clear_mlflow.metrics import DEFAULT_FAMILIES, Metric, of_families
from clear_mlflow.metrics._user import load_own_metrics


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow compare --experiment first",
        "clear-mlflow compare RUN_ID RUN_ID RUN_ID",
        "clear-mlflow compare --experiment first --group-by strategy,memory --baseline naive",
        "clear-mlflow compare --experiment first --margin 1",
    ),
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@run_selection_options
@comparison_options
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
def compare(
    runs: tuple[str, ...],
    run_id: tuple[str, ...] | None,
    experiment: str | None,
    filter_string: str | None,
    group_by: tuple[str, ...] | None,
    rank_by: str | None,
    metrics: tuple[str, ...] | None,
    metric: tuple[str, ...] | None,
    baseline: str | None,
    margin: float | None,
) -> None:
    """Set runs side by side: a leaderboard, matrices, curves, and which differences are real.

    Opens a run in the experiment of the compared ones that holds it all: one page, a table and
    pictures. Runs tested on other data or by another protocol are grouped apart and never tested
    against each other.
    """
    run_ids = (*(names(",".join(runs)) if runs else ()), *(run_id or ()))
    if bool(run_ids) == bool(experiment or filter_string):
        raise ConfigError(
            f"{len(run_ids)} runs are named beside experiment {experiment!r} and filter "
            f"{filter_string!r}; name runs, or choose by experiment and filter"
        )
    group_by = ("strategy", "dataset") if group_by is None else group_by
    families = of_families(dict.fromkeys((*DEFAULT_FAMILIES, *(metrics or ()))))
    own = _own_metrics(metric or ())

    from clear_mlflow.api.compare import read_comparison, write_comparison
    from clear_mlflow.cli.output import console, print_comparison, print_links
    from clear_mlflow.grids.next_grids import next_grids
    from clear_mlflow.store.client import preflight, set_up_mlflow
    from clear_mlflow.store.names import KIND_COMPARE
    from clear_mlflow.store.search import Selection, mark_run_of_project, select
    from clear_mlflow.store.ui_urls import comparison_links

    set_up_mlflow()
    client = preflight(opens_run=False)
    own_run = mark_run_of_project(client, KIND_COMPARE)
    selection = Selection(run_ids=run_ids, experiment=experiment, filter=filter_string)
    comparison, left_out, experiment_id = read_comparison(
        client,
        select(client, selection),
        group_by=group_by,
        rank_by=rank_by,
        metrics=(*families, *own),
        baseline=baseline,
        margin=margin,
        named=bool(run_ids),
    )
    given = {
        "experiment": experiment,
        "filter": filter_string,
        "metrics": ",".join(metrics or ()),
        "metric": ",".join(metric or ()),
        "baseline": baseline,
        "margin": None if margin is None else f"{margin:.15g}",
    }
    run = write_comparison(
        client,
        comparison,
        left_out,
        experiment_id=experiment_id,
        run_id=own_run,
        params={
            "group_by": ",".join(group_by) or NONE,
            "rank_by": rank_by or AUTO,
            **{name: text for name, text in given.items() if text},
        },
        grids=next_grids(comparison),
    )
    print_comparison(comparison, console())
    click.echo()
    print_links(comparison_links(client, run))


def _own_metrics(named: tuple[str, ...]) -> tuple[Metric, ...]:
    """Those that the user named, of the matrix."""
    own = load_own_metrics(named)
    if own.predictions:
        raise ConfigError(
            f"metric {own.predictions[0].name} is computed from predictions, and runs are compared "
            "by metrics of the matrix; leave it out"
        )
    return own.matrix
