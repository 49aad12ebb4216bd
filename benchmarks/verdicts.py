"""Simulate how often verdicts are right and wrong: ``python benchmarks/verdicts.py``.

Random values of one metric pass the tests and the adjustment of `compare`. *False*: all methods are
equal; the share of comparisons with any significant difference. *Power*: one method is better than
all others by some standard deviations of a seed; the share of its pairs that are significant.
Paired runs share half of their variance, the effect of the seed. Distributions: normal; Student's t
with three degrees of freedom (heavy tails); a shifted exponential (skewed); normal and skewed with
five times the standard deviation for the last method; normal, but one seed in five of the last
method is 20 standard deviations lower and its other seeds are 4 higher.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import LEVEL
from clear_mlflow.comparison.ranking import MAX_ALL_PAIRS
from clear_mlflow.statistics import holm, paired_t, welch_t

SEEDS, GROUPS = (3, 5, 10), (2, 6, 16)
EFFECTS = (2.0, 4.0, 10.0)


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
    arguments = options.parse_args()
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
    print(f"\n{time.perf_counter() - started:.0f} s.")


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
