"""Simulate how often verdicts are right and wrong: ``python benchmarks/verdicts.py``.

Random values of one metric pass the tests and the adjustment of `compare`. *False*: all methods are
equal; the share of comparisons with any significant difference. *Power*: one method is better than
all others by some standard deviations of a seed; the share of its pairs that are significant.
Paired runs share half of their variance, the effect of the seed. Distributions: normal; Student's t
with three degrees of freedom (heavy tails); a shifted exponential (skewed); normal and skewed with
five times the standard deviation for the last method; normal, but one seed in five of the last
method is 20 standard deviations lower and its other seeds are 4 higher.

*Reversals*: two methods, compared for each of several values of a parameter, such as bucket
borders; the share of studies in which one is significantly better for a value and worse for
another. Their true difference is the same for all values, or turns its sign for half of them, in
standard errors of a difference.

``--bootstrap`` instead prints the processor time of metrics on 2,000 resampled matrices of ten
buckets: computed at once, and one matrix after the other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import LEVEL
from clear_mlflow.comparison.ranking import MAX_ALL_PAIRS
from clear_mlflow.core.matrix import AccuracyMatrix, stack_cells
from clear_mlflow.metrics import FAMILIES, METRICS, Metric
from clear_mlflow.statistics import holm, paired_t, welch_t

SEEDS, GROUPS = (3, 5, 10), (2, 6, 16)
EFFECTS = (2.0, 4.0, 10.0)
VALUES, REVERSALS = (4, 8), (1, 2, 4)


@dataclass(frozen=True)
class Case:
    """The distribution of the runs."""

    name: str
    distribution: str
    paired: bool = True
    is_against_baseline: bool = False


CASES = (
    Case("normal, shared seeds", "normal", is_against_baseline=True),
    Case("normal, other seeds", "normal", paired=False),
    Case("heavy tails, shared seeds", "heavy"),
    Case("skewed, shared seeds", "skewed"),
    Case("unequal spreads, shared seeds", "unequal"),
    Case("unequal spreads, other seeds", "unequal", paired=False),
    Case("skewed and unequal, shared seeds", "skewed unequal"),
    Case("skewed and unequal, other seeds", "skewed unequal", paired=False),
    Case("one seed in five collapses, shared seeds", "collapse"),
    Case("one seed in five collapses, other seeds", "collapse", paired=False),
)


def main() -> None:
    """Simulate, and print two tables in Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=2000, help="comparisons for each number")
    options.add_argument("--bootstrap", action="store_true", help="only time the bootstrap")
    arguments = options.parse_args()
    if arguments.bootstrap:
        time_bootstrap()
        return
    started = time.perf_counter()
    print(
        "Comparisons of equal methods with any significant difference, in %; "
        f"{arguments.times} for each number.\n"
    )
    heads = [f"{m} methods, {n} seeds" for m in GROUPS for n in SEEDS]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for case in CASES:
        for baseline in (None, "0") if case.is_against_baseline else (None,):
            row = [
                false_findings(case, n, m, baseline, arguments.times) for m in GROUPS for n in SEEDS
            ]
            cells = " | ".join(f"{100 * share:.1f}" for share in row)
            print(f"| {case.name}{_against(baseline)} | {cells} |", flush=True)
    print("\nSignificant pairs of the one better method, in %.\n")
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for case in CASES[:2]:
        for effect in EFFECTS:
            for baseline in (None, "0"):
                row = [
                    power(case, n, m, baseline, effect, arguments.times // 4)
                    for m in GROUPS
                    for n in SEEDS
                ]
                cells = " | ".join(f"{100 * share:.0f}" for share in row)
                print(f"| {effect:g} sd, {case.name}{_against(baseline)} | {cells} |", flush=True)
    print("\nStudies in which the verdict depends on the parameter, in %.\n")
    heads = [f"{v} values, {n} seeds" for v in VALUES for n in SEEDS]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for effect, is_reversed in [(0, False), (2, False), *((size, True) for size in REVERSALS)]:
        shares = [
            find_reversals(n, v, effect, arguments.times, is_reversed=is_reversed)
            for v in VALUES
            for n in SEEDS
        ]
        name = f"{'± ' if is_reversed else ''}{effect:g} standard errors"
        print(f"| {name} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s.")


def time_bootstrap(buckets: int = 10, images: int = 550, resamples: int = 2000) -> None:
    """Print a table in Markdown: the least processor time of five tries."""
    draws = np.random.default_rng(0)
    shape = resamples, buckets + 1, buckets
    cells = draws.binomial(images, 0.7, shape) / images
    stack = stack_cells(AccuracyMatrix(cells[0, 1:], cells[0, 0], [images] * buckets), cells)
    print("| metrics | at once, ms | one by one, ms |\n|---|---:|---:|")
    for name, metrics in {"five of CLEAR": FAMILIES["clear"][:5], "all default": METRICS}.items():
        loops = [replace(metric, is_vectorized=False) for metric in metrics]
        times = [_measure(chosen, stack) for chosen in (metrics, loops)]
        print(f"| {name} | {times[0]:.2f} | {times[1]:.0f} |", flush=True)


def _measure(metrics: Sequence[Metric], stack: AccuracyMatrix) -> float:
    """Return the least milliseconds of processor time that the metrics take."""
    times = []
    for _ in range(5):
        started = time.process_time()
        for metric in metrics:
            metric.compute_stack(stack)
        times.append(1e3 * (time.process_time() - started))
    return min(times)


def _against(baseline: str | None) -> str:
    return "" if baseline is None else ", against a baseline"


def false_findings(case: Case, seeds: int, methods: int, baseline: str | None, times: int) -> float:
    """Return the share of comparisons of equal methods with a significant difference."""
    draws = np.random.default_rng([seeds, methods])
    return float(
        np.mean(
            [
                bool(find_significant(draw_values(case, draws, seeds, methods), case, baseline))
                for _ in range(times)
            ]
        )
    )


def power(
    case: Case, seeds: int, methods: int, baseline: str | None, effect: float, times: int
) -> float:
    """Return the share of the best method's pairs that are significant."""
    draws = np.random.default_rng([seeds, methods, 1])
    shares = []
    for _ in range(times):
        values = draw_values(case, draws, seeds, methods)
        values[0] += effect
        pairs = find_significant(values, case, baseline)
        shares.append(sum("0" in pair for pair in pairs) / (methods - 1))
    return float(np.mean(shares))


def find_reversals(
    seeds: int, values: int, effect: float, times: int, *, is_reversed: bool
) -> float:
    """Return the share of studies whose verdict is reversed between values of a parameter.

    effect: true difference, in standard errors. is_reversed: turn its sign for half of the values.
    """
    draws = np.random.default_rng([seeds, values, 2])
    signs = np.where(is_reversed & (np.arange(values) % 2 == 1), -1, 1)[:, np.newaxis]
    count = 0
    for _ in range(times):
        # A seed's effect is shared by the values, as one initialization is.
        draw = draws.normal(size=(values, seeds)) + draws.normal(size=(1, seeds))
        differences = draw / 2**0.5 + signs * effect / seeds**0.5
        tests = [paired_t(row, np.zeros(seeds)) for row in differences]
        p_values = [1.0 if test is None else test.p_value for test in tests]
        is_significant = np.array(holm(p_values)) <= 1 - LEVEL + 1e-12
        found = {*np.sign(differences.mean(axis=1))[is_significant].tolist()}
        count += found == {-1.0, 1.0}
    return count / times


def draw_values(
    case: Case, draws: np.random.Generator, seeds: int, methods: int
) -> NDArray[np.float64]:
    """Return values, (methods, seeds), with standard deviation 1 except for some last methods."""
    shape = methods, seeds
    own = {
        "normal": lambda: draws.normal(size=shape),
        "unequal": lambda: draws.normal(size=shape),
        "heavy": lambda: draws.standard_t(3, shape) / 3**0.5,
        "skewed": lambda: draws.exponential(size=shape) - 1,
        "skewed unequal": lambda: draws.exponential(size=shape) - 1,
        "collapse": lambda: draws.normal(size=shape),
    }[case.distribution]()
    if case.distribution.endswith("unequal"):
        own[-1] *= 5
    if case.distribution == "collapse":  # as good as the others on average
        own[-1] += 20 * (0.2 - (draws.random(seeds) < 0.2))
    if not case.paired:
        return np.asarray(own)
    return np.asarray((own + draws.normal(size=(1, seeds))) / 2**0.5)


def find_significant(
    values: NDArray[np.float64], case: Case, baseline: str | None
) -> list[tuple[str, str]]:
    """Return the significant pairs, by the tests and adjustment of `compare`."""
    ranked = sorted(range(len(values)), key=lambda method: -values[method].mean())
    pairs = list(combinations(ranked, 2))
    family = len(pairs)
    if baseline is not None:
        pairs = [(method, int(baseline)) for method in ranked if method != int(baseline)]
        family = len(pairs)
    elif len(values) > MAX_ALL_PAIRS:
        pairs = pairs[: len(values) - 1]
    test = paired_t if case.paired else welch_t
    tests = [test(values[a], values[b]) for a, b in pairs]
    adjusted = holm([1.0 if result is None else result.p_value for result in tests], family=family)
    return [
        (str(a), str(b))
        for (a, b), p in zip(pairs, adjusted, strict=True)
        if p <= 1 - LEVEL + 1e-12
    ]


if __name__ == "__main__":
    main()
