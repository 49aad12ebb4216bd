"""Which process trains into a run, whether it still lives, and whether it still holds the run.

On the same machine the process itself is looked for. That one elsewhere is over, a scheduler may
know; else the heartbeat's age decides, and then whether it changes. Of two processes, the one whose
token is in the run's tag holds it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.core.text import printable, safe_repr, truncate, warn
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors

# Thirty missed heartbeats' worth: far above any outage of a server that training survives.
SILENCE = timedelta(minutes=15)
# Clocks that nobody sets drift by seconds a day. A heartbeat from further ahead was made up, or its
# machine's clock is wrong: it would be young for ever, and the run could never be resumed.
CLOCKS_DIFFER = timedelta(minutes=5)
# How long a heartbeat of another machine that seems to be old is watched: it beats twice in this.
WATCH_SECONDS = 70.0
_LOOK_SECONDS = 5.0
_PROC = Path("/proc")


class LostRunError(TrackingError):
    """Another process has taken the run over: this one may store nothing more in it."""


class StillHeldError(TrackingError):
    """A process on another machine may train into a run, and its silence was not to be awaited."""


def heartbeat() -> str:
    """This process and this moment, as the process tag holds them; to be set again and again."""
    job = scheduled()
    return json.dumps(
        {
            "host": _host(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "alive_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "token": _token(os.getpid()),
            **({} if job is None else {"job": job[0], "try": job[1]}),
        }
    )


def process_token() -> str:
    """Return the text by which runs and journals identify this process."""
    return _token(os.getpid())


def scheduled() -> tuple[str, int] | None:
    """The scheduler's job that this process is of, and its try, which ends all before it."""
    said = os.environ
    job, number = said.get("CLEAR_MLFLOW_JOB"), said.get("CLEAR_MLFLOW_TRY")
    if not (job and number) and (job := said.get("SLURM_JOB_ID")):
        job = f"slurm {said.get('SLURM_CLUSTER_NAME', '')} {job}"
        number = said.get("SLURM_RESTART_COUNT", "0")
    if not (job and number):
        return None
    if re.fullmatch("[0-9]{1,9}", number) is None:
        raise ConfigError(
            f"CLEAR_MLFLOW_TRY is {safe_repr(number)}; expected how often the job was started "
            "before, a whole number, or leave it out"
        )
    return job, int(number)


def holding() -> dict[str, str]:
    """The tags by which this process takes a run; whoever held it until then has lost it."""
    now = heartbeat()
    return {names.PROCESS_TAG: now, names.HOLDER_TAG: now}


def take_hold(client: MlflowClient, run: Run) -> None:
    """Take a run without saying that this process trains into it."""
    client.set_tag(run.info.run_id, names.HOLDER_TAG, heartbeat())


def beat(client: MlflowClient, run: Run) -> None:
    """Say that the process of a run lives; to be said again and again."""
    client.set_tag(run.info.run_id, names.PROCESS_TAG, heartbeat())


def give_back(client: MlflowClient, run: Run) -> None:
    """Undo :func:`take_hold` of a run as it was before; one that was taken since is left alone."""
    run_id, before = run.info.run_id, run.data.tags.get(names.HOLDER_TAG)
    if not _holds(client.get_run(run_id)):
        return
    if before is None:
        client.delete_tag(run_id, names.HOLDER_TAG)
    else:
        client.set_tag(run_id, names.HOLDER_TAG, before)


