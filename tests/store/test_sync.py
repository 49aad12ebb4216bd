"""Leftover run folders are uploaded: stored rows are compared, and never contradicted."""

import json

import pytest
from commands import invoke
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from stored_runs import row_texts, rows_folder, stored_run

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.run_folder import RunFolder
from clear_mlflow.journal.uploader import Uploader
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.rows import RowConflictError, read_rows
from clear_mlflow.tracking.sync import sync_folders

CORRECT = [[1, 2], [6, 3], [4, 7]]


@pytest.fixture
def run(store, experiment_id):
    return stored_run(store, experiment_id, CORRECT[:2])


@pytest.fixture
def journal(store, run, tmp_path):
    folder = RunFolder.create(tmp_path / "journal", run.info.run_id, store.tracking_uri)
    yield folder
    folder.close()


def put(journal, name, text):
    return journal.append(f"{ROWS_FOLDER}/{name}", text.encode())


def test_rows_and_files_are_sent_in_order_and_removed(store, run, journal):
    texts = row_texts(CORRECT)
    again = {**json.loads(texts["row_001.json"]), "written_at": "2026-02-01T00:00:00+00:00"}
    put(journal, "row_001.json", json.dumps(again))
    put(journal, "row_002.json", texts["row_002.json"])
    journal.append("other/file.txt", b"x")
    sent = [entry.name for entry in Uploader(store, run.info.run_id).upload_folder(run, journal)]
    folder = ROWS_FOLDER
    assert sent == [f"{folder}/row_001.json", f"{folder}/row_002.json", "other/file.txt"]
    assert journal.list_entries() == []
    rows = read_rows(store, run)
    assert [list(record.row.correct) for record in rows.values()] == CORRECT
    assert [file.path for file in store.list_artifacts(run.info.run_id, "other")]


def test_a_row_with_other_numbers_is_not_sent(store, run, journal):
    other = row_texts([[1, 2], [6, 4]])["row_001.json"]
    entry = put(journal, "row_001.json", other)
    put(journal, "row_002.json", row_texts(CORRECT)["row_002.json"])
    with pytest.raises(
        RowConflictError, match=r"row_001.json of run .* is stored already with other"
    ):
        list(Uploader(store, run.info.run_id).upload_folder(run, journal))
    assert entry.file.exists()
    assert len(journal.list_entries()) == 2
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT[:2]


def test_a_row_that_another_process_stores_meanwhile_ends_it(store, run, journal):
    """Later entries are measurements of an abandoned model."""
    put(journal, "row_001.json", row_texts(CORRECT)["row_001.json"])
    put(journal, "row_002.json", row_texts(CORRECT)["row_002.json"])
    journal.append("behind.txt", b"x")
    sending = Uploader(store, run.info.run_id).upload_folder(run, journal)
    assert next(sending).name == f"{ROWS_FOLDER}/row_001.json"
    (rows_folder(run) / "row_002.json").write_text(
        row_texts([*CORRECT[:2], [0, 0]])["row_002.json"]
    )
    with pytest.raises(RowConflictError):
        list(sending)
    entry_names = [entry.name for entry in journal.list_entries()]
    assert entry_names == [f"{ROWS_FOLDER}/row_002.json", "behind.txt"]


def test_an_entry_that_the_store_rejects_does_not_block_others(store, run, journal, monkeypatch):
    def refusing(folder, name, content):
        if name == "too/large.bin":
            raise MlflowException("too large", PERMISSION_DENIED)
        write_file(folder, name, content)

    write_file = ArtifactFolder.write_file
    monkeypatch.setattr(ArtifactFolder, "write_file", refusing)
    journal.append("too/large.bin", b"x")
    put(journal, "row_002.json", row_texts(CORRECT)["row_002.json"])
    with pytest.raises(TrackingError, match="too large"):
        list(Uploader(store, run.info.run_id).upload_folder(run, journal))
    assert [entry.name for entry in journal.list_entries()] == ["too/large.bin"]
    assert names.HOLDER_TAG not in store.get_run(run.info.run_id).data.tags  # it was given back
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT


def test_an_unreadable_run_folder_does_not_stop_others(store, run, journal, tmp_path, monkeypatch):
    journal.close()
    broken = RunFolder.create(tmp_path / "broken", run.info.run_id, store.tracking_uri)
    broken.close()
    read_outcome = RunFolder.read_outcome

    def failing(self):
        if self.folder == broken.folder:
            raise OSError(5, "Input/output error")
        return read_outcome(self)

    monkeypatch.setattr(RunFolder, "read_outcome", failing)
    first, second = sync_folders([broken.folder, journal.folder])
    assert (first.action, second.action) == ("failed", "sent")
    assert "Input/output error" in first.detail


@pytest.mark.parametrize("name", ["row_001.json", "row_003.json"])
def test_a_damaged_or_renamed_file_is_not_sent(store, run, journal, name):
    put(journal, name, "{" if name == "row_001.json" else row_texts(CORRECT)["row_002.json"])
    before = {path.name: path.read_bytes() for path in rows_folder(run).iterdir()}
    with pytest.raises(RecordError, match=name):
        list(Uploader(store, run.info.run_id).upload_folder(run, journal))
    assert {path.name: path.read_bytes() for path in rows_folder(run).iterdir()} == before


def test_sync_keeps_what_it_could_not_send(store, run, journal):
    put(journal, "row_002.json", "{")
    journal.close()
    (synced,) = sync_folders([journal.folder])
    assert synced.action == "failed"
    assert "row_002.json" in synced.detail
    (waiting,) = journal.folder.rglob("row_002.json")
    waiting.write_text(row_texts(CORRECT)["row_002.json"])
    (synced,) = sync_folders([journal.folder])
    assert (synced.action, synced.detail[:6]) == ("sent", "1 sent")
    assert not journal.folder.exists()
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT


def test_sync_does_not_ignore_an_experiment(store, run, journal):
    put(journal, "row_002.json", row_texts(CORRECT)["row_002.json"])
    journal.close()
    done = invoke("sync", journal.folder, "--experiment", "mine")
    assert done.exit_code == 2
    assert "error: --experiment is 'mine', but the runs that wait are in a store" in done.output
    assert list(read_rows(store, run)) == ["row_000.json", "row_001.json"]
    assert invoke("sync", journal.folder).exit_code == 0
