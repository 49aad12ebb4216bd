"""What ``clear-mlflow evaluate`` shows: how far it is, and what became of the runs."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clear_mlflow.cli.output import print_scores
from clear_mlflow.cli.terminal import console
from clear_mlflow.core.text import NOT_MEASURED, one_line
from clear_mlflow.evaluation.rescore import ScoringResult
from clear_mlflow.learning.progress import can_show_bars

# Runs that have a line each; of more, only those with problems and those that lack rows have one.
_ALL_SHOWN = 50
_MOST_SHOWN = 1000
_LONGEST_NAME = 100  # characters of a run's name
# What several runs are ranked by, and what is shown beside it.
_RANKING = ("clear/challenge_score", "renate/average_accuracy", "renate/forgetting")


class Summary:
    """Counts of what became of runs, and the few verdicts that are shown; never all of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[ScoringResult] = []
        self._first: list[tuple[ScoringResult, Sequence[float | None]]] = []
        self._only: ScoringResult | None = None  # with its scores, while it is the only one
        self._values = 0
        self._notable: list[tuple[ScoringResult, Sequence[float | None]]] = []
        self._num_partial = 0
        self._num_problems = 0
        self._from_tags = 0
        self._undefined: Counter[str] = Counter()  # a user's own metric to runs without its value

    def add(self, verdict: ScoringResult) -> None:
        """Count a run."""
        self.counts[verdict.action] += 1
        self._only = verdict if self.counts.total() == 1 else None
        light = verdict.without_scores()
        summary = {} if verdict.scores is None else verdict.scores.summary
        shown = light, [summary.get(name) for name in _RANKING]
        if verdict.scores is not None:
            self._values += len(verdict.scores.plan.points)
            self._from_tags += verdict.scores.from_tag
        if len(self._first) <= _ALL_SHOWN:
            self._first.append(shown)
        self._num_partial += verdict.is_partial
        self._undefined.update(verdict.undefined)
        if (verdict.is_problem or verdict.is_partial) and len(self._notable) < _MOST_SHOWN:
            self._notable.append(shown)
        if verdict.is_problem:
            self._num_problems += 1
            if len(self.problems) < _MOST_SHOWN:
                self.problems.append(light)

    @property
    def is_well(self) -> bool:
        """Whether nobody needs to look at any run."""
        return self._num_problems == 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in sorted(self.counts.items()))
        return counts or "no runs"

    def show(self, *, dry_run: bool, stopped: bool) -> None:
        """Print a line for each run or each problem, the scores where there is but one run."""
        out = console()
        with suppress(OSError):  # whoever reads this may have gone
            self._show(out, dry_run, stopped)
        for verdict in self.problems:
            click.echo(f"error: {one_line(f'run {verdict.run_id}: {verdict.detail}')}", err=True)
        if self._num_problems > len(self.problems):
            more = self._num_problems - len(self.problems)
            click.echo(f"error: {more} more runs have problems", err=True)

    def _show(self, out: Console, dry_run: bool, stopped: bool) -> None:
        if self._only is not None and self._only.scores is not None:
            print_scores(self._only.scores, out)
        if self.counts:
            out.print(_table(self._first if len(self._first) <= _ALL_SHOWN else self._notable))
        done = "would be logged" if dry_run else "logged"
        out.print(f"\n{self}; {self._values} metric values {done}", highlight=False, end="")
        if self._num_partial:
            out.print(f"; {self._num_partial} runs lack rows", highlight=False, end="")
        for metric, number in self._undefined.items():
            out.print(f"; {number} runs have no {metric}", highlight=False, end="", markup=False)
        if self._from_tags:
            out.print(f"; {self._from_tags} matrices from tags", highlight=False, end="")
        if dry_run:
            out.print("; nothing was written (dry run)", end="")
        if stopped:
            out.print("; stopped: the same command does the rest", end="")
        out.print()


def _table(runs: Sequence[tuple[ScoringResult, Sequence[float | None]]]) -> Table:
    """A line for each run, the best first; of one run the values stand above."""
    ranked = len(runs) > 1 and any(value is not None for _, values in runs for value in values)
    table = Table("run", "name", box=None, pad_edge=False)
    for name in _RANKING if ranked else ():
        table.add_column(name.replace("/", "/\n"), justify="right")
    table.add_column("verdict")
    table.add_column("detail")
    best_first = sorted(runs, key=lambda run: -math.inf if run[1][0] is None else run[1][0])[::-1]
    for verdict, values in best_first if ranked else runs:
        numbers = [NOT_MEASURED if value is None else f"{value:.4f}" for value in values]
        cells = (
            verdict.run_id,
            one_line(verdict.run_name, _LONGEST_NAME),
            *(numbers if ranked else ()),
            verdict.action,
            one_line(verdict.detail),
        )
        table.add_row(*map(Text, cells))
    return table


def shown_while(
    verdicts: Iterable[ScoringResult], summary: Summary, total: int | None
) -> Iterator[ScoringResult]:
    """Pass verdicts on; on a terminal, beside a bar with the counts so far.

    Args:
        verdicts: of the runs, as they come.
        summary: whose counts are shown; the caller adds each verdict to it.
        total: runs in all, where that is known.
    """
    bars = Progress(
        TextColumn("runs"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not can_show_bars(sys.stderr),
    )
    with bars:
        task = bars.add_task("none yet", total=total)
        for verdict in verdicts:
            yield verdict
            bars.update(task, description=str(summary), advance=1)
