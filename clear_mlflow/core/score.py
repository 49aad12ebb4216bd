"""What the cells of a matrix are: accuracies, or another score, with which of two is better."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import NOT_MEASURED, percent, safe_repr

# What a score may be at most: sums and squares of a whole matrix of such are finite.
MAX_SCORE = 1e150
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)


@dataclass(frozen=True)
class Score:
    """What was measured on each bucket.

    Args:
        name: ``accuracy``, or another score's, as ``rmse``; it becomes part of metrics' names.
        higher_is_better: which of two values a researcher wants.

    Raises:
        RecordError: the name is none, or an accuracy is to be better where it is lower.

    >>> Score("rmse", higher_is_better=False).better
    'lower'
    """

    name: str = "accuracy"
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RecordError(
                f"score is {safe_repr(self.name)}; expected a name of up to 40 letters, digits, _ "
                "and -, as rmse or macro_f1"
            )
        if not isinstance(self.higher_is_better, bool):
            raise RecordError(
                f"lower_is_better is {safe_repr(self.higher_is_better)}; expected true or false"
            )
        if self.name.lower() == "accuracy" and (
            self.name != "accuracy" or not self.higher_is_better
        ):
            raise RecordError(
                f"score is {safe_repr(self.name)}, {self.better} is better; expected accuracy, of "
                "which higher is better, or another score's own name, as error_rate"
            )

    @property
    def is_accuracy(self) -> bool:
        """Whether it is the share of test images classified correctly, from 0 to 1."""
        return self.name == "accuracy"

    @property
    def better(self) -> str:
        """Which of two values is better: the ``higher`` or the ``lower``."""
        return "higher" if self.higher_is_better else "lower"

    @property
    def heading(self) -> str:
        """How a heading begins that is about it."""
        return "Accuracy" if self.is_accuracy else self.name

    @property
    def label(self) -> str:
        """What the numbers of :meth:`cell` are."""
        return "accuracy in %" if self.is_accuracy else f"{self.name} ({self.better} is better)"

    @property
    def caption(self) -> str:
        """The same at the beginning of a sentence; a score's own name stays as it is."""
        return "Accuracy in %" if self.is_accuracy else self.label

    @property
    def unit(self) -> str:
        """What follows the number of a cell in a sentence."""
        return " %" if self.is_accuracy else ""

    def cell(self, value: float) -> str:
        """A cell of a matrix: an accuracy in percent, any other score in three digits."""
        return percent(value) if self.is_accuracy else significant(value, 3)

    def number(self, value: float) -> str:
        """A metric's value, in the score's own unit: an accuracy as a fraction."""
        return f"{value:.4f}" if self.is_accuracy else significant(value, 4)

    def check(self, value: object, what: str) -> float:
        """A value as it is kept, NaN = not measured; ``what`` it is called in messages."""
        least, most = (0, 1) if self.is_accuracy else (-MAX_SCORE, MAX_SCORE)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (least <= value <= most or value != value):  # type: ignore[operator]
            expected = f"a finite number up to {MAX_SCORE:g}"
            if self.is_accuracy:
                expected = "a fraction from 0 to 1 (not percent)"
            raise RecordError(
                f"{what} is {safe_repr(value)}; expected {expected}, or nothing where it was not "
                "measured"
            )
        cell = float(value)  # type: ignore[arg-type]
        # One NaN for all: tuples compare by identity first, so that equal rows are equal.
        return math.nan if math.isnan(cell) else cell + 0.0


ACCURACY = Score()


class StoredScore(msgspec.Struct):
    """A score as JSON has it."""

    name: str
    lower_is_better: bool

    @property
    def score(self) -> Score:
        """The score that it says."""
        return Score(self.name, higher_is_better=not self.lower_is_better)


def number_of(metric: str, score: Score) -> Callable[[float], str]:
    """What writes a metric's values: in the score's unit, but what a run cost has one of its own.

    >>> number_of("cost/images", ACCURACY)(1234567), number_of("gem/accuracy", ACCURACY)(0.5)
    ('1.235e+06', '0.5000')
    """
    return partial(significant, digits=4) if metric.startswith("cost/") else score.number


def significant(value: float, digits: int) -> str:
    """A number with so many digits at least; very large and very small ones with a power of ten.

    >>> [significant(x, 3) for x in (0.12345, 12.345, 3512.4, 4.5e-7, 0.0)]
    ['0.123', '12.3', '3512', '4.50e-07', '0']
    """
    if math.isnan(value):
        return NOT_MEASURED
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
