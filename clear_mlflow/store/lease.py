"""The lease by which one process writes into a run, and whether its holder is alive.

The tag ``mlflow.clear_mlflow.holder`` is the lease as it was acquired. The tag
``mlflow.clear_mlflow.process`` is the lease as it was last renewed, while a process trains. Two
tags, so that a late renewal by a process that lost the lease does not take it from the new holder.

A holder on this machine is looked up among the processes. A lease from another machine expires when
this process has seen it unchanged for three minutes. No clocks of two machines are compared for
that, so a clock that is wrong makes no living process dead.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import msgspec
from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.text import printable, truncate, warn
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, convert, parse_json
from clear_mlflow.store import names
from clear_mlflow.store.client import get_run, mlflow_errors
from clear_mlflow.store.search import read_run

EXPIRY_SECONDS = 180.0
RENEW_SECONDS = 30.0
CHECK_SECONDS = 1.0
_POLL_SECONDS = 5.0
_PROC = Path("/proc")


class LeaseLostError(TrackingError):
    """Another process took over the run: this one may store nothing."""


class LeaseHeldError(TrackingError):
    """Another machine may be training into the run."""


@dataclass(frozen=True)
class _LeaseTag:
    """The process that may write to a run, from an untrusted tag."""

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    started: float  # as _read_start_time returns it on that machine
    renewed_at: Annotated[datetime, msgspec.Meta(tz=True)]
    token: str

    @property
    def is_local(self) -> bool:
        """True if the process is on this machine and in this container."""
        return self.host == _read_machine_id()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last renewal by both clocks, perhaps negative."""
        return (_read_clock() - self.renewed_at).total_seconds()

    @property
    def is_recent(self) -> bool:
        """True if renewed within three minutes by both machines' clocks."""
        return abs(self.age_seconds) <= EXPIRY_SECONDS

    @property
    def has_ended(self) -> bool:
        """True if a process of this machine is certainly gone."""
        try:  # a process number is used again: only the start time identifies a process
            return abs(_read_start_time(self.pid) - self.started) >= 1.0
        except ProcessLookupError:
            return True
        except PermissionError:
            return False


class Lease:
    """The right of one process at a time to write a run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._is_acquired = False
        self._replaced_holder: str | None = None
        self._checked: tuple[Run, float] | None = None  # the last successful check, and its time
        self._renewed_at = _read_uptime()
        self.error: LeaseLostError | None = None  # set by the first check that fails, then kept

    def acquire(self) -> None:
        """Take the lease, also from another process, which then cannot write.

        The run does not count as being trained until :meth:`renew` is called.
        """
        with mlflow_errors(f"acquire the lease of run {self._run_id}"):
            run = self._client.get_run(self._run_id)
            self._replaced_holder = run.data.tags.get(names.HOLDER_TAG)
            self._client.set_tag(self._run_id, names.HOLDER_TAG, format_lease())
        self._is_acquired = True

    def renew(self, is_over: threading.Event | None = None) -> None:
        """Write the lease with the current time, or raise LeaseLostError.

        Call it every 30 seconds.
        Sets the run back to RUNNING if ``evaluate`` set it to KILLED during an outage, unless
        *is_over* is set: this process has ended the run, and nothing is written. Raises
        LeaseLostError unless this process has the lease.
        """
        run = self.read_run()
        self._renewed_at = _read_uptime()
        if is_over is not None and is_over.is_set():
            return
        with mlflow_errors(f"renew the lease of run {self._run_id}"):
            self._client.set_tag(self._run_id, names.PROCESS_TAG, format_lease())
            if run.info.status == "KILLED":
                self._client.update_run(self._run_id, status="RUNNING")

    def renew_if_due(self) -> None:
        """Renew the lease if 30 seconds have passed since the last time.

        Call it between writes.
        """
        if _read_uptime() - self._renewed_at > RENEW_SECONDS:
            self.renew()

    def read_run(self) -> Run:
        """Read the run, or raise LeaseLostError if another process has its lease.

        After that, every further call raises the same error.
        """
        if self.error is not None:
            raise self.error
        run = get_run(self._client, self._run_id)
        try:
            check_has_lease(run)
        except LeaseLostError as error:
            self.error = error
            raise
        self._checked = run, _read_uptime()
        return run

    def read_recent_run(self) -> Run:
        """Return the run as read in the last second, or read it.

        It is for uploads, several per row, most of which are faster than reading the run. What
        deletes or replaces training states calls :meth:`read_run`. Time for which this process was
        suspended counts, so a process that wakes up always checks.
        """
        if self._checked is not None and self.error is None:
            run, checked_at = self._checked
            if _read_uptime() - checked_at < CHECK_SECONDS:
                return run
        return self.read_run()

    def release(self) -> None:
        """Return the lease to the process that had it, or delete it.

        Does nothing if it was not acquired, or another process has it now.
        """
        if not self._is_acquired:
            return
        self._checked = None
        with mlflow_errors(f"release the lease of run {self._run_id}"):
            if not is_held_by_this_process(self._client.get_run(self._run_id)):
                return
            if self._replaced_holder is None:
                self._client.delete_tag(self._run_id, names.HOLDER_TAG)
            else:
                self._client.set_tag(self._run_id, names.HOLDER_TAG, self._replaced_holder)


def _read_uptime() -> float:
    """Return seconds of a clock that also runs during a suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def get_process_token() -> str:
    """Return the random text that identifies this process in leases."""
    return _create_token(os.getpid())


