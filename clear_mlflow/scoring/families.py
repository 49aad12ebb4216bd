"""Which families of metrics a run logs: those its tag names, the default ones without a tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clear_mlflow.metrics import DEFAULT_FAMILIES, FAMILIES, Metric, of_families
from clear_mlflow.store import names


def logged_families(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The families that a run logs, in order; some may be of a later version of this program."""
    text = tags.get(names.METRICS_TAG)
    return DEFAULT_FAMILIES if text is None else tuple(dict.fromkeys(text.split(",")))


def families_tag(families: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """The tag that says which families a run logs; none where what it has says so already."""
    if tuple(families) == logged_families(tags):
        return {}
    return {names.METRICS_TAG: ",".join(families)}


def with_families_of(families: Sequence[str], metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Families, and behind them those of further metrics that are built in."""
    more = (metric.name.split("/")[0] for metric in metrics)
    return tuple(dict.fromkeys([*families, *(name for name in more if name in FAMILIES)]))


def metrics_of(families: Sequence[str], metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics of the families that this program knows, and further ones, each once."""
    known = of_families(name for name in families if name in FAMILIES)
    return tuple({metric.name: metric for metric in (*known, *metrics)}.values())
