"""Which process trains into a run, whether it still lives, and whether it still holds the run.

A run whose process was killed with SIGKILL, or whose machine went down, stays RUNNING for ever in
MLflow. The run therefore carries a heartbeat. On the same machine, the process itself is looked
for. From elsewhere, the heartbeat's age decides, and then whether the heartbeat is seen not to
change: a clock that is set to another time never makes a living process count as dead.

A process that was only suspended, or cut off from the store, may wake up after another one has
taken its run over. Each process that takes a run writes its own token into a tag, and looks for it
before it stores anything: of two processes, the one whose token is there holds the run.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.text import printable, shortened
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.core.warning import warn
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors

# Thirty missed heartbeats' worth: far above any outage of a server that training survives.
SILENCE = timedelta(minutes=15)
# Clocks that nobody sets drift by seconds a day. A heartbeat from further ahead was made up, or its
# machine's clock is wrong: it would be young for ever, and the run could never be resumed.
CLOCKS_DIFFER = timedelta(minutes=5)
# How long a heartbeat of another machine that seems to be old is watched: it beats twice in this.
WATCH_SECONDS = 70.0
# How long a process that found its token in a run may store without looking again. On a clock that
# runs on while the process or its machine is suspended: whoever slept longer looks first.
FRESH_SECONDS = 1.0
_LOOK_SECONDS = 5.0
_PROC_STAT = Path("/proc/stat")


class LostRunError(TrackingError):
    """Another process has taken the run over: this one may store nothing more in it."""


def heartbeat() -> str:
    """This process and this moment, as the process tag holds them; to be set again and again."""
    own = _process(os.getpid())
    return json.dumps(
        {
            "host": _host(),
            "pid": os.getpid(),
            "started": own.started,
            "ticks": own.ticks,
            "alive_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "token": _token(),
        }
    )


def holding(run: Run | None = None) -> dict[str, str]:
    """The tags by which this process takes a run; whoever held it until then has lost it.

    Args:
        run: that is taken; None: a new one.
    """
    now = heartbeat()
    written = {names.PROCESS_TAG: now, names.HOLDER_TAG: now}
    # Where a run of before shows them: a process of an earlier version looks for them there.
    return names.as_held(written, run.data.tags if run else {})


def take_hold(client: MlflowClient, run: Run) -> None:
    """Take a run without saying that this process trains into it."""
    _set(client, run, names.HOLDER_TAG, heartbeat())


def beat(client: MlflowClient, run: Run) -> None:
    """Say that the process of a run lives; to be said again and again."""
    _set(client, run, names.PROCESS_TAG, heartbeat())


def give_back(client: MlflowClient, run: Run) -> None:
    """Undo :func:`take_hold`: others judge by the heartbeat of before whether they may have it.

    Args:
        client: the store.
        run: as it was before.
    """
    before = told_by(run, names.HOLDER_TAG)
    holder = _read(told_by(client.get_run(run.info.run_id), names.HOLDER_TAG))
    if holder is None or holder.token != _token():
        return
    if before is None:
        client.delete_tag(run.info.run_id, names.HOLDER_TAG)
    else:
        _set(client, run, names.HOLDER_TAG, before)


def told_by(run: Run, tag: str) -> str | None:
    """What a run says in the tag of its process or of its holder, now or under its name before."""
    return names.as_of_now(run.data.tags).get(tag)


def _set(client: MlflowClient, run: Run, tag: str, text: str) -> None:
    for key, value in names.as_held({tag: text}, run.data.tags).items():
        client.set_tag(run.info.run_id, key, value)


class Hold:
    """Looks whether this process still holds runs.

    Args:
        client: the store.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._seen: dict[str, tuple[float, Run]] = {}
        self.lost: LostRunError | None = None

    def check(self, run_id: str, *, now: bool = False) -> Run:
        """Make sure that this process holds a run, unless it was made sure of a moment ago.

        Args:
            run_id: of the run.
            now: look in any case.

        Returns:
            The run, as it was when it was looked at last.

        Raises:
            LostRunError: another process has taken it over; from then on it is raised always.
            TrackingError: the store does not answer.
        """
        if self.lost is not None:
            raise self.lost
        at = _uptime()
        seen = self._seen.get(run_id)
        if seen is not None and not now and at - seen[0] < FRESH_SECONDS:
            return seen[1]
        with mlflow_errors(f"read run {run_id}"):
            run = self._client.get_run(run_id)
        try:
            refuse_if_lost(run)
        except LostRunError as lost:
            self.lost = lost
            raise
        self._seen[run_id] = at, run
        return run


