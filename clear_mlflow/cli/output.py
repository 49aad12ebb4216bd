"""Print results to standard output, and errors to standard error."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from clear_mlflow.cli.command import build_option, spell_error
from clear_mlflow.core.score import ACCURACY, format_significant
from clear_mlflow.core.text import format_count, one_line, printable
from clear_mlflow.process.streams import open_output

if TYPE_CHECKING:
    from rich.console import Console

    from clear_mlflow.comparison.result import Comparison
    from clear_mlflow.scoring import ActionResult, Scores
    from clear_mlflow.store.client import MlflowClient
    from clear_mlflow.tracking.lifecycle import RunResult


# Links and verdicts are read by programs, too: they are never wrapped when piped.
_PIPED_WIDTH = 200
_TABLE_WIDTH = 80
_LONGEST_NAME = 150  # of a run
_LONGEST_CELL = 2000  # characters; a file's path below a folder has 255 and more
_JSON_FILE = "clear_mlflow.json_file"  # key of a context's meta: the file that --json prints to


def _reserve_stdout_for_json(context: click.Context, _: click.Parameter, is_passed: bool) -> None:
    """Reserve standard output for :func:`print_json`, if --json was passed.

    All other output goes to standard error, also from C libraries and child processes.
    """
    if not is_passed:
        return
    stdout: IO[str] = sys.stdout
    with suppress(OSError, AttributeError):  # in tests it is not a file; if closed, None
        descriptor = stdout.fileno()
        stdout = context.with_resource(open_output(os.dup(descriptor), "utf-8"))
        context.call_on_close(partial(os.dup2, stdout.fileno(), descriptor))
        os.dup2(2, descriptor)
    context.with_resource(redirect_stdout(sys.stderr))
    context.meta[_JSON_FILE] = stdout


# Not passed to the command, which calls wants_json().
JSON_OPTION = build_option(
    "json",
    is_flag=True,
    expose_value=False,
    callback=_reserve_stdout_for_json,
    help="Print JSON for programs, and nothing else; see docs/json.md.",
)


def wants_json() -> bool:
    """Return True if the running command was called with --json.

    Raises RuntimeError outside a command.
    """
    return _JSON_FILE in click.get_current_context().meta


def print_json(content: object) -> None:
    """Print an object as JSON, in a command called with --json.

    Raises ValueError if it contains NaN or infinity.
    """
    out = click.get_current_context().meta[_JSON_FILE]
    click.echo(json.dumps(content, indent=2, allow_nan=False), file=out)


def build_console() -> Console:
    """Return a rich console, 200 characters wide without a terminal.

    In a terminal, it is at least as wide as the tables, whose numbers rich would cut: the terminal
    breaks their lines instead.
    """
    from rich.console import Console

    # Names of runs may contain what rich takes for its markup.
    create = partial(Console, markup=False, emoji=False, highlight=False)
    if not sys.stdout.isatty():
        return create(width=_PIPED_WIDTH)
    console = create()
    return console if console.width >= _TABLE_WIDTH else create(width=_TABLE_WIDTH)


def print_error(message: str, parameter: str | None = None) -> None:
    """Print "error: " and a message in one line to standard error.

    Advice is printed with options of the running command: data_root=DIR as --data-root DIR.
    parameter: name of the parameter that the error is about, or None.
    """
    with suppress(OSError):
        click.echo(f"error: {one_line(spell_error(message, parameter))}", err=True)


def print_run_result(result: RunResult) -> None:
    """Print the matrix, metrics, status and links of an ended run.

    Its error, if any, is printed to standard error.
    """
    # The reader of a pipe may have gone (head, for example); the exit code stays the same.
    with suppress(OSError):
        if result.scores is not None:
            print_scores(result.scores)
        completed = {s: m.scores for s, m in result.members.items() if m.scores and not m.exit_code}
        if completed:
            _print_members(completed)
        if result.run_id is not None and not result.has_lost_lease:
            where = " (not stored yet)" if result.unsent else ""
            click.echo(f"run {result.run_id} {result.status}{where}")
        if result.note is not None:
            click.echo(result.note)
        print_links(result.links)
    if result.error:
        print_error(result.error)


def print_actions(
    results: Sequence[ActionResult],
    totals: Iterable[str] = (),
    *,
    empty: str,
    is_stopped: bool,
    max_listed: float = math.inf,
) -> None:
    """Print a table of what was done with runs, and totals.

    empty: the line without results. is_stopped: True if Ctrl-C ended the command early. max_listed:
    of more results, the table has those with a problem and those that lack rows.
    """
    has_sources = any(result.source for result in results)
    rows = [
        (*([result.source] if has_sources else []), *_list_cells(result))
        for result in results
        if len(results) <= max_listed or result.is_problem or result.is_partial
    ]
    if rows:
        heads = ("run", "name", "outcome", "detail")
        print_table(("file", *heads) if has_sources else heads, rows)
    actions = sorted(Counter(result.action for result in results).items())
    counts = ", ".join(f"{count} {action}" for action, count in actions)
    stopped = ["stopped: the same command does the rest"] if is_stopped else []
    click.echo(f"\n{'; '.join([counts or empty, *totals, *stopped])}")


def _list_cells(result: ActionResult) -> tuple[str, ...]:
    name = one_line(result.run_name, _LONGEST_NAME)
    return result.run_id or "", name, result.action, spell_error(result.detail, result.parameter)


def print_action(result: ActionResult) -> None:
    """Print what was done with a run in one line.

    It goes to standard error if the run is not in the store.
    """
    is_copy = re.fullmatch("[0-9a-f]{32}", result.source)  # the id of the run that was copied
    name = result.source if is_copy else result.run_id
    detail = result.detail
    if is_copy:
        has_copy = result.run_id and result.action != "in use"
        action = f"{result.action}, as run {result.run_id}" if has_copy else result.action
        detail = f"{action}; {detail}".removesuffix("; ")
    line = one_line(f"run {name}: {detail}" if name else f"{result.source}: {detail}")
    click.echo(line, err=result.action in ("failed", "in use"))


def print_comparison(comparison: Comparison) -> None:
    """Print the leaderboard, and which differences between methods are significant."""
    # Imported here: other output needs neither pandas nor scipy.
    from clear_mlflow.comparison.terminal import render_comparison

    for part in render_comparison(comparison):
        build_console().print(part)


def print_links(lines: Iterable[str]) -> None:
    """Print lines with URLs, without characters that could control a terminal."""
    for line in lines:
        click.echo(printable(line))


def print_run_links(client: MlflowClient, run_ids: Sequence[str]) -> None:
    """Print how to open a run, or the experiment of several.

    That is a URL, or a command if the store is not a server. Prints nothing without runs. Raises
    TrackingError if the last run cannot be read.
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


