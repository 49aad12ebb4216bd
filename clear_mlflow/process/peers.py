"""The other processes that torchrun started on this machine: which of them have died.

When one dies, torchrun ends the others by a signal, the same as it hands on when it is
stopped itself. Which of the two it was shows in whether all were alive when the signal came.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from clear_mlflow.core.distributed import DistributedEnv


class PeerProcesses:
    """Those of a training; looked for once, and looked at again when asked."""

    def __init__(self, place: DistributedEnv) -> None:
        self._place = place
        self._found: dict[int, psutil.Process] = {}
        self.died: tuple[int, ...] = ()  # ranks

    def find(self) -> None:
        """Look for them, once all have been started."""
        if self._place.size == 1:
            return
        with suppress(psutil.Error):
            for process in psutil.Process(os.getppid()).children():
                # A process that has just ended, or is another user's, cannot be read.
                with suppress(psutil.Error, KeyError, ValueError):
                    rank = int(process.environ()["RANK"])
                    if rank != self._place.rank:
                        self._found[rank] = process

    def look(self) -> None:
        """Remember which have died by now."""
        self.died = tuple(sorted(r for r, process in self._found.items() if not _lives(process)))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
