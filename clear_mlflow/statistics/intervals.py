"""Two ends, and how sure they are."""

from __future__ import annotations

from typing import NamedTuple

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr


class Interval(NamedTuple):
    """Two ends, both belonging to it."""

    low: float
    high: float

    @property
    def flipped(self) -> Interval:
        """Of B - A where this is of A - B."""
        return Interval(-self.high, -self.low)


def check_level(level: float) -> None:
    """Raise ConfigError where a level of confidence is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(
            f"level is {safe_repr(level)}; expected a fraction between 0 and 1, for example 0.95"
        )