class Hold:
    """Looks whether this process still holds runs; once it has lost one, it says so always."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.lost: LostRunError | None = None

    def check(self, run_id: str) -> Run:
        """The run as it is now, where this process holds it; :class:`LostRunError` otherwise."""
        if self.lost is not None:
            raise self.lost
        with mlflow_errors(f"read run {run_id}"):
            run = self._client.get_run(run_id)
        try:
            refuse_if_lost(run)
        except LostRunError as lost:
            self.lost = lost
            raise
        return run


def refuse_if_lost(run: Run) -> None:
    """Raise :class:`LostRunError` where this process does not hold a run."""
    if not _holds(run):
        holder = _read(run.data.tags.get(names.HOLDER_TAG))
        by = "nobody that says so" if holder is None else holder.who
        raise LostRunError(
            f"run {run.info.run_id} is held by {by}: it was taken over while this process was "
            "stopped or cut off from the store"
        )


def trains_now(client: MlflowClient, run: Run) -> bool:
    """Whether a process of ours trains into the run, and has not been found dead."""
    says_so = names.PROCESS_TAG in run.data.tags
    return run.info.status == "RUNNING" and says_so and not is_abandoned(client, run)


def is_abandoned(client: MlflowClient, run: Run) -> bool:
    """Whether a run is RUNNING in MLflow while the process of ours that trained it is gone."""
    if not seems_abandoned(run):
        return False
    found = _trainer(run)
    return found is not None and (found.is_here or found.is_over or _stands_still(client, run))


def await_silence(
    client: MlflowClient,
    run_id: str,
    *,
    stay: bool = True,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until a process elsewhere has ended, gives a sign of life, or was silent; if *stay*."""
    told: str | None = None
    while True:
        with mlflow_errors(f"read run {run_id}"):
            run = client.get_run(run_id)
        found, says = _trainer(run), run.data.tags.get(names.PROCESS_TAG)
        if found is None or found.is_here or run.info.status != "RUNNING" or seems_abandoned(run):
            return
        if told is None:
            if not stay:
                raise StillHeldError(
                    f"another process may train into run {run_id} ({sign_of_life(run)}); start the "
                    "same command again later"
                )
            warn(
                f"run {run_id} was trained elsewhere, or before a restart of this machine, and its "
                f"last sign of life is {_span(found.age)} old; waiting for another one for "
                f"{_span(SILENCE - found.age)}, and then training here"
            )
            _watch(client, run)
            told = says
        elif says != told:
            return
        if stopping():
            raise TrackingError(f"stopped while waiting for the process that trained run {run_id}")
        time.sleep(_LOOK_SECONDS)


def seems_abandoned(run: Run) -> bool:
    """Whether a run is, by the clocks of all machines, what :func:`is_abandoned` says."""
    found = _trainer(run)
    if found is None or run.info.status != "RUNNING":
        return False
    if found.is_here:
        return not found.lives
    return found.is_over or not -CLOCKS_DIFFER <= found.age <= SILENCE


def sign_of_life(run: Run) -> str | None:
    """Which process of this machine trains, or how old a heartbeat from elsewhere is."""
    found = _trainer(run)
    if found is None:
        return None
    if found.is_here:
        return (
            f"process {found.pid} of this machine, stopped perhaps: 'kill -CONT {found.pid}' lets "
            f"it continue, 'kill -KILL {found.pid}' ends it"
        )
    until = found.said_at.astimezone(timezone.utc) + SILENCE
    return (
        "its last sign of life, from another machine or from before a restart of this one, is "
        f"{_span(found.age)} old; without another one it can be resumed after "
        f"{until:%H:%M:%S} UTC, or at once, if you know that its process is dead: clear-mlflow "
        f"train --resume {run.info.run_id} --assume-dead yes"
    )


def lives_here(run: Run) -> bool:
    """Whether the process that trains into a run is one of this machine's, and is there."""
    found = _trainer(run)
    return found is not None and found.is_here and found.lives


def is_trainer(run: Run, token: str) -> bool:
    """Return True if a run's last heartbeat is of the process with this token, or if none is."""
    found = _trainer(run)
    return found is None or found.token == token


def begins_now(told: str | None) -> bool:
    """Whether another process that said so by a heartbeat may be about to train."""
    found = _read(told)
    return (
        found is not None
        and found.token != _token(os.getpid())
        and -CLOCKS_DIFFER <= found.age < timedelta(seconds=WATCH_SECONDS)
        and (found.lives if found.is_here else not found.is_over)
    )


@dataclass(frozen=True)
class _Heartbeat:
    """What a heartbeat says, read back; anyone may have written it."""

    host: str
    pid: int
    started: float  # as _started gives it on that machine
    said_at: datetime
    token: str
    job: tuple[str, int] | None  # as scheduled gives it

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine and container: its process can be asked for."""
        return self.host == _host()

    @property
    def is_over(self) -> bool:
        """Whether this process is a later try of its job, started by a scheduler after its end."""
        ours = scheduled()
        return bool(ours and self.job and self.job[0] == ours[0] and self.job[1] < ours[1])

    @property
    def age(self) -> timedelta:
        """By the clocks of both machines; negative: it lies in the future."""
        return datetime.now(timezone.utc) - self.said_at

    @property
    def who(self) -> str:
        """The process, as people find it."""
        name = truncate(printable(self.host.partition("/")[0]), 80)
        return f"process {self.pid} on {name} since {self.said_at:%Y-%m-%d %H:%M:%S %Z}"

    @property
    def lives(self) -> bool:
        """Return False only if the process, which is one of this machine's, is certainly gone."""
        try:  # a number is used again: only the start shows that it is the same process
            return abs(_started(self.pid) - self.started) < 1.0
        except ProcessLookupError:
            return False
        except PermissionError:
            return True


