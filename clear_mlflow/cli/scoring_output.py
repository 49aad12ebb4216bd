"""What ``clear-mlflow evaluate`` shows: how far it is, and what became of the runs."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import click

from clear_mlflow.cli.output import console, plain_table, print_places, print_scores
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import NOT_MEASURED, one_line
from clear_mlflow.evaluation.rescore import ScoringResult
from clear_mlflow.learning.progress import can_show_bars
from clear_mlflow.metrics import name_of

if TYPE_CHECKING:
    from rich.table import Table

    from clear_mlflow.scoring.scores import Scores
    from clear_mlflow.store.client import MlflowClient

# Runs that have a line each; of more, only those with problems and those that lack rows have one.
_ALL_SHOWN = 50
_MOST_SHOWN = 1000
_LONGEST_NAME = 100  # characters of a run's name
# What several runs are ranked by, and what is shown beside it.
_CHALLENGE = "clear/challenge_score"
_RANKING = (_CHALLENGE, "renate/average_accuracy", "renate/forgetting")

_Ranked: TypeAlias = tuple[ScoringResult, Score, Sequence[float | None]]


class Summary:
    """Counts of what became of runs, and the few verdicts that are shown; never all of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_problems = 0
        self.last_runs: list[str] = []  # that hold scores: the last two
        self._kept: list[_Ranked] = []  # all of a few runs; of more, those to be looked at
        self._only: ScoringResult | None = None  # with its scores, while it is the only one
        self._values = self._num_partial = self._from_tags = 0
        self._undefined: Counter[str] = Counter()  # a user's own metric to runs without its value

    def add(self, verdict: ScoringResult) -> None:
        """Count a run."""
        self.counts[verdict.action] += 1
        if verdict.action in ("scored", "unchanged"):
            self.last_runs = [*self.last_runs[-1:], verdict.run_id]
        self._only = verdict if self.counts.total() == 1 else None
        summary: Mapping[str, float] = {}
        score = ACCURACY
        if verdict.scores is not None and verdict.scores.record is not None:
            summary, score = verdict.scores.summary, verdict.scores.record.matrix.score
        if verdict.scores is not None:
            self._values += len(verdict.scores.plan.points)
            self._from_tags += verdict.scores.from_tag
        self._num_partial += verdict.is_partial
        self.num_problems += verdict.is_problem
        self._undefined.update(verdict.undefined)
        if self.counts.total() == _ALL_SHOWN + 1:
            self._kept = [run for run in self._kept if _is_notable(run[0])]
        if not self._are_many or (_is_notable(verdict) and len(self._kept) < _MOST_SHOWN):
            values = [summary.get(name_of(name, score)) for name in _RANKING]
            self._kept.append((verdict.without_scores(), score, values))

    @property
    def _are_many(self) -> bool:
        return self.counts.total() > _ALL_SHOWN

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in sorted(self.counts.items()))
        return counts or "no runs"

    def show(self, *, dry_run: bool, stopped: bool) -> None:
        """Print a line for each run or each problem, the scores where there is but one run."""
        with suppress(OSError):  # whoever reads this may have gone
            self._show_tables()
            click.echo("; ".join(self._counted(dry_run, stopped)))
        problems = [verdict for verdict, *_ in self._kept if verdict.is_problem]
        for verdict in problems:
            click.echo(f"error: {one_line(f'run {verdict.run_id}: {verdict.detail}')}", err=True)
        if more := self.num_problems - len(problems):
            click.echo(f"error: {more} more runs have problems", err=True)

    def _show_tables(self) -> None:
        out = console()
        if self._only is not None and self._only.scores is not None:
            print_scores(self._only.scores, out)
        if self._kept:
            verdicts = (verdict for verdict, *_ in self._kept)
            lines = ((v.run_id, _short(v.run_name), v.action, v.detail) for v in verdicts)
            out.print(plain_table(("run", "name", "verdict", "detail"), lines))
        ranked = [] if self._are_many else self._kept
        for score in dict.fromkeys(score for _, score, _ in ranked):
            ranking = _ranking([run for run in ranked if run[1] == score], score)
            if ranking.row_count > 1:
                out.print()
                out.print(ranking)

    def _counted(self, dry_run: bool, stopped: bool) -> Iterator[str]:
        yield f"\n{self}"
        yield f"{self._values} metric values {'would be logged' if dry_run else 'logged'}"
        if self._num_partial:
            yield f"{self._num_partial} runs lack rows"
        for metric, number in self._undefined.items():
            yield f"{number} runs have no {metric}"
        if self._from_tags:
            yield f"{self._from_tags} matrices from tags"
        if dry_run:
            yield "nothing was written (dry run)"
        if stopped:
            yield "stopped: the same command does the rest"


def _ranking(runs: Iterable[_Ranked], score: Score) -> Table:
    """The runs of one score that have a value, the best first."""
    # The challenge was one of accuracies: it ranks no other score.
    used = [i for i, name in enumerate(_RANKING) if score.is_accuracy or name != _CHALLENGE]
    heads = [name_of(_RANKING[i], score).replace("/", "/\n") for i in used]
    scored = [run for run in runs if any(value is not None for value in run[2])]
    sign = 1 if score.higher_is_better else -1

    def rank(run: _Ranked) -> float:
        value = run[2][used[0]]
        return -math.inf if value is None else sign * value

    lines = []
    for verdict, _, values in sorted(scored, key=rank, reverse=True):
        shown = [math.nan if (value := values[i]) is None else value for i in used]
        numbers = [NOT_MEASURED if math.isnan(value) else score.number(value) for value in shown]
        lines.append((verdict.run_id, _short(verdict.run_name), *numbers))
    table = plain_table(("run", "name", *heads), lines)
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def _is_notable(verdict: ScoringResult) -> bool:
    return verdict.is_problem or verdict.is_partial


def _short(name: str) -> str:
    return one_line(name, _LONGEST_NAME)


def show_reevaluated(
    client: MlflowClient, tested: Iterable[tuple[str, Scores | ClearError]]
) -> int:
    """Print the new scores of each run id, or what went wrong, and give the exit code."""
    code, made = 0, []
    for run_id, scores in tested:
        if isinstance(scores, ClearError):
            click.echo(f"error: {one_line(f'run {run_id}: {scores}')}", err=True)
            code = 2
            continue
        print_scores(scores, console())
        click.echo(f"run {run_id}: its models tested again are run {scores.run_id}")
        made.append(scores.run_id)
    print_places(client, made)
    return code


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
