"""One plain sentence: who is better at what, by how much, how sure, and on how much evidence."""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level

DIFFERENT, NOT_SHOWN, TOO_FEW = "different", "not shown", "too few"


@dataclass(frozen=True)
class Conclusion:
    """What a comparison allows to say."""

    outcome: str  # DIFFERENT, NOT_SHOWN or TOO_FEW
    winner: str | None  # the better one, where they are different
    sentence: str


def verdict(
    a: str,
    b: str,
    metric: str,
    *,
    difference: float,
    interval: Interval | None,
    p_value: float,
    smallest_p: float,
    evidence: str,
    comparisons: int = 1,
    higher_is_better: bool = True,
    in_percent: bool = True,
    of_models: bool = False,
    level: float = 0.95,
) -> Conclusion:
    """The sentence about one comparison of one metric.

    Args:
        a: name of one side.
        b: name of the other.
        metric: its name.
        difference: value of A minus value of B.
        interval: of the difference; None where there is too little for one.
        p_value: adjusted where several comparisons were made.
        smallest_p: what the test's p can fall to at best, before any adjustment.
        evidence: what was counted, as "8 seeds, paired" or "over 5,500 test images of one training
            each, which says nothing about other seeds".
        comparisons: how many were made together, and adjusted for.
        higher_is_better: whether more of the metric is better.
        in_percent: the metric is a fraction: tell differences in percentage points.
        of_models: each side is one trained model, and the test is over test images: the sentence is
            about these two models, and not about what they were trained by.
        level: of confidence; 0.95 takes p up to 0.05 for a finding.

    Raises:
        ConfigError: the level is none, or the number of comparisons is.

    >>> said = verdict(
    ...     "replay", "naive", "clear/backward_transfer", difference=0.032,
    ...     interval=Interval(0.011, 0.053), p_value=0.0078, smallest_p=0.0078,
    ...     evidence="8 seeds each",
    ... )
    >>> said.winner
    'replay'
    >>> print(said.sentence)
    replay is better than naive at clear/backward_transfer, by 3.2 percentage points (95 % interval 1.1 to 5.3; p = 0.0078; 8 seeds each).
    """  # noqa: E501
    check_level(level)
    if comparisons < 1:
        raise ConfigError(f"comparisons is {shown(comparisons)}; expected at least 1")
    alpha = 1 - level
    is_a_better = (difference > 0) == higher_is_better
    winner = a if is_a_better else b
    if of_models:
        a, b = f"the model of {a}", f"the model of {b}"
    better, worse = (a, b) if is_a_better else (b, a)
    size = _amount(abs(difference), in_percent)
    told = _details(
        # Told from the side of the better one, as the sentence is.
        _flipped(interval) if difference < 0 and interval else interval,
        p_value,
        comparisons,
        evidence,
        in_percent,
        level,
    )
    # Rounding in 1 - 0.95 must not turn a p of exactly 0.05 away.
    if p_value <= alpha + 1e-12 and difference != 0:
        # Only our own word is made a capital; a name stays as it is.
        start = f"T{better[1:]}" if of_models else better
        sentence = f"{start} is better than {worse} at {metric}, by {size} ({told})."
        return Conclusion(DIFFERENT, winner, sentence)
    lead = "no difference" if difference == 0 else f"{better} is ahead by {size}"
    reachable = min(1.0, smallest_p * comparisons)
    if reachable > alpha + 1e-12:
        sentence = (
            f"Too little to say whether {a} and {b} differ at {metric}: {lead} ({told}), but "
            f"{_limit(smallest_p, alpha, comparisons)} p cannot fall below {_p(reachable)}, and "
            f"{_p(alpha)} is needed."
        )
        return Conclusion(TOO_FEW, None, sentence)
    sentence = f"No difference between {a} and {b} at {metric} could be shown: {lead} ({told})."
    return Conclusion(NOT_SHOWN, None, sentence)


def pairs_needed(*, comparisons: int = 1, level: float = 0.95) -> int:
    """How many seeds both methods need at least, paired, before a finding is possible at all.

    Raises:
        ConfigError: the level is none, or the number of comparisons is.

    >>> pairs_needed(), pairs_needed(comparisons=10)
    (6, 9)
    """
    check_level(level)
    if comparisons < 1:
        raise ConfigError(f"comparisons is {shown(comparisons)}; expected at least 1")
    pairs = 1
    while comparisons * 2 / 2**pairs > 1 - level + 1e-12:
        pairs += 1
    return pairs


def _details(
    interval: Interval | None,
    p_value: float,
    comparisons: int,
    evidence: str,
    in_percent: bool,
    level: float,
) -> str:
    parts = []
    if interval is not None:
        scale = 100 if in_percent else 1
        low, high = (f"{end * scale:.{1 if in_percent else 4}f}" for end in interval)
        parts.append(f"{level * 100:g} % interval {low} to {high}")
    adjusted = f" adjusted for {comparisons} comparisons" if comparisons > 1 else ""
    parts += [f"p = {_p(p_value)}{adjusted}", evidence]
    return "; ".join(parts)


def _limit(smallest_p: float, alpha: float, comparisons: int) -> str:
    """What it is that keeps p from falling lower: the evidence, or being one of so many."""
    if smallest_p > alpha + 1e-12:
        return "with this much evidence"
    return f"with this much evidence, among {comparisons} comparisons,"


def _amount(value: float, in_percent: bool) -> str:
    return f"{value * 100:.1f} percentage points" if in_percent else f"{value:.4g}"


def _p(value: float) -> str:
    return f"{value:.2g}"


def _flipped(interval: Interval) -> Interval:
    return Interval(-interval.high, -interval.low)
