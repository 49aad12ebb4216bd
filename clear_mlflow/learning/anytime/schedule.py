"""When a model is tested inside a bucket."""

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
    """How much is trained from one test inside a bucket to the next."""

    number: int
    unit: Literal["epochs", "steps"]

    def __str__(self) -> str:
        return str(self.number) if self.unit == "epochs" else f"{self.number}steps"

    def steps(self, steps_an_epoch: int) -> int:
        """The same in optimiser steps."""
        return self.number * (steps_an_epoch if self.unit == "epochs" else 1)


def parse_interval(text: str) -> EvalInterval | None:
    """What ``test_every`` says; None where it is off. Raises ValueError where it is no interval.

    >>> str(parse_interval("3")), str(parse_interval("200 steps")), parse_interval("off")
    ('3', '200steps', None)
    """
    if text == OFF:
        return None
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError("expected off, a whole number of epochs, as 1, or of steps, as 200steps")
    return EvalInterval(int(match[1]), "steps" if (match[2] or "").startswith("step") else "epochs")
