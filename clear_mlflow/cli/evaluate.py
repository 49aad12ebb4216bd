"""``clear-mlflow evaluate``: compute metrics from stored rows, and print the outcome."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clear_mlflow.api.verbs import evaluate as evaluate_runs
from clear_mlflow.cli import output
from clear_mlflow.cli.command import METRICS, SELECTION, WORK, command
from clear_mlflow.core.text import format_count
from clear_mlflow.learning.progress import can_show_bars
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.scoring import ActionResult

_MAX_LISTED = 50


@command(
    evaluate_runs,
    arguments={"runs": "[RUN|EXPERIMENT]..."},
    headings={
        SELECTION: "runs filter unscored_only",
        METRICS: "metrics",
        "Rows of another program": (
            "rows rows_scale rows_future rows_orientation rows_score rows_lower_is_better"
        ),
        WORK: "jobs dry_run",
    },
    examples=(
        "clear-mlflow evaluate RUN_ID",
        "clear-mlflow evaluate first --metrics gem,tic",
        "clear-mlflow evaluate --unscored-only",
        "clear-mlflow evaluate first --metrics lab:my_metric --dry-run",
    ),
    options=[output.JSON_OPTION],
    is_entry_point=True,
)
def evaluate(**options: Any) -> None:
    """Score runs one by one, and print what was done.

    After Ctrl-C, prints the runs so far. Exits with code 2 if a run has a problem.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    results: list[ActionResult] = []
    num_values, is_done, is_json = 0, False, output.wants_json()
    outcomes = []
    scores = None
    bars = Progress(
        TextColumn("runs: {task.completed:.0f}"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        disable=not can_show_bars(sys.stderr),
    )
    task = bars.add_task("", total=None)
    with interrupt_on_signal() as received:
        try:
            with suppress(KeyboardInterrupt), bars:  # its signal is in received
                # The generator behind it, which yields each result as soon as it is known.
                for result in inspect.unwrap(evaluate_runs)(**options):
                    scores = result.scores
                    num_values += 0 if scores is None else len(scores.changes.metric_values)
                    if is_json:
                        outcomes.append(result.to_dict())
                    results.append(replace(result, scores=None))  # they fill the memory
                    bars.advance(task)
                    if received:
                        raise KeyboardInterrupt
                is_done = True
        finally:  # if the search fails, earlier results are printed
            if not is_json and (is_done or received or results):
                with suppress(OSError):  # the reader of a pipe may have gone
                    if scores is not None and len(results) == 1:
                        output.print_scores(scores)
                    print_results(results, num_values, options["dry_run"], is_stopped=not is_done)
            for run in results:
                if run.is_problem:
                    output.print_error(f"run {run.run_id}: {run.detail}", run.parameter)
    if is_json:
        output.print_json({"runs": outcomes, "dry_run": options["dry_run"]})
    elif not received:  # after a stop, the store may not answer
        from clear_mlflow.store.client import open_store

        scored = [str(r.run_id) for r in results if r.action in ("scored", "unchanged")]
        output.print_run_links(open_store(), scored[-2:])
    if received:
        sys.exit(128 + received[0])
    if any(run.is_problem for run in results):
        sys.exit(2)


def print_results(
    results: Sequence[ActionResult], num_values: int, dry_run: bool, *, is_stopped: bool
) -> None:
    """Print a table of results and a line of totals.

    Of more than 50 runs, the table has those with a problem and those that lack rows.

    num_values: number of metric values that were logged, or would be. is_stopped: True if not all
    runs were scored.
    """
    would_be = " would be" if dry_run else ""
    totals = [f"{format_count(num_values, 'metric value')}{would_be} logged"]
    if num_partial := sum(run.is_partial for run in results):
        totals.append(format_count(num_partial, "run lacks rows", "runs lack rows"))
    for metric, count in Counter(name for run in results for name in run.undefined).items():
        totals.append(f"{metric} is undefined for {format_count(count, 'run')}")
    if dry_run:
        totals.append("nothing was written (dry run)")
    output.print_actions(
        results, totals, empty="no run to score", is_stopped=is_stopped, max_listed=_MAX_LISTED
    )
