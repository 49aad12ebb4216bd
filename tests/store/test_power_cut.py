"""A power cut at any moment loses no measurement."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from feature_streams import config, made_up, training
from power_cuts import record_cuts, restore
from stored_runs import without_machine_fields

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.journal.run_folder import RunFolder, find_run_folders, get_unsent_root
from clear_mlflow.learning.measured import ignore
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.rows import read_rows
from clear_mlflow.store.states import store_state
from clear_mlflow.tracking import training_run
from clear_mlflow.tracking.resume import read_resume_point
from clear_mlflow.tracking.sync import sync_folders
from clear_mlflow.tracking.tracked_training import train_in_process
from clear_mlflow.tracking.training_run import TrainingRun

pytestmark = pytest.mark.slow

SETTINGS = config(strategy="naive", epochs=2, predictions="none", resumable="on")
STREAM = made_up(((30, 20), (17, 9)))


class Counting:
    """A training that counts its rows, and waits before it yields one."""

    def __init__(self, inner, wait: Callable[[int], None]):
        self._inner, self._wait = inner, wait
        self.config, self.dataset = inner.config, inner.dataset
        self.taken = 0

    def rows(self, on_message=ignore):
        for measured in self._inner.rows(on_message):
            self._wait(measured.row.row)
            yield measured
            self.taken += 1


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def read_row_values(client, run_id):
    records = read_rows(client, client.get_run(run_id))
    return without_machine_fields(
        {n: json.loads(record.to_json()) for n, record in records.items()}
    )


@pytest.fixture
def cuts(request, store, tmp_path, own_cache, monkeypatch):
    """Return the run's id, its rows, and the different disks that cuts during it leave.

    A state is stored before its bucket's training has ended or, as a "late" one, not before the
    next row is on local disk.
    """
    folders = [tmp_path / "artifacts", own_cache]
    late = getattr(request, "param", "early") == "late"
    stored = set()  # a state's name is there before it is flushed

    def wait_for_state(row):
        if row > 0 and not late:
            name = f"after_{row - 1:03}.json"
            until(lambda: row - 1 in stored)
            until(lambda: [file.name for file in folders[0].rglob("after_*.json")] == [name])

    def wait_for_row(client, run, manifest, content):
        if late:
            until(lambda: list(own_cache.rglob(f"row_{manifest.row + 1:03}.json")))
        store_state(client, run, manifest, content)
        stored.add(manifest.row)

    counting = Counting(training(SETTINGS, STREAM), wait_for_state)
    with (
        monkeypatch.context() as patch,
        record_cuts(monkeypatch, folders, tmp_path / "mlflow.db", lambda: counting.taken) as disks,
    ):
        patch.setattr(training_run, "store_state", wait_for_row)
        train_in_process(store, counting, {})
    (run,) = store.search_runs([store.get_experiment_by_name("test").experiment_id])
    rows = read_row_values(store, run.info.run_id)
    assert len(rows) == 3
    run_id = run.info.run_id
    different = {
        (select_precious_files(disk, own_cache), disk.note): disk
        for disk in disks
        if run_id.encode() in disk.database  # the run itself was there
    }
    return run_id, rows, folders, list(different.values())


def select_precious_files(disk, cache):
    """Return the files of a disk that cannot be made again, unlike pictures and tables."""
    precious = ("accuracy_matrix/rows/", "training_state/", "config.json")
    return tuple(
        (path, content)
        for path, content in sorted(disk.files.items())
        if path.is_relative_to(cache) or any(part in str(path) for part in precious)
    )


def _has_config(client, run_id):
    return names.CONFIG_JSON in {file.path for file in client.list_artifacts(run_id)}


EARLY = {(0, None), (1, None), (1, 0), (2, 0), (2, 1), (3, 1)}
LATE = {(0, None), (1, None), (2, None), (2, 0), (3, 0), (3, 1)}


@pytest.mark.parametrize(
    ("cuts", "begins_from"), [("early", EARLY), ("late", LATE)], indirect=["cuts"]
)
def test_every_cut_leaves_what_sync_resume_and_evaluate_work_from(
    cuts, begins_from, store, tmp_path
):
    """After a sync, all rows that training continued from are stored.

    Resumed, the run equals an uninterrupted one.
    """
    run_id, rows, folders, disks = cuts
    assert len(disks) > 30
    scored, resumed = set(), set()
    without_config = 0
    for disk in disks:
        restore(disk, folders, tmp_path / "mlflow.db")
        # The process is gone with its machine.
        if names.PROCESS_TAG in store.get_run(run_id).data.tags:
            store.delete_tag(run_id, names.PROCESS_TAG)
        for synced in sync_folders(find_run_folders(run_id)):
            assert synced.action == "sent", (disk.when, synced.detail)
        rows_after = read_row_values(store, run_id)
        assert len(rows_after) >= disk.note, disk.when
        assert rows_after == {name: rows[name] for name in rows_after}, disk.when
        if rows_after and len(rows_after) not in scored:
            score(store, run_id)
            scored.add(len(rows_after))
        if not rows_after and not _has_config(store, run_id):
            with pytest.raises(TrackingError, match=r"lacks config\.json"):
                read_resume_point(store, run_id, tmp_path)
            without_config += 1
            continue
        point = read_resume_point(store, run_id, tmp_path)
        # What a resume does follows from where it begins: each such place is tried once.
        begins = (len(rows_after), None if point.state is None else point.state.manifest.row)
        if point.is_complete or begins in resumed:
            continue
        again = training(SETTINGS, STREAM, point.state and point.state.file)
        with TrainingRun(store, run_id, again.config, {}, resume_point=point) as run:
            run.track(again)
        assert read_row_values(store, run_id) == rows, disk.when
        resumed.add(begins)
    assert scored == {1, 2, 3}
    assert resumed == begins_from
    assert 0 < without_config < 10


def test_a_torn_row_is_written_again(cuts, store, tmp_path, capfd):
    """If a store does not flush: from the run folder, or from the training state."""
    run_id, rows, folders, disks = cuts
    artifacts = Path("artifacts", run_id, "artifacts")
    row = artifacts / "accuracy_matrix" / "rows" / "row_001.json"
    state = artifacts / names.STATE_FOLDER / "after_001.json"
    disk = next(d for d in disks if {tmp_path / row, tmp_path / state} <= d.files.keys())
    intact = disk.files[tmp_path / row]
    for waits in (True, False):
        restore(disk, folders, tmp_path / "mlflow.db")
        store.delete_tag(run_id, names.PROCESS_TAG)
        list(sync_folders(find_run_folders(run_id)))
        (tmp_path / row).write_bytes(b"")
        if waits:
            journal = RunFolder.create(get_unsent_root() / run_id, run_id, store.tracking_uri)
            journal.append("accuracy_matrix/rows/row_001.json", intact)
            journal.close()
            assert [synced.action for synced in sync_folders([journal.folder])] == ["sent"]
            assert "was cut off; it is stored again" in capfd.readouterr().err
            assert (tmp_path / row).read_bytes() == intact
            continue
        point = read_resume_point(store, run_id, tmp_path)
        assert (set(point.records), point.damaged_rows) == ({0}, {1})
        assert "it is written again from the training state" in capfd.readouterr().err
        again = training(SETTINGS, STREAM, point.state.file)
        with TrainingRun(store, run_id, again.config, {}, resume_point=point) as run:
            run.track(again)
        assert read_row_values(store, run_id) == rows
