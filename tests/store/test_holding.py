"""Which of two processes holds a run: tokens, heartbeats, clocks that are set."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import Metric
from stored_runs import histories, row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS, KnownTraining

import clear_mlflow
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.cli import main
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.run_folder import Outcome, RunFolder, default_root
from clear_mlflow.learning.measured import ignore
from clear_mlflow.store import heartbeat as liveness
from clear_mlflow.store import names
from clear_mlflow.store.heartbeat import (
    Hold,
    LostRunError,
    StillHeldError,
    await_silence,
    heartbeat,
)
from clear_mlflow.store.rows import RowConflictError, store_row
from clear_mlflow.tracking.in_process import train_in_process
from clear_mlflow.tracking.lifecycle import refuse_second
from clear_mlflow.tracking.resume import claim
from clear_mlflow.tracking.sync import find_journals, sync_each


def of_another(**changes):
    """The heartbeat of a process on another machine."""
    told = {"host": "another/machine", "token": secrets.token_hex(8), **changes}
    return json.dumps({**json.loads(heartbeat()), **told})


class TakenOver(KnownTraining):
    """Somewhere else another process takes the run, after some rows."""

    def __init__(self, store, after):
        super().__init__(FOUR_BUCKETS)
        self.store = store
        self.after = after
        self.run = None

    def rows(self, on_curve=ignore, on_test=ignore, on_state=ignore):
        for measured in super().rows(on_curve, on_test, on_state):
            if measured.row.row == self.after:
                (self.run,) = self.store.search_runs(["1"])
                self.store.set_tag(self.run.info.run_id, names.HOLDER_TAG, of_another())
            yield measured


def test_who_lost_a_run_stores_nothing_more_and_says_who_holds_it(store):
    """One error; the run is as the other left it, and what was measured is on local disk."""
    training = TakenOver(store, after=2)
    with pytest.raises(LostRunError, match=r"is held by process \d+ on another since 20") as lost:
        train_in_process(store, training, {})
    run = store.get_run(training.run.info.run_id)
    assert run.info.status == "RUNNING"
    ours = {tag for tag in run.data.tags if "clear_mlflow." in tag} - {names.COMMIT_TAG}
    held = {names.PROCESS_TAG, names.HOLDER_TAG}
    assert ours == {names.KIND_TAG, names.VERSION_TAG, names.SOFTWARE_TAG, names.ROWS_TAG} | held
    assert sorted(file.name for file in rows_folder(run).iterdir()) == [
        "row_000.json",
        "row_001.json",
    ]
    kept = default_root() / run.info.run_id
    assert str(kept) in str(lost.value)
    assert [file.name[-12:] for file in kept.rglob("*row_*.json")] == ["row_002.json"]
    assert all(len(points) <= 2 for points in histories(store, run.info.run_id).values())


def test_a_journal_of_rows_that_another_process_stored_doubles_nothing(store):
    """After an outage longer than the limit: sent when the other has ended, the same rows."""
    training = TakenOver(store, after=3)
    with pytest.raises(LostRunError):
        train_in_process(store, training, {})
    run = training.run
    # The other measured the same, at another time, and ended well.
    lost = rows_folder(run) / "row_003.json"
    (kept,) = default_root().joinpath(run.info.run_id).rglob("*row_003.json")
    told = json.loads(kept.read_text())
    lost.write_text(json.dumps({**told, "written_at": "2030-01-01T00:00:00.000+00:00"}))
    # What an outage keeps beside the row: its points, at the time when this process measured it.
    left = RunFolder.reopen(default_root() / run.info.run_id, run.info.run_id)
    left.append_metrics([Metric("test_accuracy/bucket_1", 0.5, 1_000, 3)])
    left.close()
    store.set_terminated(run.info.run_id, "FINISHED")
    for _ in rescore_runs(store, [store.get_run(run.info.run_id)], explicit=True):
        pass
    before = histories(store, run.info.run_id), lost.read_bytes()
    (synced,) = sync_each(find_journals(default_root() / run.info.run_id))
    assert synced.done, synced.detail
    assert (histories(store, run.info.run_id), lost.read_bytes()) == before


def test_a_journal_is_not_sent_while_another_process_trains(store):
    """It would store rows that the other is about to measure."""
    training = TakenOver(store, after=2)
    with pytest.raises(LostRunError):
        train_in_process(store, training, {})
    run_id = training.run.info.run_id
    store.set_tag(run_id, names.PROCESS_TAG, store.get_run(run_id).data.tags[names.HOLDER_TAG])
    (synced,) = sync_each(find_journals(default_root() / run_id))
    assert not synced.done
    assert "another process trains into run" in synced.detail


def test_a_stored_row_is_never_overwritten(store, experiment_id):
    """The same row of another time is the row; another is refused, and both stay."""
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
        with pytest.raises(RowConflictError, match=r"row_002.json of run .* stays as it is"):
            store_row(store, run, name, other.encode())
    assert [path.read_bytes() for path in rows_folder(run).iterdir()] == [first]


@pytest.mark.parametrize("beats", [True, False])
def test_a_heartbeat_of_another_machine_is_watched_before_its_run_is_closed(
    store, experiment_id, monkeypatch, capfd, beats
):
    """An hour old by the clocks: one of them was set, or the process is gone."""
    monkeypatch.setattr(liveness, "WATCH_SECONDS", 10.0 if beats else 0.05)
    run_id = store.create_run(experiment_id).info.run_id
    an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)

    def beat(later):
        at = (an_hour_ago + timedelta(seconds=later)).isoformat(timespec="seconds")
        store.set_tag(run_id, names.PROCESS_TAG, of_another(alive_at=at))

    beat(0)
    sleep = time.sleep

    def sleep_while_it_beats(seconds):
        if beats:
            beat(30)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep_while_it_beats)
    (result,) = rescore_runs(store, [store.get_run(run_id)], explicit=True)
    assert f"looking for {10 if beats else 0} s whether it" in capfd.readouterr().err
    status = store.get_run(run_id).info.status
    assert (result.action, status) == (("skipped", "RUNNING") if beats else ("scored", "KILLED"))


def test_a_heartbeat_from_the_future_does_not_keep_a_run_open_for_ever(
    store, experiment_id, monkeypatch
):
    """An hour ahead, a clock was wrong: the run is closed and can be resumed."""
    monkeypatch.setattr(liveness, "WATCH_SECONDS", 0.05)
    at = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat(timespec="seconds")
    ahead = of_another(alive_at=at)
    run = store.create_run(experiment_id, tags={names.PROCESS_TAG: ahead})
    store.log_param(run.info.run_id, "resumed/1", ahead)
    assert claim(store, store.get_run(run.info.run_id)) == 2
    clear_mlflow.evaluate([run.info.run_id])
    assert store.get_run(run.info.run_id).info.status == "KILLED"


def test_a_refusal_says_how_old_the_last_sign_of_life_is_and_what_to_do(store, experiment_id):
    """As after a restart of the machine: the process is gone, and nobody can ask for it."""
    run_id = store.create_run(experiment_id).info.run_id
    at = datetime.now(timezone.utc) - timedelta(minutes=4, seconds=10)
    store.set_tag(run_id, names.PROCESS_TAG, of_another(alive_at=at.isoformat(timespec="seconds")))
    run = store.get_run(run_id)
    until = f"{at + liveness.SILENCE:%H:%M:%S} UTC"
    with pytest.raises(TrackingError, match=r"is 4 min 1\d s old") as refusal:
        refuse_second(store, run, "wait")
    assert until in str(refusal.value)
    assert f"clear-mlflow train --resume {run_id} --assume-dead yes" in str(refusal.value)
    refuse_second(store, run, "wait", assume_dead=True)
    # One that is seen to live is not dead, whatever is said of it.
    store.set_tag(run_id, names.PROCESS_TAG, heartbeat())
    with pytest.raises(TrackingError, match="another process trains into run"):
        refuse_second(store, store.get_run(run_id), "wait", assume_dead=True)


@pytest.mark.parametrize(
    ("then", "now", "over"),
    [
        ({"SLURM_JOB_ID": "17"}, {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}, True),
        ({"CLEAR_MLFLOW_JOB": "a", "CLEAR_MLFLOW_TRY": "9"},) * 2 + (False,),
        (
            {"CLEAR_MLFLOW_JOB": "a", "CLEAR_MLFLOW_TRY": "9"},
            {"CLEAR_MLFLOW_JOB": "a", "CLEAR_MLFLOW_TRY": "10", "SLURM_JOB_ID": "17"},
            True,
        ),
        ({"SLURM_JOB_ID": "17"}, {"SLURM_JOB_ID": "18", "SLURM_RESTART_COUNT": "1"}, False),
        ({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}, {"SLURM_JOB_ID": "17"}, False),
        ({}, {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}, False),
        ({"SLURM_JOB_ID": "17"}, {}, False),
    ],
)
def test_a_later_try_of_a_job_knows_that_those_before_are_over(
    store, experiment_id, monkeypatch, then, now, over
):
    """Its scheduler started it after their end; who still lives has lost the run all the same."""
    for name in ("CLEAR_MLFLOW_JOB", "CLEAR_MLFLOW_TRY", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as on_the_first_node:
        for name, text in then.items():
            on_the_first_node.setenv(name, text)
        told = of_another()
    tags = {names.PROCESS_TAG: told, names.HOLDER_TAG: told}
    run = store.create_run(experiment_id, tags=tags)
    for name, text in now.items():
        monkeypatch.setenv(name, text)
    assert liveness.is_abandoned(store, run) is over
    assert liveness.begins_now(told) is not over


def test_a_number_of_a_try_that_is_none_is_refused(monkeypatch):
    """A job that says nothing of its tries says nothing."""
    monkeypatch.setenv("CLEAR_MLFLOW_JOB", "a")
    monkeypatch.setenv("CLEAR_MLFLOW_TRY", "")
    assert "try" not in json.loads(heartbeat())
    monkeypatch.setenv("CLEAR_MLFLOW_TRY", "second")
    with pytest.raises(ConfigError, match="CLEAR_MLFLOW_TRY is 'second'; expected how often"):
        heartbeat()


def test_a_process_elsewhere_is_waited_for(store, experiment_id, monkeypatch, capfd):
    """Until it gives a sign of life, has ended, or was silent for long enough; or not at all."""
    monkeypatch.setattr(liveness, "_LOOK_SECONDS", 0.05)
    sleep, looks = time.sleep, []

    def held(after_looks=lambda run_id: None):
        told = of_another()
        tags = {names.PROCESS_TAG: told, names.HOLDER_TAG: told}
        run_id = store.create_run(experiment_id, tags=tags).info.run_id
        looks.clear()

        def look(seconds):
            looks.append(seconds)
            if len(looks) == 3:
                after_looks(run_id)
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", look)
        return run_id

    lives = held(lambda run_id: store.set_tag(run_id, names.PROCESS_TAG, of_another(pid=1)))
    await_silence(store, lives)
    assert len(looks) == 3
    assert not liveness.is_abandoned(store, store.get_run(lives))
    ends = held(lambda run_id: store.set_terminated(run_id, "FAILED"))
    await_silence(store, ends)
    assert len(looks) == 3
    with pytest.raises(StillHeldError, match=r"is 0 min \d s old; .*start the same command again"):
        await_silence(store, held(), stay=False)
    with pytest.raises(TrackingError, match="stopped while waiting"):
        await_silence(store, held(), stopping=lambda: len(looks) == 3)
    assert len(looks) == 3
    assert capfd.readouterr().err.count("and its last sign of life is 0 min") == 3
    monkeypatch.setattr(liveness, "SILENCE", timedelta(seconds=2))
    monkeypatch.setattr(liveness, "WATCH_SECONDS", 0.1)
    gone = held()
    await_silence(store, gone)
    refuse_second(store, store.get_run(gone), "wait")
    here = store.create_run(experiment_id, tags=liveness.holding()).info.run_id
    looks.clear()
    await_silence(store, here)  # it can be asked for
    assert not looks


def test_a_late_beat_of_who_lost_the_run_says_nothing_of_who_holds_it(store, experiment_id):
    """It was sent in the moment after its look; whoever holds the run beats again soon."""
    old = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat(timespec="seconds")
    late, gone = (
        of_another(),
        json.dumps({**json.loads(heartbeat()), "started": 1, "token": "gone"}),
    )
    lives = json.dumps({**json.loads(heartbeat()), "token": "lives"})
    for process, holder, abandoned in (
        (late, gone, True),
        (late, lives, False),
        (of_another(alive_at=old), lives, False),
        (gone, lives, False),
    ):
        tags = {names.PROCESS_TAG: process, names.HOLDER_TAG: holder}
        run = store.get_run(store.create_run(experiment_id, tags=tags).info.run_id)
        assert liveness.is_abandoned(store, run) is abandoned


def test_a_run_that_was_taken_and_given_back_is_judged_as_before(store, experiment_id):
    """Its rows had changed since they were read, so the process that took it ends."""
    for tags in ({}, {names.HOLDER_TAG: of_another()}):
        run = store.create_run(experiment_id, tags=tags)
        liveness.take_hold(store, run)
        liveness.give_back(store, run)
        held = store.get_run(run.info.run_id).data.tags.get(names.HOLDER_TAG)
        assert held == tags.get(names.HOLDER_TAG)
    liveness.take_hold(store, run)
    store.set_tag(run.info.run_id, names.HOLDER_TAG, after := of_another())
    liveness.give_back(store, run)  # another one has taken it since
    assert store.get_run(run.info.run_id).data.tags[names.HOLDER_TAG] == after


@pytest.mark.parametrize("seconds", [5, -5, 3600, -3600])
def test_a_clock_that_is_set_makes_nobody_dead(store, experiment_id, monkeypatch, seconds):
    """Of this machine's process, by the ticks at its start; of another's, by what it says next."""

    class SetClock(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=seconds)

    here = store.create_run(experiment_id, tags=liveness.holding()).info.run_id
    there = store.create_run(experiment_id, tags={names.PROCESS_TAG: of_another()}).info.run_id
    monkeypatch.setattr(liveness, "datetime", SetClock)
    monkeypatch.setattr(liveness, "WATCH_SECONDS", 10.0)
    sleep = time.sleep

    def sleep_while_it_beats(pause):
        store.set_tag(there, names.PROCESS_TAG, of_another())
        sleep(0)

    monkeypatch.setattr(time, "sleep", sleep_while_it_beats)
    assert not liveness.is_abandoned(store, store.get_run(here))
    assert not liveness.is_abandoned(store, store.get_run(there))
    Hold(store).check(here)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of one test, in which no other test leaves journals."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return default_root()


def leave_journal(client, run, folder, end=None):
    """Write a journal with the third row of a run that has two."""
    run_id = run.info.run_id
    journal = RunFolder.create(folder / run_id, run_id, client.tracking_uri)
    journal.append(f"{ROWS_FOLDER}/row_002.json", row_texts()["row_002.json"].encode())
    if end is not None:
        journal.append_outcome(end)
    return journal


def sync(*words):
    return CliRunner().invoke(main, ["sync", *map(str, words)])


def test_sync_takes_no_run_from_a_live_training_with_another_journal(
    store, experiment_id, own_cache
):
    """The journal is of an earlier process; that of the live one is in another cache folder."""
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:2])
    journal = leave_journal(store, run, own_cache, Outcome("KILLED"))
    journal.close()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as live:
        started = {"pid": live.pid, "started": liveness._started(live.pid)}
        tag = json.dumps({**json.loads(heartbeat()), **started, "token": secrets.token_hex(8)})
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


def test_sync_ends_well_next_to_a_live_training(store, experiment_id, own_cache):
    """It sends what others left; what waits for the live one is sent by that."""
    live, killed = (stored_run(store, experiment_id, FOUR_BUCKETS[:2]) for _ in range(2))
    held = leave_journal(store, live, own_cache)
    leave_journal(store, killed, own_cache, Outcome("KILLED")).close()
    done = sync()
    held.close()
    assert done.exit_code == 0, done.output
    assert f"run {live.info.run_id}: 0 sent; a process that lives writes to" in done.output
    assert f"run {killed.info.run_id}: 1 sent" in done.output
    assert len(held.entries()) == 1


def test_sync_sends_each_journal_to_its_own_store(
    store, experiment_id, own_cache, empty_store, tmp_path
):
    """MLFLOW_TRACKING_URI names one of them; with FOLDER, it takes precedence."""
    other_file = shutil.copy(empty_store, tmp_path / "other.db")
    other = MlflowClient(f"sqlite:///{other_file}")
    runs = []
    for client in (other, store):
        experiment = client.create_experiment("own", artifact_location=(tmp_path / "own").as_uri())
        run = stored_run(client, experiment, FOUR_BUCKETS[:2])
        leave_journal(client, run, own_cache, Outcome("FINISHED")).close()
        runs.append(run)
    refused = sync(own_cache / runs[0].info.run_id)
    assert (refused.exit_code, "cannot read run" in refused.output) == (2, True)
    done = sync()
    assert done.exit_code == 0, done.output
    assert all((rows_folder(run) / "row_002.json").exists() for run in runs)
    assert os.environ["MLFLOW_TRACKING_URI"] == store.tracking_uri


def test_a_row_of_a_newer_format_is_never_overwritten(store, experiment_id, own_cache):
    """By no writer, and by no journal that is sent; a torn one is."""
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:3])
    name, content = "row_002.json", row_texts()["row_002.json"].encode()
    file = rows_folder(run) / name
    row = json.loads(content)
    newer = json.dumps({**row, "schema": {**row["schema"], "version": "2.0"}})
    file.write_text(newer)
    with pytest.raises(RowConflictError, match=r"version 2\.0 .* upgrade it"):
        store_row(store, run, name, content)
    leave_journal(store, run, own_cache).close()
    assert "upgrade it" in sync().output
    assert file.read_text() == newer
    file.write_bytes(content[:100])
    store_row(store, run, name, content)
    assert file.read_bytes() == content