def print_scores(scores: Scores) -> None:
    """Print a run's accuracy matrix and metrics, if rows are stored."""
    if scores.record is None:
        return
    from clear_mlflow.report.terminal_tables import render_run

    for part in (*render_run(scores.record, scores.results.values()), ""):
        build_console().print(part)


def _print_members(members: Mapping[int, Scores]) -> None:
    """Print mean, sample standard deviation and range over an ensemble's members.

    members: results by seed. Metrics that not all members have are left out. The deviation of a
    single member is "-".
    """
    import pandas as pd

    values = pd.DataFrame([scores.results.values_by_name for scores in members.values()])
    summary = values.dropna(axis="columns").agg(["mean", "std", "min", "max"])
    lines = []
    for name, numbers in summary.items():
        is_cost = name.startswith("cost/")
        format_number = partial(format_significant, digits=4) if is_cost else ACCURACY.format_metric
        cells = ["-" if math.isnan(number) else format_number(number) for number in numbers]
        lines.append([name, *cells])
    print_table(
        ("metric", "mean", "std", "min", "max"),
        lines,
        numbers_from=1,
        title=f"{format_count(len(members), 'member: seed', 'members: seeds')} "
        f"{', '.join(map(str, members))}",
    )
    click.echo()


def print_table(
    heads: Sequence[str],
    lines: Iterable[Iterable[str]],
    *,
    numbers_from: int | None = None,
    title: str | None = None,
) -> None:
    """Print a table without borders. Each cell is one short line.

    numbers_from: index of the first column that is aligned to the right, or None if no column is.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False, title=title)
    for line in lines:
        table.add_row(*(Text(one_line(cell, _LONGEST_CELL)) for cell in line))
    for column in table.columns[len(heads) if numbers_from is None else numbers_from :]:
        column.justify = "right"
    build_console().print(table)
