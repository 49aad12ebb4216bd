"""``clear-mlflow evaluate``: re-score runs from their stored rows, and print the outcome."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.api.evaluate import evaluate as evaluate_runs
from clear_mlflow.api.evaluate import evaluate_each
from clear_mlflow.cli import output
from clear_mlflow.cli.command import METRICS, SELECTION, WORK, command
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.progress import can_show_bars
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.api.rescore import ScoringResult
    from clear_mlflow.scoring import Scores

_MAX_LISTED = 50  # longer lists contain only runs that have a problem or lack rows
_MAX_NAME_LENGTH = 100


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
    """Score runs one by one, and print what was done, also after Ctrl-C for the runs so far.

    Exits with code 2 if a run has a problem.
    """
    summary, is_done = Summary(dry_run=options["dry_run"]), False
    outcomes = []
    with interrupt_on_signal() as received:
        try:
            with suppress(KeyboardInterrupt):  # its signal is in received
                for result in _show_progress(evaluate_each(**options)):
                    summary.add(result)
                    if output.wants_json():
                        outcomes.append(result.to_dict())
                    if received:
                        break
                else:
                    is_done = True
        finally:  # if the search fails, earlier outcomes are printed
            if is_done or received or summary.results:
                summary.print(is_stopped=not is_done, only_problems=output.wants_json())
    if output.wants_json():
        output.print_json({"runs": outcomes, "dry_run": options["dry_run"]})
    elif not received:  # after a stop, the store may not answer
        from clear_mlflow.store.client import open_store

        scored = [run.run_id for run in summary.results if run.action in ("scored", "unchanged")]
        output.print_run_links(open_store(), scored[-2:])
    if received:
        sys.exit(128 + received[0])
    if any(run.is_problem for run in summary.results):
        sys.exit(2)


class Summary:
    """Counts what was done with the scored runs, and keeps the results to print.

    Attributes:
        results: what was done with each run, without its scores, which fill the memory.
    """

    def __init__(self, *, dry_run: bool) -> None:
        self.results: list[ScoringResult] = []
        self._dry_run = dry_run
        self._last_scores: Scores | None = None
        self._num_values = 0

    def add(self, result: ScoringResult) -> None:
        """Add the result of a run."""
        self._last_scores = result.scores
        if result.scores is not None:
            self._num_values += len(result.scores.changes.metric_values)
        self.results.append(replace(result, scores=None))

    def print(self, *, is_stopped: bool, only_problems: bool) -> None:
        """Print a table of results and totals to standard output, and problems to standard error.

        If there is only one run, its metrics are printed as well. is_stopped: True if not all runs
        were scored. only_problems: print nothing to standard output.
        """
        if not only_problems:
            with suppress(OSError):  # the reader of a pipe may have gone
                self._print_results()
                click.echo("; ".join(self._describe_totals(is_stopped)))
        for run in self.results:
            if run.is_problem:
                output.print_error(f"run {run.run_id}: {run.detail}")

    def _print_results(self) -> None:
        lists_all = len(self.results) <= _MAX_LISTED
        if self._last_scores is not None and len(self.results) == 1:
            output.print_scores(self._last_scores)
        rows = [
            (run.run_id, one_line(run.run_name, _MAX_NAME_LENGTH), run.action, run.detail)
            for run in self.results
            if lists_all or run.is_problem or run.is_partial
        ]
        if rows:
            output.print_table(("run", "name", "outcome", "detail"), rows)

    def _describe_totals(self, is_stopped: bool) -> Iterator[str]:
        """Yield parts of the last line: numbers of runs by action, of metric values, and so on."""
        actions = sorted(Counter(run.action for run in self.results).items())
        counts = ", ".join(f"{count} {action}" for action, count in actions)
        yield f"\n{counts or 'no run to score'}"
        yield f"{self._num_values} metric values {'would be logged' if self._dry_run else 'logged'}"
        if num_partial := sum(run.is_partial for run in self.results):
            yield f"{num_partial} runs lack rows"
        for metric, count in Counter(n for run in self.results for n in run.undefined).items():
            yield f"{metric} is undefined for {count} runs"
        if self._dry_run:
            yield "nothing was written (dry run)"
        if is_stopped:
            yield "stopped: the same command does the rest"


def _show_progress(results: Iterable[ScoringResult]) -> Iterator[ScoringResult]:
    """Yield the results unchanged. On a terminal, show the number of runs so far."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        disable=not can_show_bars(sys.stderr),
    ) as bars:
        task = bars.add_task("0 runs", total=None)
        for number, result in enumerate(results, start=1):
            yield result
            bars.update(task, description=f"{number} runs")
