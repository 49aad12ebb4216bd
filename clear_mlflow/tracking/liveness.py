"""Whether the process that trains into a run still lives.

A run whose process was killed with SIGKILL, or whose machine went down, stays RUNNING for ever in
MLflow. The run therefore carries who trains it, and a heartbeat: on the same machine the process
itself is asked for, from elsewhere the heartbeat's age decides.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
from mlflow.entities import Run

from clear_mlflow.tracking import names

# Thirty missed heartbeats' worth: far above any outage of a server that training survives.
SILENCE = timedelta(minutes=15)


def process_tags() -> dict[str, str]:
    """The tags that say who trains: set once."""
    started = psutil.Process().create_time()
    return {
        names.PROCESS_TAG: json.dumps({"host": _host(), "pid": os.getpid(), "started": started})
    }


def heartbeat_tags() -> dict[str, str]:
    """The tags that say that training is alive now: set again and again."""
    return {names.HEARTBEAT_TAG: datetime.now(timezone.utc).isoformat(timespec="seconds")}


def is_running(run: Run) -> bool:
    """Whether a run is in progress, as far as MLflow knows."""
    return str(run.info.status) == "RUNNING"


def is_abandoned(run: Run) -> bool:
    """Whether a run is RUNNING in MLflow while the process that trained it is gone.

    A run without our heartbeat is somebody else's: never called abandoned.
    """
    if not is_running(run):
        return False
    try:
        process = json.loads(run.data.tags[names.PROCESS_TAG])
        heartbeat = datetime.fromisoformat(run.data.tags[names.HEARTBEAT_TAG])
        host, pid, started = process["host"], int(process["pid"]), float(process["started"])
        silent = datetime.now(timezone.utc) - heartbeat
    except (KeyError, ValueError, TypeError):
        return False
    if host == _host():
        return not _lives(pid, started)
    return silent > SILENCE


def _lives(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        # A number is given out again: only the start time tells that it is the same process.
        same = abs(process.create_time() - started) < 1.0
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _host() -> str:
    """A name for this machine and container since its last start; pids count within it."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # no Linux: the host's name alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
