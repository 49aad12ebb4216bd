"""What the parts of the comparison page have in common: names and numbers as they are shown."""

from __future__ import annotations

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import one_line
from clear_mlflow.statistics import Interval

_LONGEST_NAME = 80


def short(text: str, limit: int = _LONGEST_NAME) -> str:
    """A name from outside, cut in its middle: names begin and end alike."""
    return one_line(text, limit)


def many(count: int, what: str) -> str:
    """A count and what is counted, as in ``1 run`` and ``2 runs``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def setting_text(comparison: Comparison, position: int) -> str:
    """A setting's dataset, test set and protocol."""
    setting = comparison.settings[position]
    text = f"{short(setting.dataset)}, {many(len(setting.buckets), 'bucket')}"
    what = "images" if setting.score.is_accuracy else "instances"
    if setting.num_instances is not None:
        text += f", {sum(setting.num_instances):,} {setting.split} {what}"
    if not setting.score.is_accuracy:
        text += f", {setting.score.label}"
    return f"{text}, protocol {setting.protocol}, digest {short(setting.digest, 24)}"


def group_name(comparison: Comparison, group: Group) -> str:
    """A group's name, with its test set where there are several."""
    name = short(group.name)
    if len(comparison.settings) > 1:
        setting = comparison.settings[group.setting]
        name += f" [{setting.protocol}, {setting.split} set {group.setting + 1}]"
    return name


def interval_text(interval: Interval | None, decimals: int = 4, *, score: Score) -> str:
    """An interval in brackets; nothing for none."""
    if interval is None:
        return ""
    number = f"{{:.{decimals}f}}".format if score.is_accuracy else score.number
    return f"[{number(interval.low)}, {number(interval.high)}]"
