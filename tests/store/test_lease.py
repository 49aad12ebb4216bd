"""The lease of a run between processes: tokens, renewals, and changed clocks."""

import json
import os
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest
from commands import invoke
from forked import ForkedPython
from mlflow import MlflowClient
from stored_runs import histories, row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS, KnownTraining

from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.run_folder import OUTCOME_JSON, Outcome, RunFolder, get_unsent_root
from clear_mlflow.learning.measured import ignore
from clear_mlflow.store import lease, names
from clear_mlflow.store.lease import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    _read_start_time,
    build_lease_tags,
    check_not_being_trained,
    detect_dead_trainer,
    detect_live_trainer,
    format_lease,
    is_recent_reservation,
    wait_for_renewal_or_expiry,
)
from clear_mlflow.store.rows import RowConflictError, store_row
from clear_mlflow.store.sqlite import get_sqlite_path
from clear_mlflow.tracking.resume import reserve_resume
from clear_mlflow.tracking.tracked_training import train_in_process


def format_foreign_lease(**changes):
    """Return the lease of a process on another machine."""
    fields = {"host": "another/machine", "token": secrets.token_hex(8), **changes}
    return json.dumps({**json.loads(format_lease()), **fields})


def ago(**time):
    return (datetime.now(timezone.utc) - timedelta(**time)).isoformat(timespec="seconds")


def create_leased_run(store, experiment_id, **changes):
    text = json.dumps({**json.loads(format_lease()), **changes})
    run = store.create_run(experiment_id, tags={names.PROCESS_TAG: text})
    return store.get_run(run.info.run_id)


class TakenOver(KnownTraining):
    """Another process takes over the run after some rows, as if each took more than a second."""

    def __init__(self, store, after, monkeypatch):
        monkeypatch.setattr(lease, "CHECK_SECONDS", 0.0)
        super().__init__(FOUR_BUCKETS)
        self.store, self.after, self.run = store, after, None

    def rows(self, on_message=ignore):
        for measured in super().rows(on_message):
            if measured.row.row == self.after:
                (self.run,) = self.store.search_runs(["1"])
                self.store.set_tag(self.run.info.run_id, names.HOLDER_TAG, format_foreign_lease())
            yield measured


@pytest.fixture
def lose_run(store, monkeypatch):
    def train(after):
        training = TakenOver(store, after, monkeypatch)
        with pytest.raises(LeaseLostError) as caught:
            train_in_process(store, training, {})
        return store.get_run(training.run.info.run_id), str(caught.value)

    return train


def test_a_process_that_lost_a_run_stores_nothing_and_names_the_holder(store, lose_run):
    run, error = lose_run(2)
    assert re.search(r"is held by process \d+ on another since 20", error)
    assert run.info.status == "RUNNING"
    own_tags = {tag for tag in run.data.tags if "clear_mlflow." in tag} - {names.COMMIT_TAG}
    assert own_tags == {
        *(names.KIND_TAG, names.VERSION_TAG, names.SOFTWARE_TAG, names.ROWS_TAG),
        *(names.PROCESS_TAG, names.HOLDER_TAG, names.PARAMETERS_TAG),
    }
    assert sorted(file.name for file in rows_folder(run).iterdir()) == [
        "row_000.json",
        "row_001.json",
    ]
    journal_folder = get_unsent_root() / run.info.run_id
    assert str(journal_folder) in error
    assert [file.name[-12:] for file in journal_folder.rglob("*row_*.json")] == ["row_002.json"]
    assert all(len(points) <= 2 for points in histories(store, run.info.run_id).values())


def test_a_stored_row_is_never_overwritten(store, experiment_id):
    run = store.create_run(experiment_id)
    name = "row_002.json"
    first = row_texts()[name].encode()
    store_row(store, run, name, first)
    store_row(store, run, name, first.replace(b"2026-01-31", b"2027-01-31"))
    assert (rows_folder(run) / name).read_bytes() == first
    for other in (
        row_texts([[0] * 4 for _ in FOUR_BUCKETS])[name],
        row_texts(digest="sha256:" + "cd" * 32)[name],  # as many right, of other images
    ):
        with pytest.raises(RowConflictError, match=r"row_002.json of run .* it is kept"):
            store_row(store, run, name, other.encode())
    assert [path.read_bytes() for path in rows_folder(run).iterdir()] == [first]


