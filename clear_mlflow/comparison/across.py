"""Whether verdicts are the same for all values of a parameter, such as the bucket borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import (
    MAX_NAME,
    NOT_LOGGED,
    Group,
    Labels,
    format_label,
    split_labels,
    truncate_name,
)
from clear_mlflow.comparison.result import (
    BETTER,
    DIFFERENT,
    UNDECIDED,
    UNTESTED,
    WORSE,
    Across,
    Comparison,
    Pair,
    PairAcross,
)
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import format_count, one_line, safe_repr, truncate_apart


def summarize_across(comparison: Comparison, parameter: str) -> Across:
    """Count each pair's verdicts over the values of a parameter.

    parameter: a label of the groups, such as ``dataset/buckets``, or an option whose arguments are
    labels, such as ``dataset_args``. Raises ConfigError if each run is its own group, the groups do
    not differ in the parameter or in anything else, or a method has several test sets for one
    value.
    """
    if not comparison.group_by:
        raise ConfigError(
            f"across is {safe_repr(parameter)}, which compares methods, and group_by is none, so "
            "that each run is its own method; leave one of them out",
            parameter="across",
        )
    values, methods = split_labels(comparison.groups, parameter)
    if len(set(values.values())) < 2:
        raise ConfigError(
            f"across is {safe_repr(parameter)}, in which the compared runs do not differ; expected "
            "a parameter or tag with several values, such as dataset_args"
        )
    groups: dict[Labels, dict[str, Group]] = {}
    for group, value in values.items():
        other = groups.setdefault(methods[group], {}).setdefault(value, group)
        if other is not group:
            raise ConfigError(
                f"across is {safe_repr(parameter)}, but {other.name} and {group.name} have one "
                f"value, {truncate_name(value)}, and different test sets; choose runs whose test "
                "sets differ only by it"
            )
    if len(groups) < 2:
        raise ConfigError(
            f"across is {safe_repr(parameter)}, and the compared runs differ in nothing else; "
            "expected two methods, such as two strategies",
            parameter="across",
        )
    names = dict(zip(groups, _name_methods([*groups]), strict=True))
    pairs_by_methods: dict[tuple[Labels, Labels], dict[str, Pair]] = {}
    for pair in comparison.pairs:
        a, b = (methods[group] for group in pair.groups)
        key = (b, a) if (b, a) in pairs_by_methods else (a, b)
        pairs_by_methods.setdefault(key, {})[values[pair.groups[0]]] = pair
    in_order = tuple(dict.fromkeys(values.values()))
    pairs = []
    for (a, b), by_value in pairs_by_methods.items():
        outcomes = dict.fromkeys(in_order, UNTESTED)
        differences: dict[str, float | None] = dict.fromkeys(in_order)
        for value, pair in by_value.items():
            if pair.difference is None:
                continue
            is_turned = methods[pair.groups[0]] == b
            differences[value] = -pair.difference if is_turned else pair.difference
            outcomes[value] = UNDECIDED
            if pair.outcome == DIFFERENT:
                outcomes[value] = BETTER if pair.is_a_better != is_turned else WORSE
        pairs.append(
            PairAcross(
                a=names[a],
                b=names[b],
                outcomes=outcomes,
                differences=differences,
                share=_measure_share([groups[a], groups[b]], in_order, comparison.ranked_by),
                sentence=describe_across(names[a], names[b], [*outcomes.values()], parameter),
            )
        )
    return Across(
        parameter=parameter,
        values=in_order,
        pairs=tuple(pairs),
        agreement=_measure_agreement([*groups.values()], in_order, comparison.ranked_by),
    )


def list_input_warnings(comparison: Comparison, parameter: str) -> list[str]:
    """Return a sentence if the borders change not only the buckets, but also the inputs."""
    num_scaled = sum(run.params.get("dataset/standardise") == "first" for run in comparison.runs)
    if parameter != "borders" or not num_scaled:
        return []
    return [
        f"{num_scaled} of {format_count(len(comparison.runs), 'run')} "
        f"{'has' if num_scaled == 1 else 'have'} standardise=first, which scales inputs "
        "by the first bucket: with other borders, the inputs differ, too. To change only the "
        "borders, scale the vectors before and pass standardise=none."
    ]


def describe_across(a: str, b: str, outcomes: Sequence[str], parameter: str) -> str:
    """Describe what the verdicts for all values of a parameter share.

    >>> describe_across("replay", "naive", [BETTER, BETTER, UNDECIDED], "borders")
    'replay is better than naive under 2 of 3 values of borders, and never worse'
    >>> describe_across("replay", "naive", [BETTER, WORSE], "borders")
    'replay against naive depends on the borders: better under 1, worse under 1 of 2'
    """
    tested = [outcome for outcome in outcomes if outcome != UNTESTED]
    better, worse = tested.count(BETTER), tested.count(WORSE)
    number = f"{len(tested)}" if len(tested) == len(outcomes) else f"{len(tested)} tested"
    values = f"{number} {'value' if len(tested) == 1 else 'values'} of {parameter}"
    if not tested:
        return f"{a} against {b} was not tested"
    if better and worse:
        return (
            f"{a} against {b} depends on the {parameter}: better under {better}, worse under "
            f"{worse} of {number}"
        )
    if not better and not worse:
        scope = "the" if len(tested) == 1 else "any of the"
        return f"{a} and {b}: not decided under {scope} {values}"
    (first, second), count = ((a, b), better) if better else ((b, a), worse)
    if count == len(tested):
        scope = values if len(tested) == 1 else f"all {values}"
        return f"{first} is better than {second} under {scope}"
    return f"{first} is better than {second} under {count} of {values}, and never worse"


def estimate_share(differences: NDArray[np.float64]) -> float | None:
    """Return the columns' part of the variance of differences.

    Two-way analysis of variance without repetition, with random columns: the variance between
    columns is the mean square of the columns minus the rest, over the number of rows, and
    at least 0.

    differences: (S, N), S >= 2 rows (seeds) and N >= 2 columns. Returns None if nothing varies.

    >>> estimate_share(np.array([[0.0, 1.0], [0.0, 1.0]])), estimate_share(np.zeros((2, 2)))
    (1.0, None)
    """
    num_seeds, num_values = differences.shape
    columns = differences.mean(axis=0, keepdims=True)
    rows = differences.mean(axis=1, keepdims=True)
    mean = differences.mean()
    between = num_seeds * ((columns - mean) ** 2).sum() / (num_values - 1)
    rest = ((differences - columns - rows + mean) ** 2).sum()
    rest /= (num_values - 1) * (num_seeds - 1)
    variance = max(0.0, float(between - rest) / num_seeds)
    return variance / (variance + float(rest)) if variance + rest > 1e-24 else None


def compute_kendalls_w(values: NDArray[np.float64]) -> float | None:
    """Return Kendall's W, corrected for ties, None if all are equal.

    values: (N, M), N >= 2 judges of M >= 2 methods.

    >>> compute_kendalls_w(np.array([[0.9, 0.8, 0.7], [0.5, 0.4, 0.3]]))
    1.0
    """
    from scipy.stats import rankdata  # late: it would take a fifth of the time of a comparison

    ranks = rankdata(values, axis=1)
    num_judges, num_methods = ranks.shape
    deviation = ((ranks.sum(axis=0) - ranks.sum() / num_methods) ** 2).sum()
    counts = [np.unique(row, return_counts=True)[1] for row in ranks]
    ties = sum(float((count**3 - count).sum()) for count in counts)
    largest = num_judges**2 * (num_methods**3 - num_methods) - num_judges * ties
    return float(12 * deviation / largest) if largest else None


def _name_methods(methods: Sequence[Labels]) -> list[str]:
    names = [
        one_line(", ".join(format_label(n, v) for n, v in labels if v != NOT_LOGGED))
        for labels in methods
    ]
    return truncate_apart([name or "all" for name in names], MAX_NAME)


def _measure_share(
    groups: Sequence[Mapping[str, Group]], values: Sequence[str], metric: str | None
) -> float | None:
    """Return a parameter's share in the variance of two methods' difference."""
    a, b = groups
    if metric is None or not {*values} <= {*a} & {*b}:
        return None
    results = [
        [{run.seed: value for run, value in side[v].list_values(metric)} for side in (a, b)]
        for v in values
    ]
    shared = set.intersection(*({*result} for sides in results for result in sides))
    seeds = sorted(seed for seed in shared if seed is not None)
    if len(seeds) < 2:
        return None
    rows = [[a[seed] - b[seed] for a, b in results] for seed in seeds]
    return estimate_share(np.array(rows))


def _measure_agreement(
    groups: Sequence[Mapping[str, Group]], values: Sequence[str], metric: str | None
) -> float | None:
    """Return how far all values rank the methods alike, as :attr:`Across.agreement`."""
    complete = [
        [by_value[v].metrics[metric or ""].mean for v in values]
        for by_value in groups
        if all(v in by_value and metric in by_value[v].metrics for v in values)
    ]
    return compute_kendalls_w(np.array(complete).T) if len(complete) > 1 else None
