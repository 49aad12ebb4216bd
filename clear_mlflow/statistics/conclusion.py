"""One plain sentence: which is better at what, by how much, how sure, and on how much evidence."""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level

DIFFERENT, EQUIVALENT, NOT_SHOWN, TOO_FEW = "different", "equivalent", "not shown", "too few"


@dataclass(frozen=True)
class Equivalence:
    """What two one-sided tests show of a margin."""

    margin: float  # the largest difference that does not matter, in the metric's unit
    p_value: float  # adjusted where several comparisons were made
    # Of the difference, of level 1 - 2 alpha: inside the margin where p is small.
    interval: Interval


@dataclass(frozen=True)
class Conclusion:
    """What a comparison allows to say."""

    outcome: str  # DIFFERENT, EQUIVALENT, NOT_SHOWN or TOO_FEW
    winner: str | None  # the better one, where they are different
    sentence: str


def verdict(
    a: str,
    b: str,
    metric: str,
    *,
    difference: float,
    interval: Interval,
    p_value: float,
    evidence: str,
    comparisons: int = 1,
    equivalence: Equivalence | None = None,
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
        interval: of the difference, adjusted as the p-value is.
        p_value: adjusted where several comparisons were made.
        evidence: the test and what was counted, as "paired t-test over 8 shared seeds".
        comparisons: how many were made together, and adjusted for.
        equivalence: what was found of a margin; None: none was asked for.
        higher_is_better: whether more of the metric is better.
        in_percent: the metric is a fraction: differences are in percentage points.
        of_models: each side is one trained model, and the test is over test images: the sentence is
            about these two models, and not about what they were trained by.
        level: of confidence; 0.95 takes p up to 0.05 for a finding.

    Raises:
        ConfigError: the level is not between 0 and 1, or there is no comparison.

    >>> found = verdict(
    ...     "replay", "naive", "clear/backward_transfer", difference=0.032,
    ...     interval=Interval(0.011, 0.053), p_value=0.0078, comparisons=3,
    ...     evidence="paired t-test over 8 shared seeds",
    ... )
    >>> found.winner
    'replay'
    >>> print(found.sentence)
    replay is better than naive at clear/backward_transfer by 3.2 percentage points (95 % interval 1.1 to 5.3, p = 0.0078, adjusted for 3 comparisons; paired t-test over 8 shared seeds).
    """  # noqa: E501
    check_level(level)
    if comparisons < 1:
        raise ConfigError(f"comparisons is {shown(comparisons)}; expected at least 1")
    alpha = 1 - level

    def is_found(p: float) -> bool:
        # Rounding in 1 - 0.95 must not turn a p of exactly 0.05 away.
        return p <= alpha + 1e-12

    def details(of: Interval, p: float, *, sides: int = 1) -> str:
        """From the side of the better one, as the sentence is."""
        low, high = of.flipped if difference < 0 else of
        decimals = 2 if high - low < 0.004 else 1
        ends = [f"{100 * e:.{decimals}f}" if in_percent else f"{e:.4g}" for e in (low, high)]
        what = "p" if sides == 1 else "two one-sided tests: p"
        adjusted = f", adjusted for {comparisons} comparisons" if comparisons > 1 else ""
        interval_text = f"{100 * (1 - sides * alpha):g} % interval {ends[0]} to {ends[1]}"
        return f"{interval_text}, {what} {p_text(p)}{adjusted}; {evidence}"

    a_leads = (difference > 0) == higher_is_better
    winner = a if a_leads else b
    if of_models:
        a, b = f"the model of {a}", f"the model of {b}"
    better, worse = (a, b) if a_leads else (b, a)

    def begin(name: str) -> str:
        """Only our own word is made a capital; a name stays as it is."""
        return f"T{name[1:]}" if of_models else name

    size = amount_text(
        abs(difference), in_percent=in_percent, decimals=1 if abs(difference) >= 0.001 else 2
    )
    lead = "both are the same" if difference == 0 else f"{better} is ahead by {size}"
    margin = "" if equivalence is None else _margin_text(equivalence.margin, in_percent)
    seen = details(interval, p_value)
    if is_found(p_value) and difference != 0:
        sentence = f"{begin(better)} is better than {worse} at {metric} by {size} ({seen})."
        if equivalence and is_found(equivalence.p_value):
            sentence += f" That is within the margin of {margin}."
        return Conclusion(DIFFERENT, winner, sentence)
    if equivalence is None:
        sentence = f"No difference between {a} and {b} at {metric} could be shown: {lead} ({seen})."
        return Conclusion(NOT_SHOWN, None, sentence)
    seen = details(equivalence.interval, equivalence.p_value, sides=2)
    if is_found(equivalence.p_value):
        sentence = (
            f"{begin(a)} and {b} are equivalent at {metric} within {margin}: {lead} ({seen})."
        )
        return Conclusion(EQUIVALENT, None, sentence)
    sentence = (
        f"Neither a difference between {a} and {b} at {metric} nor equivalence within {margin} "
        f"could be shown: {lead} ({seen}; test of a difference: p {p_text(p_value)})."
    )
    return Conclusion(NOT_SHOWN, None, sentence)


def amount_text(value: float, *, in_percent: bool, decimals: int = 1) -> str:
    """The size of a difference, with its unit where it has one."""
    return f"{100 * value:.{decimals}f} percentage points" if in_percent else f"{value:.4g}"


def _margin_text(value: float, in_percent: bool) -> str:
    if not in_percent:
        return f"{value:g}"
    return f"{100 * value:g} percentage point{'' if 100 * value == 1 else 's'}"


def p_text(value: float) -> str:
    """A p-value as a sentence has it, with its sign.

    >>> p_text(0.031), p_text(0.00000012)
    ('= 0.031', '< 0.0001')
    """
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"