@pytest.fixture
def sleeps(monkeypatch):
    """Make time.sleep advance the monotonic clock at once.

    Return the list of all pauses. Functions in ``sleeps.actions`` are called at the first, second
    ... pause.
    """

    class Sleeps(list):
        actions = ()

    pauses, start = Sleeps(), time.monotonic()

    def sleep(pause):
        pauses.append(pause)
        if len(pauses) <= len(pauses.actions):
            pauses.actions[len(pauses) - 1]()

    monkeypatch.setattr(time, "monotonic", lambda: start + sum(pauses))
    monkeypatch.setattr(time, "sleep", sleep)
    return pauses


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_seemingly_expired_lease_is_observed_before_its_run_is_closed(
    store, experiment_id, sleeps, capfd, hours, is_renewed
):
    """An old or future time may be due to a wrong clock."""
    run_id = store.create_run(experiment_id).info.run_id

    def renew(seconds):
        text = format_foreign_lease(renewed_at=ago(hours=hours, seconds=-seconds))
        store.set_tag(run_id, names.PROCESS_TAG, text)

    renew(0)
    if is_renewed:
        sleeps.actions = [int] * 34 + [lambda: renew(30)]
    (result,) = rescore_runs(store, [store.get_run(run_id)], explicit=True)
    assert "waiting up to 180 s for the expiry of its lease" in capfd.readouterr().err
    expected = ("skipped", "RUNNING", 175) if is_renewed else ("scored", "KILLED", 180)
    assert (result.action, store.get_run(run_id).info.status, sum(sleeps)) == expected


def test_a_lease_dated_in_the_future_expires_when_it_was_seen_unchanged(
    store, experiment_id, sleeps
):
    run = create_leased_run(store, experiment_id, host="elsewhere", renewed_at=ago(minutes=-2))
    assert detect_live_trainer(store, run)
    time.sleep(179)
    assert detect_live_trainer(store, run)
    time.sleep(1)
    assert not detect_live_trainer(store, run)


def test_a_reservation_from_the_future_does_not_block_a_run_forever(store, experiment_id):
    run = store.create_run(experiment_id)
    reservation = format_foreign_lease(renewed_at=ago(hours=-1))
    store.log_param(run.info.run_id, "resumed/1", reservation)
    assert reserve_resume(store, store.get_run(run.info.run_id)) == 2


def test_a_reservation_counts_while_its_process_may_live():
    lease_fields = json.loads(format_lease())
    old = "2026-01-31T00:00:00+00:00"
    other = {**lease_fields, "token": "of another process"}
    for fields, is_recent in (
        (lease_fields, False),
        (other, True),
        ({**other, "started": lease_fields["started"] - 100}, False),
        ({**other, "host": "another/machine", "started": lease_fields["started"] - 100}, True),
        ({**other, "host": "another/machine", "renewed_at": old}, False),
        ({**other, "renewed_at": old}, False),
        ({}, False),
    ):
        assert is_recent_reservation(json.dumps(fields)) is is_recent, fields


def test_one_of_two_concurrent_reservations_succeeds(store, experiment_id):
    """Both read the run before either reserved it: a reservation is never overwritten."""
    run = store.create_run(experiment_id)
    store.log_param(run.info.run_id, "resumed/1", format_foreign_lease())
    with pytest.raises(TrackingError, match="another process trains into run"):
        reserve_resume(store, run)


def test_an_error_names_the_time_of_renewal_and_a_remedy(store, experiment_id):
    run = create_leased_run(store, experiment_id, host="elsewhere", renewed_at=ago(seconds=100))
    message = r"was renewed 10\d s ago; .* resume the run after 180 s\); wait"
    with pytest.raises(TrackingError, match=message):
        check_not_being_trained(store, run, "wait")


def test_a_resume_waits_for_a_process_elsewhere(store, experiment_id, sleeps, capfd):
    def create_held_run(third_action=str):
        text = format_foreign_lease()
        tags = {names.PROCESS_TAG: text, names.HOLDER_TAG: text}
        run_id = store.create_run(experiment_id, tags=tags).info.run_id
        sleeps.actions = [int] * (len(sleeps) + 2) + [lambda: third_action(run_id)]
        return run_id

    def renew(run_id):
        fields = json.loads(store.get_run(run_id).data.tags[names.HOLDER_TAG])
        renewed = {**fields, "renewed_at": ago(seconds=-30)}
        store.set_tag(run_id, names.PROCESS_TAG, json.dumps(renewed))

    living = create_held_run(renew)
    wait_for_renewal_or_expiry(store, living)
    assert len(sleeps) == 3
    assert not detect_dead_trainer(store, store.get_run(living))
    wait_for_renewal_or_expiry(
        store, create_held_run(lambda run_id: store.set_terminated(run_id, "FAILED"))
    )
    assert len(sleeps) == 6
    with pytest.raises(LeaseHeldError, match=r"renewed \d s ago; .*start the same command again"):
        wait_for_renewal_or_expiry(store, create_held_run(), can_wait=False)
    with pytest.raises(TrackingError, match="stopped while waiting"):
        wait_for_renewal_or_expiry(store, create_held_run(), should_stop=lambda: len(sleeps) == 9)
    assert sum(sleeps) == 45
    assert capfd.readouterr().err.count("waiting up to 180 s for the expiry") == 3
    gone = create_held_run()
    wait_for_renewal_or_expiry(store, gone)
    assert sum(sleeps) == 45 + 180
    check_not_being_trained(store, store.get_run(gone), "wait")
    here = store.create_run(experiment_id, tags=build_lease_tags()).info.run_id
    wait_for_renewal_or_expiry(store, here)  # it can be looked up
    assert sum(sleeps) == 45 + 180


