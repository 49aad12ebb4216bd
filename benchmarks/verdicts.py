"""What verdicts are worth: ``python benchmarks/verdicts.py`` prints false and true findings.

Made-up runs go through the comparison itself (`clear_mlflow.comparison`), one metric each. *False*:
all methods are equal; the share of comparisons with any verdict of a difference. *Power*: one
method is ahead of all others by so many standard deviations of a seed; the share of its pairs that
are found. Paired runs share what the seed does to all methods, half of their variance; others
have seeds of their own. Spreads: normal; Student's t with three degrees of freedom (heavy tails); a
shifted exponential (skewed); normal, with the last method's spread five times the others'.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.subjects import Setting, Subject
from clear_mlflow.comparison.verdicts import judge_pairs, plan_pairs
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import DatasetIdentity, Record
from clear_mlflow.metrics import METRICS

METRIC = next(metric for metric in METRICS if metric.name == "clear/challenge_score")
SETTING = Setting("made up", "sha256:0", "iid", ("1",), (1,))
SEEDS, GROUPS = (3, 5, 10), (2, 6, 16)
EFFECTS = (2.0, 4.0, 10.0)


@dataclass(frozen=True)
class Case:
    """How runs are drawn."""

    name: str
    spread: str
    paired: bool = True
    is_against_baseline: bool = False


CASES = (
    Case("normal, shared seeds", "normal", is_against_baseline=True),
    Case("normal, other seeds", "normal", paired=False),
    Case("heavy tails, shared seeds", "heavy"),
    Case("skewed, shared seeds", "skewed"),
    Case("unequal spreads, shared seeds", "unequal"),
    Case("unequal spreads, other seeds", "unequal", paired=False),
)


def main() -> None:
    """Simulate, and print two tables in Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=2000, help="comparisons for each number")
    asked = options.parse_args()
    started = time.perf_counter()
    print(f"Comparisons of equal methods with any finding, in %; {asked.times} for each number.\n")
    heads = [f"{m} methods, {n} seeds" for m in GROUPS for n in SEEDS]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for case in CASES:
        for baseline in (None, "0") if case.is_against_baseline else (None,):
            row = [false_findings(case, n, m, baseline, asked.times) for m in GROUPS for n in SEEDS]
            cells = " | ".join(f"{100 * share:.1f}" for share in row)
            print(f"| {case.name}{_against(baseline)} | {cells} |", flush=True)
    print("\nPairs of the one method that is ahead that are found, in %.\n")
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for case in CASES[:2]:
        for effect in EFFECTS:
            for baseline in (None, "0"):
                row = [
                    power(case, n, m, baseline, effect, asked.times // 4)
                    for m in GROUPS
                    for n in SEEDS
                ]
                cells = " | ".join(f"{100 * share:.0f}" for share in row)
                print(f"| {effect:g} sd, {case.name}{_against(baseline)} | {cells} |", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s.")


def _against(baseline: str | None) -> str:
    return "" if baseline is None else ", against a baseline"


def false_findings(case: Case, seeds: int, methods: int, baseline: str | None, times: int) -> float:
    """Share of comparisons with any verdict of a difference, where there is none."""
    draws = np.random.default_rng([seeds, methods])
    return float(
        np.mean(
            [bool(found(drawn(case, draws, seeds, methods), case, baseline)) for _ in range(times)]
        )
    )


def power(
    case: Case, seeds: int, methods: int, baseline: str | None, effect: float, times: int
) -> float:
    """Share of the pairs of the method ahead that are found; it is the baseline where one is."""
    draws = np.random.default_rng([seeds, methods, 1])
    shares = []
    for _ in range(times):
        values = drawn(case, draws, seeds, methods)
        values[0] += effect
        pairs = found(values, case, baseline)
        shares.append(sum("0" in pair for pair in pairs) / (methods - 1))
    return float(np.mean(shares))


def drawn(case: Case, draws: np.random.Generator, seeds: int, methods: int) -> NDArray[np.float64]:
    """(methods, seeds), each with a standard deviation of 1."""
    shape = methods, seeds
    own = {
        "normal": lambda: draws.normal(size=shape),
        "unequal": lambda: draws.normal(size=shape),
        "heavy": lambda: draws.standard_t(3, shape) / 3**0.5,
        "skewed": lambda: draws.exponential(size=shape) - 1,
    }[case.spread]()
    if case.spread == "unequal":
        own[-1] *= 5
    if not case.paired:
        return np.asarray(own)
    return np.asarray((own + draws.normal(size=(1, seeds))) / 2**0.5)


def found(values: NDArray[np.float64], case: Case, baseline: str | None) -> list[tuple[str, str]]:
    """Names of the pairs of which a difference is said."""
    groups = []
    for method, row in enumerate(values):
        members = tuple(
            subject(method, seed if case.paired else 1000 * method + seed, float(value))
            for seed, value in enumerate(row)
        )
        groups.append(
            Group(name=str(method), labels={}, setting=0, members=members, length=1, level=0.95)
        )
    groups.sort(key=lambda group: -group.metrics[METRIC.name].mean)
    plan = plan_pairs(groups, [SETTING], baseline)
    verdicts, _ = judge_pairs(
        groups,
        plan,
        metrics=[METRIC],
        protocols=["iid"],
        correct={},
        level=0.95,
        margin=None,
        details=False,
    )
    return [
        (groups[verdict.a].name, groups[verdict.b].name)
        for verdict in verdicts
        if verdict.outcome == "different"
    ]


def subject(method: int, seed: int, value: float) -> Subject:
    """A run of which nothing counts but its seed and its value."""
    record = Record(
        # Another one for each run: runs of one matrix would count as one result.
        matrix=AccuracyMatrix([[1 / (2 + value * value)]]),
        protocol="iid",
        dataset=DatasetIdentity("made up", "0"),
        seed=seed,
        rows=(1,),
        missing=(),
    )
    return Subject(
        run_id=f"{method}-{seed}",
        name="",
        record=record,
        summary={METRIC.name: value},
        labels={},
    )


if __name__ == "__main__":
    main()
