"""``clear-mlflow evaluate``: re-score runs from their stored rows."""

from __future__ import annotations

import sys

import click

from clear_mlflow.config import NONE
from clear_mlflow.errors import ConfigError


@click.command()
@click.option(
    "--run-id",
    default=NONE,
    show_default=True,
    metavar="ID[,ID...]",
    help="The runs to score, by id.",
)
@click.option(
    "--experiment",
    default=NONE,
    show_default=True,
    metavar="NAME",
    help="All runs of an experiment, by its name or id.",
)
@click.option(
    "--filter",
    "filter_string",
    default=NONE,
    show_default=True,
    metavar="TEXT",
    help="Runs that MLflow's search finds, as \"params.strategy = 'replay'\".",
)
@click.option(
    "--only",
    type=click.Choice(["all", "unscored"]),
    default="all",
    show_default=True,
    help="unscored: leave out runs that have a score; alone, it takes all experiments.",
)
@click.option(
    "--dry-run",
    type=click.Choice(["yes", "no"]),
    is_flag=False,
    flag_value="yes",
    default="no",
    show_default=True,
    help="Say what would be done, and write nothing.",
)
def evaluate(run_id: str, experiment: str, filter_string: str, only: str, dry_run: str) -> None:
    """Rebuild the accuracy matrix of old runs from their rows and log what MLflow lacks.

    Scores are written into the scored runs. Running it twice changes nothing. The exit code is 2
    where a run could not be scored or lacks a row; the other runs are scored all the same.
    """
    run_ids = () if run_id == NONE else tuple(i.strip() for i in run_id.split(",") if i.strip())
    if run_id != NONE and (not run_ids or experiment != NONE or filter_string != NONE):
        raise ConfigError(
            f"run_id is {run_id!r} beside experiment {experiment!r} and filter {filter_string!r}; "
            "give run ids alone, or choose by experiment and filter"
        )
    if run_id == experiment == filter_string == NONE and only == "all":
        raise ConfigError(
            "no runs are chosen; pass run_id=ID, experiment=NAME, filter=TEXT, or only=unscored "
            "for all runs that lack a score"
        )

    from clear_mlflow.cli.output import print_verdicts
    from clear_mlflow.tracking.evaluate import Selection, select
    from clear_mlflow.tracking.evaluate import evaluate as evaluate_runs
    from clear_mlflow.tracking.evaluate_run import log_verdicts, mark_evaluate_run
    from clear_mlflow.tracking.preflight import bound_retries, preflight, quiet_mlflow

    bound_retries()
    quiet_mlflow()
    client = preflight(opens_run=False)
    own_run = mark_evaluate_run(client)
    selection = Selection(
        run_ids=run_ids,
        experiment=None if experiment == NONE else experiment,
        filter=None if filter_string == NONE else filter_string,
        unscored_only=only == "unscored",
    )
    dry = dry_run == "yes"
    verdicts = evaluate_runs(client, select(client, selection), named=bool(run_ids), dry_run=dry)
    print_verdicts(verdicts, dry_run=dry)
    if own_run and not dry:
        log_verdicts(client, own_run, verdicts)
    problems = [verdict for verdict in verdicts if verdict.is_problem]
    for verdict in problems:
        click.echo(f"error: run {verdict.run_id}: {verdict.detail}", err=True)
    if problems:
        sys.exit(2)
