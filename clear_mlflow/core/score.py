"""What a row measures: accuracy, or another score and its direction, and the cost of the row."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import NOT_MEASURED, format_percent, safe_repr
from clear_mlflow.core.untrusted import MAX_TEXT_CHARACTERS, convert

# The largest score: sums and squares of a complete matrix of such scores are finite.
MAX_SCORE = 1e150
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)


@dataclass(frozen=True)
class Score:
    """Score that was measured on each bucket.

    Args:
        name: ``accuracy`` or another name such as ``rmse``; it becomes part of metrics' names.
        higher_is_better: whether the higher of two values is better.

    Raises:
        RecordError: the name is invalid, or lower accuracy is declared to be better.

    >>> Score("rmse", higher_is_better=False).better
    'lower'
    """

    name: str = "accuracy"
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RecordError(
                f"score is {safe_repr(self.name)}; expected a name of up to 40 letters, digits, _ "
                "and -, such as rmse or macro_f1"
            )
        if not isinstance(self.higher_is_better, bool):
            raise RecordError(
                f"lower_is_better is {safe_repr(self.higher_is_better)}; expected true or false"
            )
        if self.name.lower() == "accuracy" and (
            self.name != "accuracy" or not self.higher_is_better
        ):
            raise RecordError(
                f"score is {safe_repr(self.name)}, {self.better} is better; expected accuracy, for "
                "which higher is better, or another name such as error_rate"
            )

    @property
    def is_accuracy(self) -> bool:
        """Whether it is the fraction of images classified correctly."""
        return self.name == "accuracy"

    @property
    def better(self) -> str:
        """The better of two values: the ``higher`` or the ``lower`` one."""
        return "higher" if self.higher_is_better else "lower"

    @property
    def heading(self) -> str:
        """First word of a heading: "Accuracy", or the score's name."""
        return "Accuracy" if self.is_accuracy else self.name

    @property
    def label(self) -> str:
        """Label of the numbers that :meth:`format_cell` returns."""
        return "accuracy (%)" if self.is_accuracy else f"{self.name} ({self.better} is better)"

    @property
    def unit(self) -> str:
        """Unit that follows the number of a cell in a sentence."""
        return " %" if self.is_accuracy else ""

    def format_cell(self, value: float) -> str:
        """Format a cell, accuracies in percent, NaN as a dash.

        An accuracy is in percent with one decimal, any other score has three significant digits.
        """
        return format_percent(value) if self.is_accuracy else format_significant(value, 3)

    def format_metric(self, value: float) -> str:
        """Format a metric, accuracies as fractions with four decimals.

        Any other score has four significant digits, or is a dash for NaN.
        """
        return f"{value:.4f}" if self.is_accuracy else format_significant(value, 4)

    def convert_value(self, value: object, name: str) -> float:
        """Convert a score to a float, NaN = unmeasured, or raise RecordError.

        Raises RecordError unless it is a number, from 0 to 1 if the score is accuracy, otherwise
        from -1e150 to 1e150. name: name of the value in the message.
        """
        least, most = (0, 1) if self.is_accuracy else (-MAX_SCORE, MAX_SCORE)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (least <= value <= most or value != value):  # type: ignore[operator]
            expected = f"a finite number up to {MAX_SCORE:g}"
            if self.is_accuracy:
                expected = "a fraction from 0 to 1 (not percent)"
            raise RecordError(
                f"{name} is {safe_repr(value)}; expected {expected}, or nothing if not measured"
            )
        cell = float(value)  # type: ignore[arg-type]
        if cell != value == value:
            raise RecordError(
                f"{name} is {safe_repr(value)}, which a float would round to {cell!r}; pass a "
                "float, or an integer up to 2**53"
            )
        # Always the same NaN: tuples compare by identity first, so that equal rows are equal.
        return math.nan if math.isnan(cell) else cell + 0.0


ACCURACY = Score()


class StoredScore(msgspec.Struct):
    """A score as it is stored in JSON."""

    name: str
    lower_is_better: bool

    @property
    def score(self) -> Score:
        """The stored score."""
        return Score(self.name, higher_is_better=not self.lower_is_better)


def format_significant(value: float, digits: int) -> str:
    """Format a number with significant digits, NaN as a dash.

    Whole digits are never cut off. Numbers below 1e-4 or from 1e6 on have a power of ten.

    >>> [format_significant(x, 3) for x in (0.12345, 12.345, 3512.4, 4.5e-7, 0.0)]
    ['0.123', '12.3', '3512', '4.50e-07', '0']
    """
    if math.isnan(value):
        return NOT_MEASURED
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**62)]


class RowCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cost of a row; None is not known, and never 0.

    FLOPs, images, bytes and parameters are the same on every machine. Seconds and memory belong to
    *device*.

    Args:
        training_flops: FLOPs of convolutions, matrix products and attention, forward and backward;
            a multiplication and an addition are two.
        test_flops: FLOPs of the row's test, and of tests within its bucket.
        images: images of the bucket that steps trained on; an image counts in every epoch.
        replayed_images: images of other buckets that steps trained on.
        stored_bytes: memory that the strategy keeps once the bucket is done.
        trainable_parameters: trainable parameters of the model, as the bucket was trained.
        seconds: time of the training.
        device_seconds: time of all GPUs together, else of the processors.
        test_seconds: time of the tests.
        peak_bytes: peak memory of the first process's GPU, else of that process so far.
        device: name of the GPU or the processor.
    """

    training_flops: _Count | None = None
    test_flops: _Count | None = None
    images: _Count | None = None
    replayed_images: _Count | None = None
    stored_bytes: _Count | None = None
    trainable_parameters: _Count | None = None
    seconds: _Seconds | None = None
    device_seconds: _Seconds | None = None
    test_seconds: _Seconds | None = None
    peak_bytes: _Count | None = None
    device: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known, in JSON types."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def parse_row_cost(cost: RowCost | Mapping[str, object] | None) -> RowCost | None:
    """Convert a row's cost, or raise RecordError. None remains None.

    Numbers of NumPy and tensors become Python's. Raises RecordError if a value is invalid, and
    ConfigError if a field does not exist.
    """
    if cost is None:
        return None
    if not isinstance(cost, (RowCost, Mapping)):
        raise RecordError(
            f"cost is {safe_repr(cost)}; expected a dictionary such as {{'seconds': 1.5}}"
        )
    fields = dict(cost.to_dict() if isinstance(cost, RowCost) else cost)
    if unknown := sorted(map(str, fields.keys() - set(RowCost.__struct_fields__))):
        raise ConfigError(
            f"cost names {safe_repr(unknown[0])}; expected some of "
            f"{', '.join(RowCost.__struct_fields__)}"
        )
    for name, value in fields.items():
        if getattr(value, "shape", None) == ():  # a number of NumPy or a tensor
            value = value.item()
        is_whole = isinstance(value, float) and value.is_integer()
        fields[name] = int(value) if is_whole else value
    checked: RowCost = convert(fields, RowCost, "cost")
    return checked
