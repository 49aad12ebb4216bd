"""One plain sentence: who is better at what, by how much, how sure, and on how much evidence."""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level

DIFFERENT, EQUIVALENT, NOT_SHOWN, TOO_FEW = "different", "equivalent", "not shown", "too few"


@dataclass(frozen=True)
class Equivalence:
    """What two one-sided tests say of a margin."""

    margin: float  # the largest difference that does not matter, in the metric's unit
    p_value: float  # adjusted where several comparisons were made
    interval: (
        Interval  # of the difference, of level 1 - 2 alpha: inside the margin where p is small
    )


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
        evidence: the test and what was counted, as "paired t-test over 8 shared seeds" or "over
            5,500 test images of one training each, which says nothing about other seeds".
        comparisons: how many were made together, and adjusted for.
        equivalence: what was found of a margin; None: none was asked for.
        higher_is_better: whether more of the metric is better.
        in_percent: the metric is a fraction: differences are in percentage points.
        of_models: each side is one trained model, and the test is over test images: the sentence is
            about these two models, and not about what they were trained by.
        level: of confidence; 0.95 takes p up to 0.05 for a finding.

    Raises:
        ConfigError: the level is none, or the number of comparisons is.

    >>> said = verdict(
    ...     "replay", "naive", "clear/backward_transfer", difference=0.032,
    ...     interval=Interval(0.011, 0.053), p_value=0.0078, comparisons=3,
    ...     evidence="paired t-test over 8 shared seeds",
    ... )
    >>> said.winner
    'replay'
    >>> print(said.sentence)
    replay is better than naive at clear/backward_transfer by 3.2 percentage points (95 % interval 1.1 to 5.3, p = 0.0078, adjusted for 3 comparisons; paired t-test over 8 shared seeds).
    """  # noqa: E501
    check_level(level)
    if comparisons < 1:
        raise ConfigError(f"comparisons is {shown(comparisons)}; expected at least 1")
    told = _Telling(1 - level, comparisons, evidence, in_percent)
    a_leads = (difference > 0) == higher_is_better
    winner = a if a_leads else b
    if of_models:
        a, b = f"the model of {a}", f"the model of {b}"
    better, worse = (a, b) if a_leads else (b, a)
    size = told.amount(abs(difference))
    # From the side of the better one, as the sentence is.
    seen = told.details(_flipped(interval) if difference < 0 else interval, p_value)
    lead = "both are the same" if difference == 0 else f"{better} is ahead by {size}"
    if told.is_found(p_value) and difference != 0:
        # Only our own word is made a capital; a name stays as it is.
        start = f"T{better[1:]}" if of_models else better
        sentence = f"{start} is better than {worse} at {metric} by {size} ({seen})."
        if equivalence and told.is_found(equivalence.p_value):
            sentence += f" That is within the margin of {told.margin(equivalence.margin)}."
        return Conclusion(DIFFERENT, winner, sentence)
    if equivalence is None:
        sentence = f"No difference between {a} and {b} at {metric} could be shown: {lead} ({seen})."
        return Conclusion(NOT_SHOWN, None, sentence)
    margin = told.margin(equivalence.margin)
    seen = told.details(
        _flipped(equivalence.interval) if difference < 0 else equivalence.interval,
        equivalence.p_value,
        sides=2,
    )
    if told.is_found(equivalence.p_value):
        start = f"T{a[1:]}" if of_models else a
        sentence = f"{start} and {b} are equivalent at {metric} within {margin}: {lead} ({seen})."
        return Conclusion(EQUIVALENT, None, sentence)
    sentence = (
        f"Neither a difference between {a} and {b} at {metric} nor equivalence within {margin} "
        f"could be shown: {lead} ({seen}; test of a difference: p {p_text(p_value)})."
    )
    return Conclusion(NOT_SHOWN, None, sentence)


@dataclass(frozen=True)
class _Telling:
    alpha: float
    comparisons: int
    evidence: str
    in_percent: bool

    def is_found(self, p_value: float) -> bool:
        # Rounding in 1 - 0.95 must not turn a p of exactly 0.05 away.
        return p_value <= self.alpha + 1e-12

    def amount(self, value: float) -> str:
        decimals = 1 if value >= 0.001 else 2
        return amount_text(value, in_percent=self.in_percent, decimals=decimals)

    def margin(self, value: float) -> str:
        if not self.in_percent:
            return f"{value:g}"
        return f"{100 * value:g} percentage point{'' if 100 * value == 1 else 's'}"

    def details(self, interval: Interval, p_value: float, *, sides: int = 1) -> str:
        decimals = 2 if interval.high - interval.low < 0.004 else 1
        low, high = (
            f"{100 * end:.{decimals}f}" if self.in_percent else f"{end:.4g}" for end in interval
        )
        level = 100 * (1 - sides * self.alpha)
        what = "p" if sides == 1 else "two one-sided tests: p"
        parts = f"{level:g} % interval {low} to {high}, {what} {p_text(p_value)}"
        if self.comparisons > 1:
            parts += f", adjusted for {self.comparisons} comparisons"
        return f"{parts}; {self.evidence}"


def amount_text(value: float, *, in_percent: bool, decimals: int = 1) -> str:
    """The size of a difference, with its unit where it has one."""
    return f"{100 * value:.{decimals}f} percentage points" if in_percent else f"{value:.4g}"


def p_text(value: float) -> str:
    """A p-value as a sentence has it, with its sign.

    >>> p_text(0.031), p_text(0.00000012)
    ('= 0.031', '< 0.0001')
    """
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"


def _flipped(interval: Interval) -> Interval:
    return Interval(-interval.high, -interval.low)
