"""The pages that MLflow's server shows, in the frame of :mod:`clear_mlflow.report.page`.

Addresses in them are relative, so they hold under any static prefix and behind any proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clear_mlflow.comparison import Comparison
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.page.wording import many, short
from clear_mlflow.report.page import rendered
from clear_mlflow.report.page.run_page import RunReport, run_page

_HERE = "clear_mlflow.server.page"


@dataclass(frozen=True)
class ListedExperiment:
    """An experiment that holds rows, and the newest run of it that does."""

    experiment_id: str
    name: str
    run_id: str
    run_name: str
    status: str
    started: str


@dataclass(frozen=True)
class Choice:
    """A run that may be ticked."""

    run_id: str
    name: str
    started: str
    details: tuple[str, ...]
    is_ticked: bool


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """What a live comparison is of, for the form that asks for another one."""

    experiment_id: str
    experiment: str
    workspace: str  # that the address names; empty: none
    wanted: str  # MLflow's filter
    group_by: str
    choices: tuple[Choice, ...]


def experiments_page(
    listed: Sequence[ListedExperiment],
    *,
    looked_at: int,
    workspace: str,
    next_token: str | None,
    footer: str,
) -> str:
    """The page of experiments.

    Args:
        listed: those that hold rows.
        looked_at: how many the listing had.
        workspace: that the address names; empty: none.
        next_token: of MLflow's listing, where there are more.
        footer: who made it.
    """
    return rendered(
        f"{_HERE}/experiments",
        title="Experiments with accuracy matrices",
        subtitle=f"{len(listed)} of {many(looked_at, 'experiment')}, the last changed first",
        warnings=(),
        footer=footer,
        data=None,
        experiments=[
            {
                "id": experiment.experiment_id,
                "name": short(experiment.name),
                "run_id": experiment.run_id,
                "run_name": short(experiment.run_name),
                "status": experiment.status,
                "started": experiment.started,
            }
            for experiment in listed
        ],
        workspace=workspace,
        next_token=next_token,
    )


def live_comparison_page(
    comparison: Comparison, *, title: str, footer: str, chooser: Chooser
) -> str:
    """The comparison's page, with a form that chooses what is compared.

    Args:
        comparison: what is shown.
        title: its heading; any text.
        footer: who made it, and when.
        chooser: what the form shows.
    """
    ticked = sum(choice.is_ticked for choice in chooser.choices)
    return comparison_page(
        comparison,
        title=title,
        footer=footer,
        over=f"{_HERE}/compare",
        chooser={
            "experiment_id": chooser.experiment_id,
            "workspace": chooser.workspace,
            "experiment": short(chooser.experiment),
            "filter": chooser.wanted,
            "group_by": chooser.group_by,
            "summary": f"{ticked} of {many(len(chooser.choices), 'run')} ticked",
            "choices": [
                {
                    "id": choice.run_id,
                    "name": short(choice.name),
                    "started": choice.started,
                    "details": ", ".join(choice.details),
                    "ticked": choice.is_ticked,
                }
                for choice in chooser.choices
            ],
        },
    )


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """A run among its neighbours, and how far it is."""

    run_id: str
    name: str
    experiment_id: str
    workspace: str  # that the address names; empty: none
    status: str
    state: str  # a short text that changes with the run
    is_followed: bool  # it is in training: the page asks for news


def live_run_page(report: RunReport, place: RunPlace) -> str:
    """A run's report, which loads itself anew when a row came.

    Args:
        report: what it shows.
        place: of the run.
    """
    return run_page(report, over=f"{_HERE}/run", place=_place(place))


def empty_run_page(place: RunPlace) -> str:
    """The page of a run that holds no row yet.

    Args:
        place: of the run.
    """
    return rendered(
        f"{_HERE}/no_rows",
        over=f"{_HERE}/run",
        title=short(place.name, 160),
        subtitle="No row of an accuracy matrix is stored in this run.",
        warnings=(),
        footer=f"Run {place.run_id}.",
        data=None,
        place=_place(place),
    )


def _place(place: RunPlace) -> dict[str, object]:
    return {
        "run_id": place.run_id,
        "experiment_id": place.experiment_id,
        "workspace": place.workspace,
        "status": place.status,
        "state": place.state,
        "followed": place.is_followed,
    }


def problem_page(message: str, status: int) -> str:
    """A refusal: one line.

    Args:
        message: what it says; any text.
        status: of the answer.
    """
    return rendered(
        f"{_HERE}/problem",
        title=f"Error {status}",
        subtitle=message,
        warnings=(),
        footer="",
        data=None,
    )
