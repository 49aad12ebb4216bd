"""What ``clear-mlflow evaluate`` shows: how far it is, and what became of the runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clear_mlflow.api.rescore import ScoringResult
from clear_mlflow.cli.help import spell_options
from clear_mlflow.cli.output import console, plain_table, print_scores
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.progress import can_show_bars

if TYPE_CHECKING:
    from clear_mlflow.scoring import Scores

# Runs that have a line each; of more, only those with problems and those that lack rows have one.
_ALL_SHOWN = 50
_MOST_SHOWN = 1000
_LONGEST_NAME = 100  # characters of a run's name


class Summary:
    """Counts of what became of runs, and the few verdicts that are shown; never all of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_problems = 0
        self.last_runs: list[str] = []  # that hold scores: the last two
        self._kept: list[ScoringResult] = []  # the first runs, and all that are to be looked at
        self._scores: Scores | None = None  # of the last run
        self._values = self._num_partial = 0
        self._undefined: Counter[str] = Counter()  # a user's own metric to runs without its value

    def add(self, verdict: ScoringResult) -> None:
        """Count a run."""
        self.counts[verdict.action] += 1
        if verdict.action in ("scored", "unchanged"):
            self.last_runs = [*self.last_runs[-1:], verdict.run_id]
        self._scores = verdict.scores
        if verdict.scores is not None:
            self._values += len(verdict.scores.changes.points)
        self._num_partial += verdict.is_partial
        self.num_problems += verdict.is_problem
        self._undefined.update(verdict.undefined)
        if len(self._kept) < (_MOST_SHOWN if _is_notable(verdict) else _ALL_SHOWN):
            self._kept.append(replace(verdict, scores=None))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in sorted(self.counts.items()))
        return counts or "no run is to be scored"

    def show(self, *, dry_run: bool, stopped: bool, printed: bool = True) -> None:
        """A line for each run or problem, one run's scores; unless *printed*, problems alone."""
        are_few = self.counts.total() <= _ALL_SHOWN
        shown = [run for run in self._kept if are_few or _is_notable(run)]
        if printed:
            self._print(shown, dry_run, stopped)
        problems = [run for run in shown if run.is_problem]
        for run in problems:
            detail = spell_options(run.detail)
            click.echo(f"error: {one_line(f'run {run.run_id}: {detail}')}", err=True)
        if more := self.num_problems - len(problems):
            click.echo(f"error: {more} more runs have problems", err=True)

    def _print(self, shown: Sequence[ScoringResult], dry_run: bool, stopped: bool) -> None:
        with suppress(OSError):  # whoever reads this may have gone
            if self._scores is not None and self.counts.total() == 1:
                print_scores(self._scores, console())
            if shown:
                lines = [
                    (run.run_id, one_line(run.run_name, _LONGEST_NAME), run.action, run.detail)
                    for run in shown
                ]
                console().print(plain_table(("run", "name", "verdict", "detail"), lines))
            click.echo("; ".join(self._counted(dry_run, stopped)))

    def _counted(self, dry_run: bool, stopped: bool) -> Iterator[str]:
        yield f"\n{self}"
        yield f"{self._values} metric values {'would be logged' if dry_run else 'logged'}"
        if self._num_partial:
            yield f"{self._num_partial} runs lack rows"
        for metric, number in self._undefined.items():
            yield f"{number} runs have no {metric}"
        if dry_run:
            yield "nothing was written (dry run)"
        if stopped:
            yield "stopped: the same command does the rest"


def _is_notable(verdict: ScoringResult) -> bool:
    return verdict.is_problem or verdict.is_partial


def shown_while(
    verdicts: Iterable[ScoringResult], summary: Summary, total: int | None
) -> Iterator[ScoringResult]:
    """Pass verdicts on; on a terminal, beside a bar with the counts so far."""
    if not can_show_bars(sys.stderr):
        yield from verdicts
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        task = bars.add_task("none yet", total=total)
        for verdict in verdicts:
            yield verdict
            bars.update(task, description=f"runs: {summary}", advance=1)