def format_lease() -> str:
    """Return a lease of this process, dated now, as JSON text.

    Its keys are host, pid, started, renewed_at and token.
    """
    return json.dumps(
        {
            "host": _read_machine_id(),
            "pid": os.getpid(),
            "started": _read_start_time(os.getpid()),
            "renewed_at": _read_clock().isoformat(timespec="seconds"),
            "token": get_process_token(),
        }
    )


def build_lease_tags() -> dict[str, str]:
    """Return tags that assign a run's lease to this process."""
    return dict.fromkeys((names.PROCESS_TAG, names.HOLDER_TAG), format_lease())


def check_has_lease(run: Run) -> None:
    """Raise LeaseLostError unless a run's tags name this process."""
    if is_held_by_this_process(run):
        return
    name, holder = "nobody with a readable lease", _parse_lease(run.data.tags.get(names.HOLDER_TAG))
    if holder is not None:
        host = truncate(printable(holder.host.partition("/")[0]), 80)
        name = f"process {holder.pid} on {host} since {holder.renewed_at:%Y-%m-%d %H:%M:%S %Z}"
    raise LeaseLostError(
        f"run {run.info.run_id} is held by {name}: it was taken over while this process was "
        "stopped or cut off from the store"
    )


def check_not_being_trained(client: MlflowClient, run: Run, advice: str) -> None:
    """Raise TrackingError if a process trains a run, waiting if unclear.

    May wait up to three minutes, like :func:`detect_dead_trainer`. advice: end of the message.
    """
    if detect_live_trainer(client, run):
        raise TrackingError(
            f"another process trains into run {run.info.run_id} now ({_describe_holder(run)}); "
            f"{advice}"
        )


def detect_live_trainer(client: MlflowClient, run: Run) -> bool:
    """Return True if a living process trains a run, waiting if unclear.

    May wait up to three minutes, like :func:`detect_dead_trainer`.
    """
    return _has_trainer(run) and not detect_dead_trainer(client, run)


def is_in_use(run: Run) -> bool:
    """Return True, at once, if a process may be training a run.

    Never waits. A process on another machine counts if it has renewed its lease within three
    minutes, by the clocks of both machines.
    """
    lease = _get_lease(run)
    if lease is None or not _has_trainer(run):
        return False
    return not lease.has_ended if lease.is_local else lease.is_recent


def detect_dead_trainer(client: MlflowClient, run: Run) -> bool:
    """Return True if a RUNNING run's process is gone, waiting if unclear.

    Returns False if no process of this package trained the run. A process on this machine is looked
    up. Another machine's counts as gone if its lease was seen unchanged for three minutes: waits
    for that if the lease is invalid or not dated within three minutes of now; otherwise returns at
    once, False if it was not seen for long enough.
    """
    if not _has_trainer(run):
        return False
    lease = _get_lease(run)
    if lease is not None and lease.is_local:
        return lease.has_ended
    if lease is not None and lease.is_recent:
        return _measure_seconds_unchanged(client, run) >= EXPIRY_SECONDS
    return _wait_until_expired(client, run)


