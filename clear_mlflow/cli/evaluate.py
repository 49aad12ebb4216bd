"""``clear-mlflow evaluate``: re-score runs from their stored rows."""

from __future__ import annotations

import sys

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.interrupt import stoppable
from clear_mlflow.cli.options import (
    SELECTION,
    chosen_runs,
    dry_run_option,
    families_option,
    jobs_option,
    json_option,
    metric_option,
    option,
    run_selection_options,
    yes_or_no,
)
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.score import ACCURACY
from clear_mlflow.learning.parameters.recipes import AUTO

_FOREIGN = "Rows under names of their own"


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow evaluate RUN_ID",
        "clear-mlflow evaluate --experiment first --metrics gem,tic",
        "clear-mlflow evaluate --only unscored",
        "clear-mlflow evaluate --experiment first --metric lab:my_metric --dry-run",
    ),
)
@click.argument("runs", nargs=-1, metavar="[RUN|EXPERIMENT]...")
@run_selection_options
@option(
    "--only",
    ["all", "unscored"],
    "unscored: leave out runs that have scores; without another choice of runs, of all "
    "experiments.",
    under=SELECTION,
)
@families_option
@metric_option
@option(
    "--rows",
    "PATTERN",
    "Where runs of another program hold their rows, for example 'results/acc_after_{row}.json': "
    "these are first written as rows; see docs/import.md.",
    under=_FOREIGN,
)
@option(
    "--rows-scale",
    [AUTO, "fraction", "percent"],
    "Unit of their accuracies. auto: fractions; a value above 1 is refused.",
    under=_FOREIGN,
)
@option(
    "--rows-future",
    [AUTO, "tested", "not-tested"],
    "What zeros above the diagonal mean: tested with accuracy 0, or not tested. auto: zeros "
    "everywhere above it are refused.",
    under=_FOREIGN,
)
@option(
    "--rows-score",
    "NAME",
    "What their numbers are, where that is no accuracy, for example rmse.",
    default=ACCURACY.name,
    under=_FOREIGN,
)
@yes_or_no("--rows-lower-is-better", "Whether less of that score is better.", under=_FOREIGN)
@jobs_option
@dry_run_option
@json_option
def evaluate(
    runs: tuple[str, ...],
    run_id: tuple[str, ...] | None,
    experiment: str | None,
    filter_string: str | None,
    only: str,
    metrics: tuple[str, ...] | None,
    metric: tuple[str, ...] | None,
    rows: str | None,
    rows_scale: str,
    rows_future: str,
    rows_score: str,
    rows_lower_is_better: bool,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Rebuild the accuracy matrix of old runs from their rows and log what MLflow lacks.

    Scores are written into the scored runs. A second call changes nothing. A call that was stopped
    can be repeated and does the rest. A run that cannot be scored stops no other.
    """
    selected = chosen_runs(runs, run_id, experiment)

    from clear_mlflow.api.evaluate import evaluate_each
    from clear_mlflow.api.load import open_store
    from clear_mlflow.cli.output import print_json, print_places
    from clear_mlflow.cli.scoring_output import Summary, shown_while

    results = evaluate_each(
        selected,
        filter=filter_string,
        unscored_only=only == "unscored",
        metrics=(*(metrics or ()), *(metric or ())),
        rows=rows,
        rows_scale=rows_scale,
        rows_future=rows_future,
        rows_score=rows_score,
        rows_lower_is_better=rows_lower_is_better,
        jobs=jobs or "auto",
        dry_run=dry_run,
    )
    total = len(selected) if isinstance(selected, tuple) else None
    summary, entries = Summary(), []
    with stoppable() as received:
        failure: ClearError | None = None
        try:
            for result in shown_while(results, summary, total):
                summary.add(result)
                if as_json:
                    entries.append(result.to_dict())
                if received:
                    break
        except KeyboardInterrupt:
            pass  # it is among those received
        except ClearError as error:  # the listing broke off; what was done is shown all the same
            failure = error
        if failure is None or summary.counts:
            summary.show(dry_run=dry_run, stopped=bool(received or failure), printed=not as_json)
        if failure is not None:
            raise failure
    if as_json:
        print_json({"runs": entries, "dry_run": dry_run})
    elif not received:  # a store that does not answer is not asked again
        print_places(open_store(), summary.last_runs)
    if received:
        sys.exit(128 + received[0])
    if summary.num_problems:
        sys.exit(2)
