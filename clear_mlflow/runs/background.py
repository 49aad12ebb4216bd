"""What a training need not wait for: a thread of little weight, and the run's heartbeat."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from clear_mlflow.core.warning import warn

_HEARTBEAT_SECONDS = 30.0
# A tenth of the share that a thread has which trains. A picture takes a core for a tenth of a
# second: one thread of the training would wait for that core, and all others for that thread.
_NICENESS = 10


class BackgroundWorker:
    """One thread that does what training need not wait for, in order.

    Args:
        beat: says that the process lives; called again and again.
        every: seconds between two beats, whatever else there is to do.
    """

    def __init__(self, beat: Callable[[], None], *, every: float = _HEARTBEAT_SECONDS) -> None:
        self._beat = beat
        self._every = every
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._finishing = threading.Event()
        # A call that hangs must not keep the process: nothing here is needed.
        self._thread = threading.Thread(
            target=self._work, name="clear_mlflow tracking", daemon=True
        )

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def send(self, job: Callable[[], None]) -> None:
        """Have something done after all that was sent before."""
        self._jobs.put(job)

    def finish(self, seconds: float | None, *, leave_rest: bool = False) -> None:
        """Do what is left to do, within that time; stop at the first job that fails.

        Args:
            seconds: to wait at most; None: as long as it takes.
            leave_rest: do nothing that is not begun: whoever stops a training waits for it.
        """
        if leave_rest:
            with suppress(queue.Empty):
                while True:
                    self._jobs.get_nowait()
        self._finishing.set()
        self._jobs.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        failed = False
        beat_at = time.monotonic() + self._every
        while True:
            now = time.monotonic()
            job: Callable[[], None] | None = self._beat
            if now >= beat_at:
                beat_at = now + self._every
            else:
                try:
                    job = self._jobs.get(timeout=beat_at - now)
                except queue.Empty:
                    continue
            if job is None:
                return
            try:
                job()
            except Exception as error:  # the row itself is stored: see TrackedRun
                if not failed:
                    warn(f"a picture is left out, the last one is drawn at the end: {error}")
                failed = True
                if self._finishing.is_set():
                    return
