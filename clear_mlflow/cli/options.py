"""Options that several commands take: each is declared here, and read here, once.

One decorator gives a family of them to a command; the command's parameters have the names that
the decorator's docstring lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clear_mlflow.cli.help import Option
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.engines.ray_cluster import LOCAL
from clear_mlflow.learning.parameters.recipes import AUTO, NONE

_MOST_JOBS = 256

# Headings of the help.
SELECTION, WORK, COMPARISON = "Which runs", "How the work is done", "Comparison"
METRICS = "Metrics"

Command = TypeVar("Command", bound=Callable[..., Any])


def run_selection_options(command: Command) -> Command:
    """``--run-id``, ``--experiment`` and ``--filter``, as run_id, experiment, filter_string."""
    return _with(
        command,
        click.option(
            "--run-id",
            cls=Option,
            group=SELECTION,
            default=NONE,
            metavar="ID[,ID...]",
            help="The runs, by their ids.",
        ),
        click.option(
            "--experiment",
            cls=Option,
            group=SELECTION,
            default=NONE,
            metavar="NAME",
            help="All runs of an experiment, by its name or id.",
        ),
        click.option(
            "--filter",
            "filter_string",
            cls=Option,
            group=SELECTION,
            default=NONE,
            metavar="TEXT",
            help="Runs that MLflow's search finds, for example \"params.strategy = 'replay'\".",
        ),
    )


def engine_options(command: Command) -> Command:
    """``--engine``, ``--jobs`` and ``--address``: texts of those names.

    :func:`number_of_jobs` reads the second; :func:`check_engine` refuses the third without Ray.
    """
    return _with(
        command,
        click.option(
            "--engine",
            cls=Option,
            group=WORK,
            type=click.Choice(["local", "ray"]),
            default="local",
            help="Where the work is done: on this machine, or by Ray.",
        ),
        click.option(
            "--jobs",
            cls=Option,
            group=WORK,
            default=AUTO,
            metavar="N",
            help="Runs that are worked on at the same time (on Ray: batches of runs). auto: one "
            "training; for stored runs, as many as suit the store; on Ray, as many as there is "
            "room for.",
        ),
        click.option(
            "--address",
            cls=Option,
            group=WORK,
            default=LOCAL,
            metavar="ADDRESS",
            help="Address of a running Ray cluster, for example HOST:6379, or auto; local starts "
            "Ray on this machine.",
        ),
    )


def comparison_options(*, group_by: str) -> Callable[[Command], Command]:
    """``--group-by``, whose default the command gives, and ``--rank-by``: texts of those names.

    :func:`grouping` reads the first.
    """

    def decorate(command: Command) -> Command:
        return _with(
            command,
            click.option(
                "--group-by",
                cls=Option,
                group=COMPARISON,
                default=group_by,
                metavar="NAME[,NAME...]",
                help="Parameters or tags that the seeds of one method share. none: each run is a "
                "group of its own. auto (of a sweep): strategy, dataset and all that varies but "
                "seeds.",
            ),
            click.option(
                "--rank-by",
                cls=Option,
                group=COMPARISON,
                default=AUTO,
                metavar="METRIC",
                help="The metric of the ranking and of the verdicts; all others are exploratory. "
                "auto: clear/challenge_score where it is defined.",
            ),
        )

    return decorate


def metric_option(command: Command) -> Command:
    """``--metric``, as metric: names with commas between, for ``load_own_metrics``."""
    return click.option(
        "--metric",
        cls=Option,
        group=METRICS,
        default=NONE,
        metavar="NAME[,NAME...]",
        help="Your own metrics: package.module:function; see docs/metrics.md.",
    )(command)


def families_option(command: Command) -> Command:
    """``--metrics``, as metrics: families with commas between, for ``family_names``."""
    return click.option(
        "--metrics",
        cls=Option,
        group=METRICS,
        default=NONE,
        metavar="FAMILY[,FAMILY...]",
        help="Further families of metrics, for example gem,wild_time, beside those that the runs "
        "log; see docs/metrics.md.",
    )(command)


def dry_run_option(command: Command) -> Command:
    """``--dry-run``, as dry_run: the text yes or no."""
    return yes_or_no_option(
        "--dry-run", group=WORK, help="Say what would be done, and write nothing."
    )(command)


def yes_or_no_option(
    name: str,
    *,
    group: str,
    help: str,  # noqa: A002
) -> Callable[[Command], Command]:
    """An option that is no unless given: ``mlflow run`` hands yes on, a user the bare name."""
    return click.option(
        name,
        cls=Option,
        group=group,
        type=click.Choice(["yes", "no"]),
        is_flag=False,
        flag_value="yes",
        default="no",
        help=help,
    )


def listed(text: str) -> tuple[str, ...]:
    """The names in a text with commas between, each once; none of them for ``none``.

    >>> listed("a, b,,a")
    ('a', 'b')
    """
    if text == NONE:
        return ()
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def grouping(group_by: str) -> tuple[str, ...]:
    """What ``--group-by`` names.

    Raises:
        ConfigError: nothing, and not ``none``.
    """
    names = listed(group_by)
    if group_by != NONE and not names:
        raise ConfigError(f"group_by is {group_by!r}; expected names, or none")
    return names


def number_of_jobs(jobs: str) -> int | None:
    """What ``--jobs`` asks for; None for ``auto``.

    Raises:
        ConfigError: it is no number, or out of range.
    """
    return None if jobs == AUTO else whole_number("jobs", jobs, 1, _MOST_JOBS)


def whole_number(name: str, text: str, least: int, most: int) -> int:
    """The number that an option's text is.

    Raises:
        ConfigError: it is no number, or out of range.
    """
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:10]) <= most:
        raise ConfigError(f"{name} is {text!r}; expected a number from {least} to {most}")
    return int(text)


def check_engine(engine: str, address: str, **of_ray: str) -> None:
    """Refuse an address, and further options of Ray that were given, beside another engine.

    Raises:
        ConfigError: there is one.
    """
    given = ({"address": address} if address != LOCAL else {}) | of_ray
    if engine != "ray" and given:
        beside = " and ".join(f"{name} {text!r}" for name, text in given.items())
        raise ConfigError(
            f"engine is {engine} beside {beside}, which only Ray knows; pass engine=ray with it, "
            "or leave it out"
        )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    """A command with options, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command