def refuse_if_lost(run: Run) -> None:
    """Make sure that this process holds a run.

    Raises:
        LostRunError: it does not.
    """
    holder = _read(told_by(run, names.HOLDER_TAG))
    if holder is None or holder.token != _token():
        by = "nobody that says so" if holder is None else holder.who
        raise LostRunError(
            f"run {run.info.run_id} is held by {by}: it was taken over while this process was "
            "stopped or cut off from the store"
        )


def trains_now(client: MlflowClient, run: Run) -> bool:
    """Whether a process of ours trains into the run, and has not been found dead."""
    says_so = told_by(run, names.PROCESS_TAG) is not None
    return _is_running(run) and says_so and not is_abandoned(client, run)


def is_abandoned(client: MlflowClient, run: Run) -> bool:
    """Whether a run is RUNNING in MLflow while the process that trained it is gone.

    A run without our heartbeat is not ours, and is never called abandoned. A heartbeat of another
    machine that seems to be old is watched for a minute before the run is called abandoned.
    """
    if not seems_abandoned(run):
        return False
    found = _trainer(run)
    return found is not None and (found.is_here or _stands_still(client, run))


def seems_abandoned(run: Run) -> bool:
    """Whether a run is, by the clocks of all machines, what :func:`is_abandoned` says."""
    found = _trainer(run)
    if found is None or not _is_running(run):
        return False
    if found.is_here:
        return not found.lives
    return not -CLOCKS_DIFFER <= found.age <= SILENCE


def sign_of_life(run: Run) -> str | None:
    """How old a heartbeat from elsewhere is, and until when it counts; None of one from here."""
    found = _trainer(run)
    if found is None or found.is_here:
        return None
    seconds = max(0, round(found.age.total_seconds()))
    until = found.said_at.astimezone(timezone.utc) + SILENCE
    return (
        "its last sign of life, from another machine or from before a restart of this one, is "
        f"{seconds // 60} min {seconds % 60} s old; without another one it can be resumed after "
        f"{until:%H:%M:%S} UTC, or at once, if you know that its process is dead: clear-mlflow "
        f"train --resume {run.info.run_id} --assume-dead yes"
    )


def begins_now(told: str | None, seconds: float) -> bool:
    """Whether a process that said so by a heartbeat may be about to train.

    Args:
        told: what :func:`heartbeat` gave that process; None: no process said so.
        seconds: how long it may take.
    """
    found = _read(told)
    return (
        found is not None
        and -CLOCKS_DIFFER <= found.age < timedelta(seconds=seconds)
        and (not found.is_here or found.lives)
    )


def lives_here(run: Run) -> bool:
    """Whether the process that trains into a run is one of this machine's, and is there."""
    found = _trainer(run)
    return found is not None and found.is_here and found.lives


def is_from_here(run: Run) -> bool:
    """Whether the last heartbeat of a run came from this machine since its start; none did, too."""
    found = _trainer(run)
    return found is None or found.is_here


def may_still_store(run: Run) -> bool:
    """Whether the process that held a run may be about to store something that it looked for."""
    holder = _read(told_by(run, names.HOLDER_TAG))
    return holder is not None and not (holder.is_here and not holder.lives)


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

    host: str
    is_here: bool  # of this machine and container: its process can be asked for
    pid: int
    started: float
    ticks: int | None  # between the machine's start and the process's; no clock step moves them
    said_at: datetime
    token: str | None

    @property
    def age(self) -> timedelta:
        """By the clocks of both machines; negative: it lies in the future."""
        return datetime.now(timezone.utc) - self.said_at

    @property
    def who(self) -> str:
        """The process, as people find it."""
        name = shortened(printable(self.host.partition("/")[0]), 80)
        return f"process {self.pid} on {name} since {self.said_at:%Y-%m-%d %H:%M:%S %Z}"

    @property
    def lives(self) -> bool:
        """Whether the process, which is one of this machine's, is there."""
        try:
            process = _process(self.pid)
        except ProcessLookupError:
            return False
        if process.is_zombie:
            return False
        # A number is used again: only the start shows that it is the same process.
        if self.ticks is None:  # of an earlier version, or of another system
            return abs(process.started - self.started) < 1.0
        return process.ticks == self.ticks


