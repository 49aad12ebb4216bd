"""Ctrl-C for a command that works through a list: what was done is shown, the rest is left."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON_SECONDS = 0.01


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the first stopping signal, and ignore its repeats.

    A Ctrl-C under ``mlflow run`` arrives twice: from the terminal, and from MLflow.

    Yields:
        The signals that came.
    """
    received: list[int] = []
    postponed: list[threading.Timer] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        if not received and _would_swallow(frame):
            timer = threading.Timer(_SOON_SECONDS, os.kill, (os.getpid(), signum))
            timer.daemon = True
            postponed.append(timer)
            timer.start()
            return
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
        for timer in postponed:
            timer.cancel()
            timer.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _would_swallow(frame: FrameType | None) -> bool:
    """Whether Python prints and forgets what is raised here: while it takes an object away."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        if frame.f_globals.get("__name__") in ("weakref", "_weakrefset"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def scratch_folder() -> Iterator[None]:
    """One folder for all temporary files of this process, gone when it ends.

    Downloads that a Ctrl-C leaves behind in other threads would not clean up after themselves.
    """
    before = tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="clear_mlflow_")
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)
