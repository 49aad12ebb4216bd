"""Options that several commands take: each is declared here, and read here, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clear_mlflow.cli.help import option_under
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.engines.ray_cluster import LOCAL
from clear_mlflow.learning.parameters.recipes import AUTO, NONE

_MOST_JOBS = 256

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Declare an option under one of the headings that several commands have.
selection_option = option_under("Which runs")
work_option = option_under("How the work is done")
comparison_option = option_under("Comparison")
metrics_option = option_under("Metrics")


def together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator; the command's help lists them in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def yes_or_no_option(
    declare: Callable[..., Callable[[_Command], _Command]], name: str, text: str
) -> Callable[[_Command], _Command]:
    """An option that is no unless given: ``mlflow run`` hands yes on, a user the bare name.

    Args:
        declare: of its heading, as ``work_option``.
        name: as ``--dry-run``.
        text: what its help says.
    """
    return declare(
        name,
        type=click.Choice(["yes", "no"]),
        is_flag=False,
        flag_value="yes",
        default="no",
        help=text,
    )


# As run_id, experiment and filter_string.
run_selection_options = together(
    selection_option(
        "--run-id", default=NONE, metavar="ID[,ID...]", help="The runs, by their ids."
    ),
    selection_option(
        "--experiment",
        default=NONE,
        metavar="NAME",
        help="All runs of an experiment, by its name or id.",
    ),
    selection_option(
        "--filter",
        "filter_string",
        default=NONE,
        metavar="TEXT",
        help="Runs that MLflow's search finds, for example \"params.strategy = 'replay'\".",
    ),
)

# As engine, jobs and address: number_of_jobs reads the second, and check_engine refuses the third
# without Ray.
engine_options = together(
    work_option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="Where the work is done: on this machine, or by Ray.",
    ),
    work_option(
        "--jobs",
        default=AUTO,
        metavar="N",
        help="Runs that are worked on at the same time (on Ray: batches of runs). auto: one "
        "training; for stored runs, as many as suit the store; on Ray, as many as there is room "
        "for.",
    ),
    work_option(
        "--address",
        default=LOCAL,
        metavar="ADDRESS",
        help="Address of a running Ray cluster, for example HOST:6379, or auto; local starts Ray "
        "on this machine.",
    ),
)

# As metric, for load_own_metrics.
metric_option = metrics_option(
    "--metric",
    default=NONE,
    metavar="NAME[,NAME...]",
    help="Your own metrics: package.module:function; see docs/metrics.md.",
)

# As metrics, for family_names.
families_option = metrics_option(
    "--metrics",
    default=NONE,
    metavar="FAMILY[,FAMILY...]",
    help="Further families of metrics, for example gem,wild_time, beside those that the runs log; "
    "see docs/metrics.md.",
)

dry_run_option = yes_or_no_option(
    work_option, "--dry-run", "Say what would be done, and write nothing."
)


def comparison_options(*, group_by: str) -> Callable[[_Command], _Command]:
    """``--group-by``, with its default, which :func:`grouping` reads, and ``--rank-by``."""
    return together(
        comparison_option(
            "--group-by",
            default=group_by,
            metavar="NAME[,NAME...]",
            help="Parameters or tags that the seeds of one method share. none: each run is a group "
            "of its own. auto (of a sweep): strategy, dataset and all that varies but seeds.",
        ),
        comparison_option(
            "--rank-by",
            default=AUTO,
            metavar="METRIC",
            help="The metric of the ranking and of the verdicts; all others are exploratory. "
            "auto: clear/challenge_score where it is defined.",
        ),
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
