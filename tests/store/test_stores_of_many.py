"""Leases, rows, states and searches in stores with other content."""

import hashlib
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest
from stored_runs import artifact_folder, row_texts, rows_folder, stored_run

from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.core.untrusted import MAX_ROW_BYTES
from clear_mlflow.store import lease, names, search, states
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.lease import _read_start_time, format_lease, is_being_trained, is_expired
from clear_mlflow.store.rows import list_row_sizes, read_rows
from clear_mlflow.store.search import MissingRun, select_runs
from clear_mlflow.store.states import (
    Manifest,
    list_state_rows,
    read_newest_state,
    remove_states,
    store_state,
)


def create_leased_run(store, experiment_id, **changes):
    """Create a RUNNING run with a lease of this process, except for these fields."""
    text = json.dumps({**json.loads(format_lease()), **changes})
    run = store.create_run(experiment_id, tags={names.PROCESS_TAG: text})
    return store.get_run(run.info.run_id)


def ago(**time):
    return (datetime.now(timezone.utc) - timedelta(**time)).isoformat(timespec="seconds")


def test_a_reused_process_id_is_another_process(store, experiment_id):
    """Recognised by its start time."""
    assert is_being_trained(store, create_leased_run(store, experiment_id))
    run = create_leased_run(store, experiment_id, started=_read_start_time(os.getpid()) - 2)
    assert is_expired(store, run)
    assert not is_being_trained(store, run)


