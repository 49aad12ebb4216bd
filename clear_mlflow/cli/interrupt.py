"""Ctrl-C for a command that works through a list: what was done is shown, the rest is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clear_mlflow.process.signals import StoppingSignals


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """KeyboardInterrupt at the first stopping signal (mlflow run sends two); lists all."""
    with StoppingSignals(tell=False) as signals:
        signals.hand_to(_interrupt)
        yield signals.received


def _interrupt() -> None:
    raise KeyboardInterrupt