def _trainer(run: Run) -> _Heartbeat | None:
    """What is known of the process that trains into a run; None where none of ours does.

    The last heartbeat, unless another process has taken the run since: a late beat of the one that
    has lost it is no sign of life of the one that holds it.
    """
    found = _read(told_by(run, names.PROCESS_TAG))
    holder = _read(told_by(run, names.HOLDER_TAG))
    if found is None or holder is None or holder.token == found.token:
        return found
    return holder


def _read(told: str | None) -> _Heartbeat | None:
    try:
        process = json_object(told or "", MAX_TAG_BYTES)
        said_at = datetime.fromisoformat(process["alive_at"])
        host, pid, started = str(process["host"]), int(process["pid"]), float(process["started"])
        ticks, token = process.get("ticks"), process.get("token")
        found = _Heartbeat(host, host == _host(), pid, started, ticks, said_at, token)
        found.age  # noqa: B018 (a time without its zone has none)
    except (RecordError, LookupError, ValueError, TypeError, OverflowError):
        return None
    return found


_watched: dict[str, tuple[str | None, float]] = {}  # run to its heartbeat, and when it was first so


def _stands_still(client: MlflowClient, run: Run) -> bool:
    """Whether the heartbeat of another machine is not seen to change for as long as two take."""
    run_id, told = run.info.run_id, told_by(run, names.PROCESS_TAG)
    if _watched.get(run_id, (None, 0.0))[0] != told:
        # All that are open are watched from now on, so that many take no longer than one.
        with mlflow_errors(f"watch run {run_id}"):
            beside = client.search_runs(
                [run.info.experiment_id], "attributes.status = 'RUNNING'", max_results=1000
            )
        for other in (*beside, run):
            said = told_by(other, names.PROCESS_TAG)
            if _watched.get(other.info.run_id, (None, 0.0))[0] != said:
                _watched[other.info.run_id] = said, time.monotonic()
    until = _watched[run_id][1] + WATCH_SECONDS
    if time.monotonic() < until:
        warn(
            f"run {run_id} was trained on another machine, and its last sign of life seems to be "
            f"old; looking for {until - time.monotonic():.0f} s whether it gives another one"
        )
    while True:
        with mlflow_errors(f"watch run {run_id}"):
            now = client.get_run(run_id)
        if told_by(now, names.PROCESS_TAG) != told:
            return False
        left = until - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(_LOOK_SECONDS, left))


def _is_running(run: Run) -> bool:
    return str(run.info.status) == "RUNNING"


def _token() -> str:
    return _token_of(os.getpid())


@functools.cache
def _token_of(pid: int) -> str:
    return secrets.token_hex(8)


def _uptime() -> float:
    """Seconds on a clock that nobody sets, and that runs on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class _Process:
    """A process of this machine."""

    started: float  # seconds since 1970, by the clock as it is set now
    ticks: int | None  # between the machine's start and its own; None where the system has none
    is_zombie: bool


def _process(pid: int) -> _Process:
    """A process of this machine.

    Raises:
        ProcessLookupError: it has none of this number.
    """
    if not _PROC_STAT.exists():
        return _process_without_proc(pid)
    try:
        # The name of the program, in parentheses, may hold anything.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError) as error:  # also a number that no machine gives out
        raise ProcessLookupError from error
    ticks = int(stat[19])
    started = _boot_time() + ticks / os.sysconf("SC_CLK_TCK")
    return _Process(started, ticks, is_zombie=stat[0] == "Z")


def _boot_time() -> int:
    """When this machine started, in seconds since 1970 by the clock as it is set now."""
    return int(_PROC_STAT.read_text().partition("\nbtime ")[2].split()[0])


def _process_without_proc(pid: int) -> _Process:
    """As :func:`_process`, on macOS for one."""
    import psutil  # here: on Linux, a machine that only reads runs may lack it

    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return _Process(process.create_time(), None, is_zombie=is_zombie)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise ProcessLookupError from error


def _host() -> str:
    """A name for this machine and container since its last start; pids count within it."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # no Linux: the host's name alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
