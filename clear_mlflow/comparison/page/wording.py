"""Names and numbers as the comparison page shows them."""

from __future__ import annotations

from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import one_line
from clear_mlflow.statistics import Interval

_MAX_NAME = 80  # characters


def shorten(name: str, limit: int = _MAX_NAME) -> str:
    """Shorten an untrusted name in its middle: names end differently."""
    return one_line(name, limit)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``2 runs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def describe_conditions(comparison: Comparison, index: int) -> str:
    """Return dataset, test set and protocol of test conditions."""
    conditions = comparison.conditions[index]
    text = f"{shorten(conditions.name)}, {format_count(len(conditions.buckets), 'bucket')}"
    noun = "images" if conditions.score.is_accuracy else "instances"
    if conditions.num_test is not None:
        text += f", {sum(conditions.num_test):,} {conditions.split} {noun}"
    if not conditions.score.is_accuracy:
        text += f", {conditions.score.label}"
    return f"{text}, protocol {conditions.protocol}, digest {shorten(conditions.digest, 24)}"


def name_group(comparison: Comparison, group: Group) -> str:
    """Return a group's name, with its test set if there are several."""
    name = group.name
    if len(comparison.conditions) > 1:
        conditions = comparison.conditions[group.conditions_index]
        name += f" [{conditions.protocol}, {conditions.split} set {group.conditions_index + 1}]"
    return name


def format_interval(interval: Interval | None, decimals: int = 4, *, score: Score) -> str:
    """Return an interval in brackets, "" without one."""
    if interval is None:
        return ""
    number = f"{{:.{decimals}f}}".format if score.is_accuracy else score.number
    return f"[{number(interval.low)}, {number(interval.high)}]"