RETURNING_TRAINER = """
import socket
socket.gethostname = lambda: "another machine"
from mlflow import MlflowClient
from trainings import FOUR_BUCKETS, KnownTraining
from clear_mlflow.tracking.tracked_training import train_in_process

class Training(KnownTraining):
    def rows(self, *args):
        for measured in super().rows(*args):
            yield measured
            if measured.row.row == 2:
                print("row 2 is stored", flush=True)
                input()

train_in_process(MlflowClient(), Training(FOUR_BUCKETS), {"seed": "7"})
"""


def wait_until_stopped(pid):
    """Wait until all threads of a process that was sent SIGSTOP have stopped."""
    states = set()
    while states != {"T"}:
        time.sleep(0.01)
        files = Path(f"/proc/{pid}/task").glob("*/stat")
        states = {file.read_text().rpartition(")")[2].split()[0] for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_process_that_was_suspended_continues_unless_its_lease_was_acquired(
    store, experiment_id, tmp_path, own_cache, monkeypatch, is_taken_over
):
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.5)
    support = str(Path(__file__).parents[1] / "support")
    monkeypatch.setenv("PYTHONPATH", support, prepend=os.pathsep)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ForkedPython("-c", RETURNING_TRAINER, cwd=tmp_path, **pipes) as trainer:
        assert trainer.stdout.readline() == "row 2 is stored\n"
        database = get_sqlite_path(store.tracking_uri)
        with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")  # else it may stop with the database locked
            trainer.send_signal(signal.SIGSTOP)
            wait_until_stopped(trainer.pid)  # on a busy machine its threads run on for a moment
        (run,) = store.search_runs([experiment_id])
        run_id = run.info.run_id
        time.sleep(1.1)  # the renewal is dated to the second
        (result,) = rescore_runs(store, [run], explicit=True)
        assert (result.action, store.get_run(run_id).info.status) == ("scored", "KILLED")
        if is_taken_over:
            store.set_tag(run_id, names.HOLDER_TAG, format_foreign_lease())
        trainer.send_signal(signal.SIGCONT)
        _, errors = trainer.communicate("\n", timeout=120)
    run = store.get_run(run_id)
    rows = sorted(path.name for path in rows_folder(run).iterdir())
    if is_taken_over:
        assert "LeaseLostError" in errors
        assert (run.info.status, len(rows)) == ("KILLED", 3)
    else:
        assert (trainer.returncode, run.info.status) == (0, "FINISHED"), errors
        assert rows == [f"row_{row:03d}.json" for row in range(5)]
        assert names.ERROR_TAG not in run.data.tags
        assert run.data.tags[names.ROWS_TAG] == "complete"


def test_a_check_counts_for_a_second(store, experiment_id, monkeypatch):
    uptime = 1000.0
    monkeypatch.setattr(lease, "_read_uptime", lambda: uptime)
    run_id = store.create_run(experiment_id, tags=build_lease_tags()).info.run_id
    own_lease = Lease(store, run_id)
    run = own_lease.read_recent_run()
    store.set_tag(run_id, names.HOLDER_TAG, format_foreign_lease())
    uptime += 0.99
    assert own_lease.read_recent_run() is run
    uptime += 0.01
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            own_lease.read_recent_run()
    assert own_lease.error is not None


def test_a_renewal_sets_a_run_back_to_running_that_evaluate_closed(store, experiment_id):
    """Otherwise another process could resume the run."""
    run_id = store.create_run(experiment_id, tags=build_lease_tags()).info.run_id
    store.set_terminated(run_id, "KILLED")
    store.delete_tag(run_id, names.PROCESS_TAG)
    Lease(store, run_id).renew()
    run = store.get_run(run_id)
    assert run.info.status == "RUNNING"
    with pytest.raises(TrackingError, match="another process trains into run"):
        check_not_being_trained(store, run, "wait")


