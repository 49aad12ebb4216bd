"""Methods over several datasets: each dataset's result, the interquartile mean, average ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clear_mlflow.comparison.groups import Group, cut
from clear_mlflow.comparison.subjects import Setting
from clear_mlflow.metrics import Metric
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.statistics import (
    Interval,
    RankTest,
    SeedSummary,
    average_ranks,
    interquartile_mean,
    p_text,
)

# Labels that say what was tested on, and not by which method.
_TESTED_ON = ("dataset", "protocol", "split")


@dataclass(frozen=True, kw_only=True)
class MethodAcross:
    """One method on all datasets."""

    name: str
    on_each: tuple[SeedSummary, ...]  # in the order of the datasets
    mean: float  # interquartile, over the runs on all datasets
    interval: Interval | None
    rank: float  # averaged over the datasets; 1 is best


@dataclass(frozen=True, kw_only=True)
class AcrossDatasets:
    """Methods that were run on all of several datasets, on one metric."""

    metric: str
    datasets: tuple[str, ...]
    methods: tuple[MethodAcross, ...]  # best rank first
    ranks: RankTest
    sentences: tuple[str, ...]


def across_datasets(
    groups: Sequence[Group],
    settings: Sequence[Setting],
    metric: Metric | AnytimeMetric,
    level: float,
) -> AcrossDatasets | None:
    """Rank the methods that were run on every dataset; None: there are not two of both.

    Args:
        groups: best first.
        settings: that the groups are of.
        metric: by which they are ranked.
        level: of confidence.
    """
    kinds = [(setting.protocol, setting.split) for setting in settings]
    usual = Counter(kinds).most_common(1)[0][0]
    used = [i for i, kind in enumerate(kinds) if kind == usual]
    datasets = [settings[i].dataset for i in used]
    # Two test sets of one dataset are no two datasets.
    if len(used) < 2 or len(set(datasets)) < len(datasets):
        return None
    by_method: dict[tuple[tuple[str, str], ...], dict[int, Group]] = {}
    for group in groups:
        labels = tuple((n, text) for n, text in group.labels.items() if n not in _TESTED_ON)
        if labels and group.setting in used and metric.name in group.metrics:
            by_method.setdefault(labels, {})[group.setting] = group
    whole = {labels: found for labels, found in by_method.items() if len(found) == len(used)}
    if len(whole) < 2:
        return None
    scores = [[found[i].metrics[metric.name].mean for found in whole.values()] for i in used]
    ranks = average_ranks(scores, higher_is_better=metric.higher_is_better, level=level)
    methods = []
    for (labels, found), rank in zip(whole.items(), ranks.ranks, strict=True):
        values = [[value for _, value in found[i].values(metric.name)] for i in used]
        mean, interval = interquartile_mean(values, level=level)
        methods.append(
            MethodAcross(
                name=cut(", ".join(text for _, text in labels)),
                on_each=tuple(found[i].metrics[metric.name] for i in used),
                mean=mean,
                interval=interval,
                rank=rank,
            )
        )
    methods.sort(key=lambda method: method.rank)
    return AcrossDatasets(
        metric=metric.name,
        datasets=tuple(datasets),
        methods=tuple(methods),
        ranks=ranks,
        sentences=tuple(_sentences(methods, ranks, len(by_method) - len(whole), level)),
    )


def _sentences(
    methods: Sequence[MethodAcross], ranks: RankTest, left_out: int, level: float
) -> list[str]:
    critical = ranks.critical_difference
    apart = [
        f"{one.name} and {other.name}"
        for i, one in enumerate(methods)
        for other in methods[i + 1 :]
        if other.rank - one.rank > critical
    ]
    sentence = (
        f"Average ranks over {ranks.datasets} datasets differ where they are further apart than "
        f"{critical:.2f} (Nemenyi's critical difference, {100 * level:g} %): "
        f"{'; '.join(apart[:10]) or 'none are'}."
    )
    largest = len(methods) - 1
    if critical >= largest:
        sentence += f" Ranks of {len(methods)} methods cannot be further apart than {largest}."
    sentences = [sentence]
    if ranks.p_value is not None:
        sentences.append(f"Friedman's test that all methods are equal: p {p_text(ranks.p_value)}.")
    if left_out:
        sentences.append(
            f"{left_out} methods that were not run on every dataset are left out here."
        )
    return sentences
