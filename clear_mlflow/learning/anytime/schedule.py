"""When a model is tested inside a bucket."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

    def num_tests(self, epochs: int, steps_an_epoch: int) -> int:
        """Tests inside a bucket; its end is none: the row is measured there.

        >>> EvalInterval(2, "epochs").num_tests(6, 10), EvalInterval(7, "steps").num_tests(2, 10)
        (2, 2)
        """
        return (epochs * steps_an_epoch - 1) // self.steps(steps_an_epoch)


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


def num_tests_in_buckets(
    interval: EvalInterval, epochs: int, batch_size: int | str, num_train: Sequence[int]
) -> list[int]:
    """Tests inside each bucket of *num_train* images, where it is trained on alone.

    Of *batch_size*, any text is all images of an epoch.
    """
    found = []
    for images in num_train:
        size = images if isinstance(batch_size, str) else batch_size
        # A rest of one image joins the batch before it.
        steps = max(1, images // size + (images % size > 1))
        found.append(interval.num_tests(epochs, steps))
    return found