def test_a_late_renewal_takes_over_no_lease(store, experiment_id, sleeps):
    """It was sent after a check by a process that then lost the lease. The holder renews soon."""
    fields = json.loads(format_lease())
    late = format_foreign_lease()
    gone = json.dumps({**fields, "started": 1, "token": "gone"})
    living = json.dumps({**fields, "token": "lives"})
    for renewal, holder, expected in (
        (late, gone, True),
        (late, living, False),
        (format_foreign_lease(renewed_at=ago(hours=1)), living, False),
        (gone, living, False),
    ):
        tags = {names.PROCESS_TAG: renewal, names.HOLDER_TAG: holder}
        run = store.get_run(store.create_run(experiment_id, tags=tags).info.run_id)
        assert detect_dead_trainer(store, run) is expected
    assert not sleeps


def test_a_released_lease_returns_to_the_previous_holder(store, experiment_id):
    for tags in ({}, {names.HOLDER_TAG: format_foreign_lease()}):
        run_id = store.create_run(experiment_id, tags=tags).info.run_id
        acquired = Lease(store, run_id)
        acquired.acquire()
        acquired.read_run()
        acquired.release()
        assert store.get_run(run_id).data.tags.get(names.HOLDER_TAG) == tags.get(names.HOLDER_TAG)
    acquired.acquire()
    store.set_tag(run_id, names.HOLDER_TAG, after := format_foreign_lease())
    acquired.release()  # another process has acquired it since
    assert store.get_run(run_id).data.tags[names.HOLDER_TAG] == after


@pytest.mark.parametrize("seconds", [5, -5, 3600, -3600])
def test_a_changed_clock_expires_no_lease(store, experiment_id, monkeypatch, sleeps, seconds):
    """Processes of this machine are compared by ticks, others by their next renewal."""
    here = store.create_run(experiment_id, tags=build_lease_tags()).info.run_id
    other_run = store.create_run(
        experiment_id, tags={names.PROCESS_TAG: format_foreign_lease()}
    ).info.run_id
    now = lease._read_clock
    monkeypatch.setattr(lease, "_read_clock", lambda: now() + timedelta(seconds=seconds))
    sleeps.actions = [lambda: store.set_tag(other_run, names.PROCESS_TAG, format_foreign_lease())]
    assert not detect_dead_trainer(store, store.get_run(here))
    assert not detect_dead_trainer(store, store.get_run(other_run))
    Lease(store, here).read_run()


@pytest.fixture
def journals(own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return get_unsent_root()


def leave_journal(client, run, folder, end=None):
    run_id = run.info.run_id
    journal = RunFolder.create(folder / run_id, run_id, client.tracking_uri)
    journal.append(f"{ROWS_FOLDER}/row_002.json", row_texts()["row_002.json"].encode())
    if end is not None:
        journal.append_json(OUTCOME_JSON, end)
    return journal


def sync(*words):
    return invoke("sync", *words)


def test_sync_takes_over_no_run_from_a_live_training(store, experiment_id, journals):
    """The run folder is of an earlier process, and the live one has another cache."""
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:2])
    journal = leave_journal(store, run, journals, Outcome("KILLED"))
    journal.close()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as live:
        started = {"pid": live.pid, "started": lease._read_start_time(live.pid)}
        tag = json.dumps({**json.loads(format_lease()), **started, "token": secrets.token_hex(8)})
        for name in (names.PROCESS_TAG, names.HOLDER_TAG):
            store.set_tag(run.info.run_id, name, tag)
        store.update_run(run.info.run_id, status="RUNNING")
        done = sync()
        assert done.exit_code == 2
        assert "another process trains into run" in done.output
        assert len(done.output.splitlines()) == 1
        after = store.get_run(run.info.run_id)
        assert (after.info.status, after.data.tags[names.HOLDER_TAG]) == ("RUNNING", tag)
        assert not (rows_folder(run) / "row_002.json").exists()
    done = sync()
    assert done.exit_code == 0, done.output
    assert (rows_folder(run) / "row_002.json").exists()


def test_sync_succeeds_next_to_a_live_training(store, experiment_id, journals):
    live, killed = (stored_run(store, experiment_id, FOUR_BUCKETS[:2]) for _ in range(2))
    journal = leave_journal(store, live, journals)
    leave_journal(store, killed, journals, Outcome("KILLED")).close()
    done = sync()
    journal.close()
    assert done.exit_code == 0, done.output
    assert f"run {live.info.run_id}: 0 sent; another process writes to" in done.output
    assert f"run {killed.info.run_id}: 1 sent" in done.output
    assert len(journal.list_entries()) == 1


