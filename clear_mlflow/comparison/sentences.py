"""One plain sentence: which is better at what, by how much, how sure, and on how much evidence."""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.statistics import Interval

DIFFERENT, EQUIVALENT, NOT_SHOWN, TOO_FEW = "different", "equivalent", "not shown", "too few"


@dataclass(frozen=True)
class Equivalence:
    """What two one-sided tests show of a margin."""

    margin: float  # the largest difference that does not matter, in the metric's unit
    p_value: float  # adjusted where several comparisons were made
    # Of the difference, of level 1 - 2 alpha: inside the margin where p is small.
    interval: Interval


@dataclass(frozen=True)
class Sentences:
    """What is said of pairs on one metric, of so many comparisons that were adjusted for."""

    metric: str
    higher_is_better: bool = True
    in_percent: bool = True  # the metric is a fraction: differences are in percentage points
    level: float = 0.95  # takes p up to 0.05 for a finding
    comparisons: int = 1

    def conclude(
        self,
        a: str,
        b: str,
        difference: float,
        interval: Interval,
        p_value: float,
        evidence: str,
        *,
        equivalence: Equivalence | None = None,
        of_models: bool = False,
        price: str = "",
    ) -> tuple[str, str]:
        """The outcome, and the sentence, from the side of the better one; *difference* is A - B."""
        if of_models:
            a, b = f"the model of {a}", f"the model of {b}"
        better, worse = (a, b) if self.a_leads(difference) else (b, a)
        size = self.amount(difference)
        at = self.at
        lead = "both are the same" if difference == 0 else f"{better} is ahead by {size}{price}"
        seen = self._details(interval, difference, p_value, evidence)
        within = "" if equivalence is None else self._margin(equivalence.margin)
        if self._is_found(p_value) and difference != 0:
            begun = _begun(better, of_models)
            sentence = f"{begun} is better than {worse} {at} by {size}{price} ({seen})."
            if equivalence and self._is_found(equivalence.p_value):
                sentence += f" That is within the margin of {within}."
            return DIFFERENT, sentence
        if equivalence is None:
            sentence = f"No difference between {a} and {b} {at} could be shown: {lead} ({seen})."
            return NOT_SHOWN, sentence
        seen = self._details(
            equivalence.interval, difference, equivalence.p_value, evidence, sides=2
        )
        if self._is_found(equivalence.p_value):
            both = f"{_begun(a, of_models)} and {b}"
            return EQUIVALENT, f"{both} are equivalent {at} within {within}: {lead} ({seen})."
        return NOT_SHOWN, (
            f"Neither a difference between {a} and {b} {at} nor equivalence within {within} could "
            f"be shown: {lead} ({seen}; test of a difference: p {p_text(p_value)})."
        )

    @property
    def at(self) -> str:
        """The metric with its direction."""
        return f"at {self.metric} ({'higher' if self.higher_is_better else 'lower'} is better)"

    def a_leads(self, difference: float) -> bool:
        """Whether A is the better one."""
        return (difference > 0) == self.higher_is_better

    def amount(self, difference: float) -> str:
        """The size of a difference, with its unit where it has one."""
        size = abs(difference)
        decimals = 1 if size >= 0.001 else 2
        return f"{100 * size:.{decimals}f} percentage points" if self.in_percent else f"{size:.4g}"

    def _margin(self, value: float) -> str:
        if not self.in_percent:
            return f"{value:g}"
        return f"{100 * value:g} percentage point{'' if 100 * value == 1 else 's'}"

    def _is_found(self, p_value: float) -> bool:
        # Rounding in 1 - 0.95 must not turn a p of exactly 0.05 away.
        return p_value <= 1 - self.level + 1e-12

    def _details(
        self, of: Interval, difference: float, p_value: float, evidence: str, *, sides: int = 1
    ) -> str:
        low, high = of.flipped if difference < 0 else of
        decimals = 2 if high - low < 0.004 else 1
        ends = [f"{100 * e:.{decimals}f}" if self.in_percent else f"{e:.4g}" for e in (low, high)]
        what = "p" if sides == 1 else "two one-sided tests: p"
        level = f"{100 * (1 - sides * (1 - self.level)):g} %"
        found = f"{level} interval {ends[0]} to {ends[1]}, {what} {p_text(p_value)}"
        if self.comparisons > 1:
            found += f", adjusted for {self.comparisons} comparisons"
        return f"{found}; {evidence}"


def _begun(name: str, of_models: bool) -> str:
    """At the beginning of a sentence: only our own word is made a capital; a name stays."""
    return f"T{name[1:]}" if of_models else name


def p_text(value: float) -> str:
    """A p-value as a sentence has it, with its sign: ``= 0.031``, ``< 0.0001``."""
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"