def _trainer(run: Run) -> _Heartbeat | None:
    """The last heartbeat, or its holder's where another process has taken the run since."""
    tags = run.data.tags
    found, holder = _read(tags.get(names.PROCESS_TAG)), _read(tags.get(names.HOLDER_TAG))
    if found is None or holder is None or holder.token == found.token:
        return found
    return holder


def _span(time: timedelta) -> str:
    """A length of time as people say it; of one in the future, nothing."""
    seconds = max(0, round(time.total_seconds()))
    return f"{seconds // 60} min {seconds % 60} s"


def _holds(run: Run) -> bool:
    holder = _read(run.data.tags.get(names.HOLDER_TAG))
    return holder is not None and holder.token == _token(os.getpid())


def _read(told: str | None) -> _Heartbeat | None:
    try:
        said = json_object(told or "", MAX_TAG_BYTES)
        said_at = datetime.fromisoformat(said["alive_at"])
        host, pid, started = str(said["host"]), int(said["pid"]), float(said["started"])
        job = (str(said["job"]), int(said["try"])) if "job" in said else None
        found = _Heartbeat(host, pid, started, said_at, str(said["token"]), job)
        found.age  # noqa: B018 (a time without its zone has none)
    except (RecordError, LookupError, ValueError, TypeError, OverflowError):
        return None
    return found


_watched: dict[str, tuple[str | None, float]] = {}  # run to its heartbeat, and when it was first so


def _stands_still(client: MlflowClient, run: Run) -> bool:
    """Whether the heartbeat of another machine is not seen to change for as long as two take."""
    run_id, told = run.info.run_id, run.data.tags.get(names.PROCESS_TAG)
    until = _watch(client, run) + WATCH_SECONDS
    if time.monotonic() < until:
        warn(
            f"run {run_id} was trained on another machine, and its last sign of life seems to be "
            f"old; looking for {until - time.monotonic():.0f} s whether it gives another one"
        )
    while True:
        with mlflow_errors(f"watch run {run_id}"):
            now = client.get_run(run_id)
        if now.data.tags.get(names.PROCESS_TAG) != told:
            return False
        left = until - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(_LOOK_SECONDS, left))


def _watch(client: MlflowClient, run: Run) -> float:
    """Since when a run's heartbeat is known to be what it is; looked at from now on."""
    run_id, told = run.info.run_id, run.data.tags.get(names.PROCESS_TAG)
    if _watched.get(run_id, (None, 0.0))[0] != told:
        # All that are open are watched from now on, so that many take no longer than one.
        with mlflow_errors(f"watch run {run_id}"):
            beside = client.search_runs(
                [run.info.experiment_id], "attributes.status = 'RUNNING'", max_results=1000
            )
        for other in (*beside, run):
            said = other.data.tags.get(names.PROCESS_TAG)
            if _watched.get(other.info.run_id, (None, 0.0))[0] != said:
                _watched[other.info.run_id] = said, time.monotonic()
    return _watched[run_id][1]


@functools.cache
def _token(pid: int) -> str:
    """What this process alone writes into runs; a forked child has another."""
    return secrets.token_hex(8)


def _started(pid: int) -> float:
    """Return when a process of this machine started, in ticks, which no clock that is set moves.

    Raises ProcessLookupError if the process is gone, and PermissionError if it cannot be read:
    another user's, for example, where /proc is mounted with hidepid.
    """
    if not 0 < pid < 2**31:  # no machine assigns such numbers
        raise ProcessLookupError(pid)
    with suppress(PermissionError):
        os.kill(pid, 0)  # sends nothing; raises ProcessLookupError if there is no such process
    if (_PROC / "stat").exists():
        try:
            # The name of the program, in parentheses, may hold anything.
            stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except ProcessLookupError:
            raise
        except OSError as error:  # with hidepid, the file of a living process is not there
            raise PermissionError(f"process {pid} cannot be read: {error}") from error
        if stat[0] == "Z":
            raise ProcessLookupError(pid)
        return float(stat[19])
    import psutil  # here: on Linux, a machine that only reads runs may lack it

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise ProcessLookupError(pid)
        return float(process.create_time())
    except psutil.ZombieProcess as error:
        raise ProcessLookupError(pid) from error
    except psutil.Error as error:
        raise PermissionError(f"process {pid} cannot be read: {error}") from error


def _host() -> str:
    """A name for this machine and container since its last start; pids count within it."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # no Linux: the host's name alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