@pytest.mark.slow
def test_sync_sends_each_run_folder_to_its_own_store(store, journals, empty_store, tmp_path):
    other_file = shutil.copy(empty_store, tmp_path / "other.db")
    other = MlflowClient(f"sqlite:///{other_file}")
    runs = []
    for client in (other, store):
        experiment = client.create_experiment("own", artifact_location=(tmp_path / "own").as_uri())
        run = stored_run(client, experiment, FOUR_BUCKETS[:2])
        leave_journal(client, run, journals, Outcome("FINISHED")).close()
        runs.append(run)
    refused = sync(journals / runs[0].info.run_id)
    assert (refused.exit_code, "cannot read run" in refused.output) == (2, True)
    done = sync()
    assert done.exit_code == 0, done.output
    assert all((rows_folder(run) / "row_002.json").exists() for run in runs)
    assert os.environ["MLFLOW_TRACKING_URI"] == store.tracking_uri


def test_a_row_of_a_newer_format_is_never_overwritten(store, experiment_id, journals):
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:3])
    name, content = "row_002.json", row_texts()["row_002.json"].encode()
    file = rows_folder(run) / name
    row = json.loads(content)
    newer = json.dumps({**row, "schema": {**row["schema"], "version": "2.0"}})
    file.write_text(newer)
    with pytest.raises(RowConflictError, match=r"version '2\.0' .* upgrade it"):
        store_row(store, run, name, content)
    leave_journal(store, run, journals).close()
    assert "upgrade it" in sync().output
    assert file.read_text() == newer
    file.write_bytes(content[:100])
    store_row(store, run, name, content)
    assert file.read_bytes() == content


def test_a_reused_process_id_is_another_process(store, experiment_id):
    assert detect_live_trainer(store, create_leased_run(store, experiment_id))
    run = create_leased_run(store, experiment_id, started=_read_start_time(os.getpid()) - 2)
    assert detect_dead_trainer(store, run)
    assert not detect_live_trainer(store, run)


def test_a_process_that_has_ended_is_gone(store, experiment_id):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        # As the child itself would tell it: the start is that of its own process.
        fields = {"pid": child.pid, "started": _read_start_time(child.pid)}
        run = create_leased_run(store, experiment_id, **fields, renewed_at=ago(days=1))
        assert not detect_dead_trainer(store, run)  # it is asked for; its age does not matter
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert detect_dead_trainer(store, run)
    assert detect_dead_trainer(store, run)


def test_a_lease_of_another_machine_expires_three_minutes_after_it_was_seen(
    store, experiment_id, sleeps
):
    recent, old, future, unreadable = (
        create_leased_run(store, experiment_id, **{"host": "elsewhere", **changes})
        for changes in (
            {"renewed_at": ago(minutes=2)},
            {"renewed_at": ago(minutes=4)},
            {"renewed_at": ago(hours=-1)},
            {"pid": "first"},
        )
    )
    assert detect_live_trainer(store, recent)
    assert not sleeps
    for run in (old, future, unreadable, recent):  # all are watched at the same time
        assert detect_dead_trainer(store, run)
        assert sum(sleeps) == lease.EXPIRY_SECONDS == 180


def test_process_details_equal_those_of_psutil():
    seconds = psutil.Process(os.getppid()).create_time() - psutil.boot_time()
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    assert _read_start_time(os.getppid()) == pytest.approx(ticks, abs=150)
    with pytest.raises(ProcessLookupError):
        _read_start_time(2**30)


def test_a_process_that_cannot_be_inspected_counts_as_alive(
    store, experiment_id, tmp_path, monkeypatch
):
    """For example, with hidepid, /proc has no processes of other users."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        run = create_leased_run(
            store, experiment_id, pid=child.pid, started=_read_start_time(child.pid)
        )
        monkeypatch.setattr("clear_mlflow.store.lease._PROC", tmp_path)
        assert not detect_dead_trainer(store, run)
        (tmp_path / str(child.pid)).mkdir()
        (tmp_path / str(child.pid) / "stat").mkdir()  # reading it fails
        assert detect_live_trainer(store, run)
    assert detect_dead_trainer(store, run)


def test_a_run_without_a_lease_never_expires(store, experiment_id):
    others = store.get_run(store.create_run(experiment_id).info.run_id)
    state = create_leased_run(store, experiment_id, started=1)
    store.set_terminated(state.info.run_id)
    for run in (others, store.get_run(state.info.run_id)):
        assert not detect_dead_trainer(store, run)
    assert not detect_live_trainer(store, others)
