"""Options that several commands take, and what turns their texts into values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clear_mlflow.cli.help import option_under
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.engines.ray_cluster import LOCAL
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.values import whole
from clear_mlflow.metrics import family_names

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Declare an option under one of the headings that several commands have.
selection_option = option_under("Which runs")
work_option = option_under("How the work is done")
comparison_option = option_under("Comparison")
metrics_option = option_under("Metrics")


class Maybe(click.ParamType[Any]):
    """None for the default word (none or auto), else what a parser makes of the text.

    `mlflow run` hands every parameter over as a text, so each option has a word for nothing.
    """

    name = "value"

    def __init__(self, parse: Callable[[str], Any] = str) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a ConfigError that says what was expected."""
        if param is None or (value == param.default and value in (NONE, AUTO)):
            return None
        try:
            return self.parse(value)
        except ValueError as error:
            raise ConfigError(f"{param.name} is {shown(value)}; {error}") from None


def names(text: str) -> tuple[str, ...]:
    """The names in a text with commas between, each once.

    >>> names("a, b,,a")
    ('a', 'b')
    """
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("expected names with commas between")
    return found


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
    """An option that is no unless given: ``mlflow run`` hands yes on, a user the bare name."""
    return declare(
        name,
        type=click.Choice(["yes", "no"]),
        is_flag=False,
        flag_value="yes",
        default="no",
        help=text,
        callback=lambda _, __, value: value == "yes",
    )


# As run_id, experiment and filter_string, each of them None where it is not given.
run_selection_options = together(
    selection_option(
        "--run-id",
        type=Maybe(names),
        default=NONE,
        metavar="ID[,ID...]",
        help="The runs, by their ids.",
    ),
    selection_option(
        "--experiment",
        type=Maybe(),
        default=NONE,
        metavar="NAME",
        help="All runs of an experiment, by its name or id.",
    ),
    selection_option(
        "--filter",
        "filter_string",
        type=Maybe(),
        default=NONE,
        metavar="TEXT",
        help="Runs that MLflow's search finds, for example \"params.strategy = 'replay'\".",
    ),
)

# As engine, jobs (None: auto) and address; check_engine refuses the third without Ray.
engine_options = together(
    work_option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="Where the work is done: on this machine, or by Ray.",
    ),
    work_option(
        "--jobs",
        type=Maybe(whole(least=1)),
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
    type=Maybe(names),
    default=NONE,
    metavar="NAME[,NAME...]",
    help="Your own metrics: package.module:function; see docs/metrics.md.",
)

# As metrics: names of families.
families_option = metrics_option(
    "--metrics",
    type=Maybe(family_names),
    default=NONE,
    metavar="FAMILY[,FAMILY...]",
    help="Further families of metrics, for example gem,wild_time, beside those that the runs log; "
    "see docs/metrics.md.",
)

dataset_args_option = click.option(
    "--dataset-args",
    default=NONE,
    metavar="TEXT",
    help="As for train: how your own stream is read, name=value,name=value.",
)

dry_run_option = yes_or_no_option(
    work_option, "--dry-run", "Say what would be done, and write nothing."
)


def comparison_options(*, group_by: str) -> Callable[[_Command], _Command]:
    """``--group-by``, with its default, a tuple of names or None for auto, and ``--rank-by``."""
    return together(
        comparison_option(
            "--group-by",
            type=Maybe(lambda text: () if text == NONE else names(text)),
            default=group_by,
            metavar="NAME[,NAME...]",
            help="Parameters or tags that the seeds of one method share. none: each run is a group "
            "of its own. auto (of a sweep): strategy, dataset and all that varies but seeds.",
        ),
        comparison_option(
            "--rank-by",
            type=Maybe(),
            default=AUTO,
            metavar="METRIC",
            help="The metric of the ranking and of the verdicts; all others are exploratory. "
            "auto: clear/challenge_score where it is defined.",
        ),
    )


def check_engine(engine: str, address: str, **of_ray: object) -> None:
    """Refuse an address, and further options of Ray that were given, beside another engine."""
    given = ({"address": address} if address != LOCAL else {}) | of_ray
    if engine != "ray" and given:
        beside = " and ".join(f"{name} {value!r}" for name, value in given.items())
        raise ConfigError(
            f"engine is {engine} beside {beside}, which only Ray knows; pass engine=ray with it, "
            "or leave it out"
        )
