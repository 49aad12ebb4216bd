"""Print results to standard output, and errors to standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import IO, TYPE_CHECKING

import click

from clear_mlflow.cli.command import build_option, spell_options
from clear_mlflow.core.text import one_line, printable
from clear_mlflow.process.streams import open_output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clear_mlflow.comparison.build import Comparison
    from clear_mlflow.scoring import Scores
    from clear_mlflow.store.client import MlflowClient
    from clear_mlflow.tracking.lifecycle import RunResult


# Links and verdicts are read by programs, too: they are never wrapped when piped.
_PIPED_WIDTH = 200
_LONGEST_CELL = 2000  # characters; a file's path below a folder has 255 and more
_JSON_FILE = "clear_mlflow.json_file"  # key of a context's meta: the file that --json prints to


@contextmanager
def _redirect_stdout() -> Iterator[IO[str]]:
    """Yield a file that writes to standard output, and redirect all other output to stderr.

    Output of C libraries and child processes is redirected, too. Restored at the end.
    """
    with ExitStack() as stack:
        stdout: IO[str] = sys.stdout
        with suppress(OSError, AttributeError):  # in tests it is not a file; if closed, None
            descriptor = stdout.fileno()
            stdout = stack.enter_context(open_output(os.dup(descriptor), "utf-8"))
            stack.callback(os.dup2, stdout.fileno(), descriptor)
            os.dup2(2, descriptor)
        with redirect_stdout(sys.stderr):
            yield stdout


def _reserve_stdout_for_json(context: click.Context, _: click.Parameter, is_passed: bool) -> None:
    """If --json was passed, reserve standard output for :func:`print_json` until the command ends.

    Everything else that is printed goes to standard error.
    """
    if is_passed:
        context.meta[_JSON_FILE] = context.with_resource(_redirect_stdout())


# Not passed to the command, which calls wants_json().
JSON_OPTION = build_option(
    "json",
    is_flag=True,
    expose_value=False,
    callback=_reserve_stdout_for_json,
    help="Print JSON for programs, and nothing else; see docs/json.md.",
)


def wants_json() -> bool:
    """Return True if the running command was called with --json."""
    return _JSON_FILE in click.get_current_context().meta


def print_json(content: object) -> None:
    """Print an object as JSON to standard output. The command must have been called with --json."""
    out = click.get_current_context().meta[_JSON_FILE]
    click.echo(json.dumps(content, indent=2, allow_nan=False), file=out)


def console() -> Console:
    """Return a rich console for standard output, 200 characters wide if it is not a terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPED_WIDTH)


def print_error(message: str) -> None:
    """Print a message in one line to standard error. Options are spelled as they are typed."""
    with suppress(OSError):
        click.echo(f"error: {one_line(spell_options(message))}", err=True)


def print_run_result(outcome: RunResult) -> None:
    """Print the matrix, metrics, status and links of a run that has ended.

    Its error, if any, is printed to standard error.
    """
    # Whoever reads this may have gone (a pipe into head); how the run ended stays true.
    with suppress(OSError):
        if outcome.scores is not None:
            print_scores(outcome.scores, console())
        if outcome.members:
            console().print(_build_members_table(outcome.members), "")
        if outcome.run_id is not None and not outcome.has_lost_lease:
            where = " (not stored yet)" if outcome.unsent else ""
            click.echo(f"run {outcome.run_id} {outcome.status}{where}")
        if outcome.note is not None:
            click.echo(outcome.note)
        print_links(outcome.links)
    if outcome.error:
        print_error(outcome.error)


def print_comparison(comparison: Comparison, out: Console) -> None:
    """Print the leaderboard, and which differences between methods are significant."""
    # Imported here: it needs scipy's tests, and what else is printed does not.
    from clear_mlflow.comparison.terminal_summary import comparison_text

    for part in comparison_text(comparison):
        out.print(part)


def print_links(lines: Iterable[str]) -> None:
    """Print lines with URLs, without characters that could control a terminal."""
    for line in lines:
        click.echo(printable(line))


def print_run_links(client: MlflowClient, run_ids: Sequence[str]) -> None:
    """Print the URLs of a run, or of several runs, the URL of the last one's experiment.

    Prints nothing if there are no runs. Raises TrackingError if the run cannot be read.
    """
    from clear_mlflow.store.client import mlflow_errors
    from clear_mlflow.store.ui_urls import format_run_links

    if not run_ids:
        return
    with mlflow_errors(f"look at run {run_ids[-1]}"):
        run = client.get_run(run_ids[-1])
        lines = format_run_links(client, run, is_only_run=len(run_ids) == 1)
    with suppress(OSError):
        click.echo()
        print_links(lines)


def print_scores(scores: Scores, out: Console) -> None:
    """Print a run's accuracy matrix and metrics. Prints nothing if it has no rows."""
    if scores.record is None:
        return
    from clear_mlflow.report.terminal_tables import run_text

    for part in (*run_text(scores.record, scores.results.values()), ""):
        out.print(part)


def _build_members_table(members: Mapping[int, Scores]) -> Table:
    """Return a table of each metric's mean, deviation and range over an ensemble's members.

    members: results by seed. Metrics that not all members have are left out.
    """
    import pandas as pd

    values = pd.DataFrame([scores.results.values_by_name for scores in members.values()])
    summary = values.dropna(axis="columns").agg(["mean", "std", "min", "max"])
    lines = [
        (name, *("-" if math.isnan(number) else f"{number:.4f}" for number in numbers))
        for name, numbers in summary.items()
    ]
    table = build_text_table(("metric", "mean", "std", "least", "most"), lines, numbers_from=1)
    table.title = f"{len(members)} members: seeds {', '.join(map(str, members))}"
    return table


def build_text_table(
    heads: Sequence[str], lines: Iterable[Iterable[str]], *, numbers_from: int | None = None
) -> Table:
    """Return a table without borders. Each cell is shortened to one line, without markup.

    numbers_from: index of the first column that is aligned to the right; None: no column is.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*(Text(one_line(cell, _LONGEST_CELL)) for cell in line))
    for column in table.columns[len(heads) if numbers_from is None else numbers_from :]:
        column.justify = "right"
    return table
