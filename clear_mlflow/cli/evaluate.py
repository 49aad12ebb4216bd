"""``clear-mlflow evaluate``: re-score runs from their stored rows, and print the outcome."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.api.evaluate import evaluate as evaluate_runs
from clear_mlflow.api.evaluate import evaluate_each
from clear_mlflow.cli.from_function import command
from clear_mlflow.cli.help import spell_options
from clear_mlflow.cli.options import METRICS, SELECTION, WORK, json_option, wants_json
from clear_mlflow.cli.output import (
    build_text_table,
    console,
    print_json,
    print_run_links,
    print_scores,
)
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.progress import can_show_bars
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.api.rescore import ScoringResult
    from clear_mlflow.scoring import Scores

# Up to this many runs are all listed; of more runs, only problems and those that lack rows.
_MAX_LISTED = 50
_MAX_LISTED_PROBLEMS = 1000
_MAX_NAME_LENGTH = 100


@command(
    evaluate_runs,
    arguments={"runs": "[RUN|EXPERIMENT]..."},
    headings={
        SELECTION: ("runs", "filter", "unscored_only"),
        METRICS: ("metrics",),
        "Rows of another program": (
            *("rows", "rows_scale", "rows_future", "rows_score", "rows_lower_is_better"),
        ),
        WORK: ("jobs", "dry_run"),
    },
    examples=(
        "clear-mlflow evaluate RUN_ID",
        "clear-mlflow evaluate first --metrics gem,tic",
        "clear-mlflow evaluate --unscored-only",
        "clear-mlflow evaluate first --metrics lab:my_metric --dry-run",
    ),
    is_entry_point=True,
)
@json_option
def evaluate(**options: Any) -> None:
    """Score runs one by one, and print what was done, also after Ctrl-C for the runs so far.

    Exits with code 2 if a run has a problem.
    """
    summary, outcomes, dry_run = Summary(), [], options["dry_run"]
    with interrupt_on_signal() as received:
        failure: ClearError | None = None
        try:
            for result in _show_progress(evaluate_each(**options), summary):
                summary.add(result)
                if wants_json():
                    outcomes.append(result.to_dict())
                if received:
                    break
        except KeyboardInterrupt:
            pass  # its signal is in received
        except ClearError as error:  # the search failed; earlier outcomes are printed
            failure = error
        if failure is None or summary.counts:
            stopped = bool(received or failure)
            summary.print(dry_run=dry_run, stopped=stopped, only_problems=wants_json())
        if failure is not None:
            raise failure
    if wants_json():
        print_json({"runs": outcomes, "dry_run": dry_run})
    elif not received:  # after a stop, the store may not answer
        from clear_mlflow.api.load import open_store

        print_run_links(open_store(), summary.last_run_ids)
    if received:
        sys.exit(128 + received[0])
    if summary.num_problems:
        sys.exit(2)


class Summary:
    """Counts what was done with the scored runs, and keeps the results to print.

    Attributes:
        counts: number of runs by action.
        num_problems: number of runs that the user should look at.
        last_run_ids: ids of the last runs that have scores, two at most.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_problems = 0
        self.last_run_ids: list[str] = []
        self._listed: list[ScoringResult] = []
        self._last_scores: Scores | None = None
        self._num_values = self._num_partial = 0
        self._num_undefined: Counter[str] = Counter()  # by the name of a user's own metric

    def add(self, result: ScoringResult) -> None:
        """Count the result of a run."""
        self.counts[result.action] += 1
        if result.action in ("scored", "unchanged"):
            self.last_run_ids = [*self.last_run_ids[-1:], result.run_id]
        self._last_scores = result.scores
        if result.scores is not None:
            self._num_values += len(result.scores.changes.metric_values)
        self._num_partial += result.is_partial
        self.num_problems += result.is_problem
        self._num_undefined.update(result.undefined)
        if len(self._listed) < (_MAX_LISTED_PROBLEMS if _is_notable(result) else _MAX_LISTED):
            self._listed.append(replace(result, scores=None))  # scores of many runs fill the memory

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in sorted(self.counts.items()))
        return counts or "no run to score"

    def print(self, *, dry_run: bool, stopped: bool, only_problems: bool) -> None:
        """Print a table of results and totals to standard output, and problems to standard error.

        If there is only one run, its metrics are printed as well. only_problems: print nothing to
        standard output. stopped: True if the user stopped the command.
        """
        lists_all = self.counts.total() <= _MAX_LISTED
        results = [result for result in self._listed if lists_all or _is_notable(result)]
        if not only_problems:
            with suppress(OSError):  # the reader of a pipe may have gone
                self._print_results(results)
                click.echo("; ".join(self._describe_totals(dry_run, stopped)))
        problems = [result for result in results if result.is_problem]
        for result in problems:
            detail = spell_options(result.detail)
            click.echo(f"error: {one_line(f'run {result.run_id}: {detail}')}", err=True)
        if num_unlisted := self.num_problems - len(problems):
            click.echo(f"error: {num_unlisted} more runs have problems", err=True)

    def _print_results(self, results: Sequence[ScoringResult]) -> None:
        if self._last_scores is not None and self.counts.total() == 1:
            print_scores(self._last_scores, console())
        if results:
            rows = [
                (run.run_id, one_line(run.run_name, _MAX_NAME_LENGTH), run.action, run.detail)
                for run in results
            ]
            console().print(build_text_table(("run", "name", "outcome", "detail"), rows))

    def _describe_totals(self, dry_run: bool, stopped: bool) -> Iterator[str]:
        """Yield parts of the last line: numbers of runs by action, of metric values, and so on."""
        yield f"\n{self}"
        yield f"{self._num_values} metric values {'would be logged' if dry_run else 'logged'}"
        if self._num_partial:
            yield f"{self._num_partial} runs lack rows"
        for metric, num_runs in self._num_undefined.items():
            yield f"{metric} is undefined for {num_runs} runs"
        if dry_run:
            yield "nothing was written (dry run)"
        if stopped:
            yield "stopped: the same command does the rest"


def _is_notable(result: ScoringResult) -> bool:
    """Return True if a run has a problem or lacks rows."""
    return result.is_problem or result.is_partial


def _show_progress(results: Iterable[ScoringResult], summary: Summary) -> Iterator[ScoringResult]:
    """Yield the results unchanged. On a terminal, show a progress bar with the counts so far."""
    if not can_show_bars(sys.stderr):
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        task = bars.add_task("none yet", total=None)
        for result in results:
            yield result
            bars.update(task, description=f"runs: {summary}", advance=1)
