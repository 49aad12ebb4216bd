"""When a model is tested within a bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

OFF = "off"
# Each is a file of the run, and a request to a store that is elsewhere.
MOST_TESTS = 10_000

_INTERVAL = re.compile(r"([1-9][0-9]{0,8}) *(steps?|epochs?)?")


@dataclass(frozen=True)
class EvalInterval:
    """How much is trained between two tests within a bucket."""

    number: int
    unit: Literal["epochs", "steps"]

    def __str__(self) -> str:
        return str(self.number) if self.unit == "epochs" else f"{self.number}steps"

    def count_steps(self, epoch_steps: int) -> int:
        """Return the interval in optimiser steps."""
        return self.number * (epoch_steps if self.unit == "epochs" else 1)


def parse_interval(text: str) -> EvalInterval | None:
    """Parse ``test_every``, or return None if it is off. Raises ValueError if it is invalid.

    >>> str(parse_interval("3")), str(parse_interval("200 steps")), parse_interval("off")
    ('3', '200steps', None)
    """
    if text == OFF:
        return None
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError(
            "expected off, a whole number of epochs, such as 1, or of steps, such as 200steps"
        )
    return EvalInterval(int(match[1]), "steps" if (match[2] or "").startswith("step") else "epochs")
