"""Ctrl-C for a command that works through a list: what was done is shown, the rest is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """KeyboardInterrupt at the first stopping signal (mlflow run sends two); lists all."""
    received: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if len(received) == 1:
            raise KeyboardInterrupt

    before: dict[int, Any] = {}
    for stopping in _STOPPING:
        if signal.getsignal(stopping) is not signal.SIG_IGN:
            before[stopping] = signal.signal(stopping, handle)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
