"""Signals that ask a run to stop, from the first moment to the last."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppingSignals:
    """Hands the first SIGINT, SIGTERM or SIGHUP on, and ignores repeats.

    Signals that the process was started to ignore, as by ``nohup``, stay ignored.
    """

    def __init__(self, *, print_message: bool = True) -> None:
        self._print_message = print_message
        self.received: list[int] = []
        self._stop: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StoppingSignals:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets no other thread handle signals
        for signum in _STOPPING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def hand_to(self, stop: Callable[[], None]) -> None:
        """Call *stop* once: at the first signal, or now after one.

        Replaces what an earlier call passed.
        """
        self._stop = stop
        if self.received:
            stop()

    def raise_received(self) -> None:
        """Raise KeyboardInterrupt if the first signal was SIGINT, or SystemExit(128 + signal).

        Does nothing if no signal was received.
        """
        if self.received:
            is_interrupt = self.received[0] == signal.SIGINT
            raise KeyboardInterrupt if is_interrupt else SystemExit(128 + self.received[0])

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.received.append(signum)
        if len(self.received) > 1:
            return
        if self._stop is not None:
            self._stop()
        if not self._print_message:
            return
        # The terminal may be what has gone, or be in the middle of another line.
        with suppress(OSError, RuntimeError):
            name = signal.Signals(signum).name
            print(f"{name}: stopping; the rows so far will be scored", file=sys.stderr, flush=True)


@contextmanager
def interrupt_on_signal() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the block's first SIGINT, SIGTERM or SIGHUP.

    Yields the list of the signals received so far. ``mlflow run`` sends a Ctrl-C twice, so repeats
    are ignored. Handles no signal in another thread than the main one.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    with StoppingSignals(print_message=False) as signals:
        signals.hand_to(interrupt)
        yield signals.received