def wait_for_renewal_or_expiry(
    client: MlflowClient,
    run_id: str,
    *,
    can_wait: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until another machine's lease of a run is renewed or expires.

    Returns when its lease was renewed, was not renewed for three minutes, or the run has ended; at
    once if the process is on this machine or there is none.

    can_wait: if False, raises LeaseHeldError instead of waiting if the lease is dated within the
    last three minutes; waits for an older one all the same. should_stop: raises TrackingError when
    this returns True.
    """
    run = read_run(client, run_id)
    lease = _get_lease(run)
    if not _has_trainer(run) or (lease is not None and lease.is_local):
        return
    if not can_wait and lease is not None and lease.is_recent:
        raise LeaseHeldError(
            f"another process may train into run {run_id} ({_describe_holder(run)}); start the "
            "same command again later"
        )
    _wait_until_expired(client, run, should_stop)


def get_trainer_token(run: Run) -> str | None:
    """Return the token of a run's last training process, or None.

    It is the :func:`get_process_token` of that process; None if its lease is missing or invalid.
    """
    lease = _get_lease(run)
    return None if lease is None else lease.token


def is_recent_reservation(reservation: str) -> bool:
    """Return True if another living process reserved a resume recently.

    reservation: JSON text of that process's lease, which is recent for three minutes. If it is
    invalid or of this process, the result is False.
    """
    lease = _parse_lease(reservation)
    if lease is None or lease.token == get_process_token():
        return False
    return lease.is_recent and not (lease.is_local and lease.has_ended)


def _describe_holder(run: Run) -> str:
    """Describe the process that trains a run, and how to end it."""
    lease = _get_lease(run)
    if lease is None:
        return "its lease cannot be read"
    if lease.is_local:
        return (
            f"process {lease.pid} of this machine, perhaps suspended: 'kill -CONT {lease.pid}' "
            f"lets it continue, 'kill -KILL {lease.pid}' ends it"
        )
    return (
        "its lease, from another machine or from before a restart of this machine, was renewed "
        f"{max(0, round(lease.age_seconds))} s ago; unless it is renewed, you can resume the run "
        f"after {EXPIRY_SECONDS:.0f} s"
    )


def _has_trainer(run: Run) -> bool:
    """Return True if a RUNNING run has a training process's tag."""
    return run.info.status == "RUNNING" and names.PROCESS_TAG in run.data.tags


def is_held_by_this_process(run: Run) -> bool:
    """Return True if this process has a run's lease."""
    holder = _parse_lease(run.data.tags.get(names.HOLDER_TAG))
    return holder is not None and holder.token == get_process_token()


def _get_lease(run: Run) -> _LeaseTag | None:
    return _parse_lease(_select_lease_text(run))


def _select_lease_text(run: Run) -> str | None:
    """Return the lease of a run's training process, or None.

    That is the last renewal, or the lease that another process acquired from the one that renewed.
    """
    renewal, acquisition = (run.data.tags.get(t) for t in (names.PROCESS_TAG, names.HOLDER_TAG))
    renewed, acquired = _parse_lease(renewal), _parse_lease(acquisition)
    if renewed is None or acquired is None or renewed.token == acquired.token:
        return renewal
    return acquisition


def _parse_lease(text: str | None) -> _LeaseTag | None:
    """Parse a lease, or return None if it is missing or damaged."""
    try:
        lease: _LeaseTag = convert(parse_json(text or "", MAX_TAG_BYTES), _LeaseTag)
    except RecordError:
        return None
    return lease


# Run id to the text of its lease and the monotonic time at which this process first saw it. Threads
# share it without a lock: a second one that writes the same lease waits milliseconds longer.
_first_seen: dict[str, tuple[str | None, float]] = {}


def _measure_seconds_unchanged(client: MlflowClient, run: Run) -> float:
    """Observe all leases of RUNNING runs, and return one's unchanged seconds.

    A new lease also starts the clock for all RUNNING runs of the experiment: watching many takes no
    longer than watching one.
    """
    run_id = run.info.run_id
    if run_id not in _first_seen or _first_seen[run_id][0] != _select_lease_text(run):
        with mlflow_errors(f"watch run {run_id}"):
            running = client.search_runs(
                [run.info.experiment_id], "attributes.status = 'RUNNING'", max_results=1000
            )
        for other in (*running, run):
            text = _select_lease_text(other)
            if _first_seen.get(other.info.run_id, ("", 0.0))[0] != text:
                _first_seen[other.info.run_id] = text, time.monotonic()
    return time.monotonic() - _first_seen[run_id][1]


def _wait_until_expired(
    client: MlflowClient, run: Run, should_stop: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until a lease expires, or return False once it is renewed."""
    run_id, text = run.info.run_id, _select_lease_text(run)
    remaining = EXPIRY_SECONDS - _measure_seconds_unchanged(client, run)
    if remaining > 0:
        warn(
            f"run {run_id} was trained elsewhere, or before a restart of this machine; waiting up "
            f"to {remaining:.0f} s for the expiry of its lease"
        )
    while remaining > 0:
        if should_stop():
            raise TrackingError(f"stopped while waiting for the process that trained run {run_id}")
        time.sleep(min(_POLL_SECONDS, remaining))
        with mlflow_errors(f"watch run {run_id}"):
            current = client.get_run(run_id)
        if not _has_trainer(current) or _select_lease_text(current) != text:
            return False
        remaining = EXPIRY_SECONDS - _measure_seconds_unchanged(client, run)
    return True


def _read_clock() -> datetime:
    return datetime.now(timezone.utc)


@functools.cache
def _create_token(pid: int) -> str:
    """Return a process's random text, the same one at each call."""
    return secrets.token_hex(8)


def _read_start_time(pid: int) -> float:
    """Return when a process started, in ticks since the boot.

    Raises PermissionError for example for another user's process where /proc is mounted with
    hidepid.
    """
    with suppress(PermissionError):
        os.kill(pid, 0)  # sends nothing; raises ProcessLookupError if no such process exists
    try:
        # The program's name, in parentheses, may contain anything.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        raise
    except OSError as error:  # with hidepid, the file of a living process is missing
        raise PermissionError(f"process {pid} cannot be read: {error}") from error
    if fields[0] == "Z":
        raise ProcessLookupError(pid)
    return float(fields[19])


def _read_machine_id() -> str:
    """Return HOST/BOOT_ID/PID_NAMESPACE, within which process ids are unique, or HOST."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # in some containers: only the host's name
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)
