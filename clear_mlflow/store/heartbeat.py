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
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.store import names

# Thirty missed heartbeats' worth: far above any outage of a server that training survives.
SILENCE = timedelta(minutes=15)
# Clocks that nobody sets drift by seconds a day. A heartbeat from further ahead was made up, or its
# machine's clock is wrong: it would be young for ever, and nobody could go on with the run.
CLOCKS_DIFFER = timedelta(minutes=5)


def heartbeat() -> str:
    """This process and this moment, as the process tag holds them; to be set again and again."""
    return json.dumps(
        {
            "host": _host(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "ticks": _start_ticks(os.getpid()),
            "alive_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
    )


def trains_now(run: Run) -> bool:
    """Whether a process of ours trains into the run, and has not been found dead."""
    return _is_running(run) and names.PROCESS_TAG in run.data.tags and not is_abandoned(run)


def is_abandoned(run: Run) -> bool:
    """Whether a run is RUNNING in MLflow while the process that trained it is gone.

    A run without our heartbeat is somebody else's: never called abandoned.
    """
    if not _is_running(run):
        return False
    found = _read(run.data.tags.get(names.PROCESS_TAG))
    if found is None:
        return False
    if found.is_here:
        return not _lives(found)
    return not -CLOCKS_DIFFER <= found.age <= SILENCE


def begins_now(told: str | None, seconds: float) -> bool:
    """Whether a process that said so by a heartbeat may be about to train.

    Args:
        told: what :func:`heartbeat` gave it; None: nobody said so.
        seconds: how long it may take.
    """
    found = _read(told)
    return (
        found is not None
        and -CLOCKS_DIFFER <= found.age < timedelta(seconds=seconds)
        and (not found.is_here or _lives(found))
    )


def time_ahead(told: str | None) -> timedelta | None:
    """How far a heartbeat lies in the future, where that is too far for it to be a sign of life.

    Args:
        told: what :func:`heartbeat` gave; None and anything else are not in the future.
    """
    found = _read(told)
    return -found.age if found is not None and found.age < -CLOCKS_DIFFER else None


@dataclass(frozen=True)
class _Heartbeat:
    """What a heartbeat says, read back; anyone may have written it."""

    is_here: bool  # of this machine and container: its process can be asked for
    pid: int
    started: float
    ticks: object  # from the machine's start to the process's; no clock step moves them
    age: timedelta  # negative: it lies in the future


def _read(told: str | None) -> _Heartbeat | None:
    try:
        process = json_object(told or "", MAX_TAG_BYTES)
        said_at = datetime.fromisoformat(process["alive_at"])
        host, pid, started = process["host"], int(process["pid"]), float(process["started"])
        age = datetime.now(timezone.utc) - said_at
    except (RecordError, LookupError, ValueError, TypeError, OverflowError):
        return None
    return _Heartbeat(host == _host(), pid, started, process.get("ticks"), age)


def _is_running(run: Run) -> bool:
    return str(run.info.status) == "RUNNING"


def _lives(found: _Heartbeat) -> bool:
    try:
        process = psutil.Process(found.pid)
        # A number is given out again: only its start tells that it is the same process. The time of
        # it moves when the clock is set; it counts where an earlier version wrote no ticks, or the
        # system has none.
        if found.ticks is None:
            same = abs(process.create_time() - found.started) < 1.0
        else:
            same = _start_ticks(found.pid) == found.ticks
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, ValueError, OverflowError):  # a number that no machine gives out
        return False


def _start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None where the system has none."""
    try:
        # The name of the program, in parentheses, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _host() -> str:
    """A name for this machine and container since its last start; pids count within it."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # no Linux: the host's name alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