def test_a_process_that_has_ended_is_gone(store, experiment_id):
    """Also if its parent has not waited for it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        # As the child itself would tell it: the start is that of its own process.
        fields = {
            "pid": child.pid,
            "started": _read_start_time(child.pid),
            "renewed_at": ago(days=1),
        }
        run = create_leased_run(store, experiment_id, **fields)
        assert not is_expired(store, run)  # it is asked for; its age does not matter
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert is_expired(store, run)
    assert is_expired(store, run)


def test_a_lease_of_another_machine_expires_three_minutes_after_it_was_seen(
    store, experiment_id, monkeypatch
):
    """One that seems old, or from the future, is observed first."""
    recent, old, future, unreadable = (
        create_leased_run(store, experiment_id, **{"host": "elsewhere", **changes})
        for changes in (
            {"renewed_at": ago(minutes=2)},
            {"renewed_at": ago(minutes=4)},
            {"renewed_at": ago(hours=-1)},
            {"pid": "first"},
        )
    )
    seconds = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "sleep", lambda pause: seconds.append(seconds.pop() + pause))
    assert is_being_trained(store, recent)
    assert seconds == [1000.0]
    for run in (old, future, unreadable, recent):  # all are watched at the same time
        assert is_expired(store, run)
        assert seconds == [1000.0 + lease.EXPIRY_SECONDS]
    assert lease.EXPIRY_SECONDS == 180


def test_process_details_equal_those_of_psutil(monkeypatch):
    """Read from /proc, and from psutil as on other systems."""
    seconds = psutil.Process(os.getppid()).create_time()
    ticks = (seconds - psutil.boot_time()) * os.sysconf("SC_CLK_TCK")
    for proc, started in (("/proc", ticks), ("/nowhere", seconds)):
        monkeypatch.setattr("clear_mlflow.store.lease._PROC", Path(proc))
        assert _read_start_time(os.getppid()) == pytest.approx(started, abs=150)
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
        (tmp_path / "stat").touch()
        monkeypatch.setattr("clear_mlflow.store.lease._PROC", tmp_path)
        assert not is_expired(store, run)
        (tmp_path / str(child.pid)).mkdir()
        (tmp_path / str(child.pid) / "stat").mkdir()  # reading it fails
        assert is_being_trained(store, run)
    assert is_expired(store, run)


def test_a_run_without_a_lease_never_expires(store, experiment_id):
    """A run of another program, and an ended one."""
    others = store.get_run(store.create_run(experiment_id).info.run_id)
    state = create_leased_run(store, experiment_id, started=1)
    store.set_terminated(state.info.run_id)
    for run in (others, store.get_run(state.info.run_id)):
        assert not is_expired(store, run)
    assert not is_being_trained(store, others)


def test_rows_are_read_in_order_and_other_files_are_ignored(store, experiment_id):
    """By number: the thousandth comes after 999."""
    run = stored_run(store, experiment_id)
    folder = rows_folder(run)
    (folder / "notes.txt").write_text("x")
    (folder / "row_0001.json").write_text("{")
    later = ["row_999.json", "row_1000.json"]
    for name in later:
        (folder / name).write_text((folder / "row_004.json").read_text())
    outside = folder.parent / "secret.json"
    outside.write_text((folder / "row_004.json").read_text())
    (folder / "row_005.json").symlink_to(outside)
    expected = [f"row_00{i}.json" for i in range(5)]
    assert list(list_row_sizes(store, run)) == [*expected, *later]
    for name in later:
        (folder / name).unlink()
    rows = read_rows(store, run)
    assert list(rows) == expected
    assert rows["row_002.json"].to_json() == row_texts()["row_002.json"]
    (folder / "row_003.json").write_bytes(b" " * (MAX_ROW_BYTES + 1))
    with pytest.raises(RecordError, match=r"row_003.json has \d+ bytes; expected at most 1 MiB"):
        list_row_sizes(store, run)


def manifest(row, content, **changes):

    fields = {
        "row": row,
        "written_at": "2026-01-31T12:00:00.000Z",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "data": {},
        "package_version": "1",
        "torch_version": "2",
    }
    return Manifest(**{**fields, **changes})


def test_a_resume_starts_from_the_newest_complete_state(store, experiment_id, tmp_path):
    """Damaged, truncated or wrong ones are skipped, with the reason."""
    run = store.get_run(store.create_run(experiment_id).info.run_id)
    run_id = run.info.run_id
    for row, changes in (
        (1, {}),
        (2, {}),
        (3, {"sha256": "0" * 64}),
        (4, {"size": 3}),
        (5, {"size": 0}),
    ):
        store_state(store, run_id, manifest(row, b"state %d" % row, **changes), b"state %d" % row)
    folder = artifact_folder(run) / names.STATE_FOLDER
    (folder / "after_006.safetensors").write_bytes(b"no manifest yet")
    (folder / "after_007.safetensors").write_bytes(b"state 2")
    (folder / "after_007.json").write_text((folder / "after_002.json").read_text())
    assert list_state_rows(store, run) == (1, 2, 3, 4, 5, 7)
    state, problems = read_newest_state(store, run, tmp_path)
    assert state is not None
    assert (state.manifest.row, state.file.read_bytes()) == (2, b"state 2")
    assert [problem.split()[0] for problem in problems] == [
        "after_007.json",
        "after_005.json",
        "after_004.safetensors",
        "after_003.safetensors",
    ]
    remove_states(store, run, before=5)
    assert list_state_rows(store, run) == (5, 7)
    (folder / ".after_008.json.0123456789abcdef.part").write_text("{")  # of a process killed there
    remove_states(store, run)
    assert not folder.exists()
    assert read_newest_state(store, run, tmp_path) == (None, [])


def test_other_files_next_to_states_are_ignored(store, experiment_id, tmp_path):
    """They are neither counted nor removed."""
    run = store.get_run(store.create_run(experiment_id).info.run_id)
    store_state(store, run.info.run_id, manifest(1, b"state"), b"state")
    folder = artifact_folder(run) / names.STATE_FOLDER
    for number in range(1001):
        (folder / f"note_{number}.txt").write_text("")
    state, problems = read_newest_state(store, run, tmp_path)
    assert (state.manifest.row, problems) == (1, [])
    remove_states(store, run)
    assert list_state_rows(store, run) == ()
    assert len(list(folder.iterdir())) == 1001


def test_a_state_is_stored_before_its_manifest(store, experiment_id, tmp_path, monkeypatch):
    """So that an interruption leaves no partial state."""
    run = store.get_run(store.create_run(experiment_id).info.run_id)
    stored = []

    def cut_off(client, run_id, content, artifact):
        if stored:
            raise OSError("cut off")
        stored.append(Path(artifact).name)
        log_durably(client, run_id, content, artifact)

    monkeypatch.setattr(states, "log_durably", cut_off)
    with pytest.raises(TrackingError, match="cut off"):
        store_state(store, run.info.run_id, manifest(1, b"s"), b"s")
    assert stored == ["after_001.safetensors"]
    assert list_state_rows(store, run) == ()
    assert read_newest_state(store, run, tmp_path) == (None, [])


@pytest.mark.parametrize("change", [{"format": 2}, {"row": "1"}, {"data": [1]}, {"row": None}])
def test_an_invalid_manifest_is_rejected(change):
    """A field of another type, or another format."""
    content = {**json.loads(manifest(1, b"s").to_json()), **change}
    with pytest.raises(RecordError, match="is not a manifest of a training state"):
        Manifest.from_json(json.dumps(content), source="m")


def test_a_search_returns_each_run_once_while_others_start(store, experiment_id, monkeypatch):
    """Over pages of two runs, also if many started in one millisecond."""
    monkeypatch.setattr(search, "_PAGE_SIZE", 2)
    times = [1_000, 2_000, 2_000, 2_000, 2_000, 2_000, 3_000, 4_000, 5_000]
    made = {
        store.create_run(experiment_id, start_time=time, run_name=f"{at}").info.run_id: time
        for at, time in enumerate(times)
    }
    scored, comparison, deleted = list(made)[:3]
    store.set_tag(scored, names.SCORED_TAG, "d")
    store.set_tag(comparison, names.KIND_TAG, names.KIND_COMPARE)
    store.delete_run(deleted)
    run_ids = [run.info.run_id for run in select_runs(store, experiment="test")]
    assert sorted(run_ids) == sorted(set(made) - {comparison, deleted})
    assert [made[run_id] for run_id in run_ids] == sorted((made[r] for r in run_ids), reverse=True)
    unscored = [r.info.run_id for r in select_runs(store, unscored_only=True)]
    assert sorted(unscored) == sorted(set(run_ids) - {scored})
    selected = select_runs(store, run_ids=(*list(made)[3:5], scored), unscored_only=True)
    assert [run.info.run_id for run in selected] == list(made)[3:5]
    first_run, missing, gone = select_runs(store, run_ids=(scored, "0" * 32, deleted, scored))
    assert first_run.info.run_id == scored
    assert isinstance(missing, MissingRun)
    assert "no such run" in missing.problem
    assert "is deleted" in gone.problem
    with pytest.raises(TrackingError, match="no experiment has the name or id 'none'"):
        list(select_runs(store, experiment="none"))
    with pytest.raises(TrackingError, match="cannot list the runs"):
        list(select_runs(store, filter="nonsense"))


def test_an_mlflow_error_is_one_line_without_a_password():
    """Other text is unchanged."""
    with pytest.raises(TrackingError) as caught, mlflow_errors("read it"):
        raise ValueError("two\nlines of mysql://me:secret@host/db")
    assert "cannot read it in the tracking store" in str(caught.value)
    assert str(caught.value).endswith("ValueError: two lines of mysql://***@host/db")
    own = RecordError("damaged")
    with pytest.raises(RecordError) as caught, mlflow_errors("read it"):
        raise own
    assert caught.value is own


def test_a_filter_of_very_many_conditions_is_rejected_at_once(store, experiment_id):
    """A database cannot join so many tables. Quoted words are no conditions."""
    with pytest.raises(ConfigError, match="filter has 301 conditions; expected at most 50"):
        list(select_runs(store, filter=" and ".join(["tags.a = 'b'"] * 301)))
    run = store.create_run(experiment_id, tags={"a": "this and that " * 60})
    selected = select_runs(store, filter=f"tags.a = '{'this and that ' * 60}' AND tags.a != 'x'")
    assert [selected_run.info.run_id for selected_run in selected] == [run.info.run_id]
