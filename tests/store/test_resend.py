"""What a journal sends again: rows are looked at first, and contradict none that is stored."""

import json

import pytest
from stored_runs import row_texts, rows_folder, stored_run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.resend import send_waiting
from clear_mlflow.journal.spool import Spool
from clear_mlflow.runs.sync import sync_each
from clear_mlflow.store.rows import read_rows

CORRECT = [[1, 2], [6, 3], [4, 7]]


@pytest.fixture
def run(store, experiment_id):
    """A run that holds the first two rows of three."""
    return stored_run(store, experiment_id, CORRECT[:2])


@pytest.fixture
def spool(store, run, tmp_path):
    found = Spool.create(tmp_path / "journal", run.info.run_id, store.tracking_uri)
    yield found
    found.close()


def put(spool, name, text):
    return spool.put(f"{ROWS_FOLDER}/{name}", text.encode())


def test_rows_and_files_are_sent_in_order_and_forgotten(store, run, spool):
    """A row that is there already, written at another time, is the same row."""
    texts = row_texts(CORRECT)
    again = {**json.loads(texts["row_001.json"]), "written_at": "2026-02-01T00:00:00+00:00"}
    put(spool, "row_001.json", json.dumps(again))
    put(spool, "row_002.json", texts["row_002.json"])
    spool.put("other/file.txt", b"x")
    sent = [entry.artifact for entry in send_waiting(store, run, spool)]
    folder = ROWS_FOLDER
    assert sent == [f"{folder}/row_001.json", f"{folder}/row_002.json", "other/file.txt"]
    assert list(spool.entries()) == []
    rows = read_rows(store, run)
    assert [list(record.row.correct) for record in rows.values()] == CORRECT
    assert [file.path for file in store.list_artifacts(run.info.run_id, "other")]


def test_a_row_with_other_numbers_is_not_sent(store, run, spool):
    """The first measurement stays, and both are named; what comes behind waits."""
    other = row_texts([[1, 2], [6, 4]])["row_001.json"]
    entry = put(spool, "row_001.json", other)
    put(spool, "row_002.json", row_texts(CORRECT)["row_002.json"])
    with pytest.raises(RecordError, match=r"contradicts row_001.json of run .* measured twice"):
        list(send_waiting(store, run, spool))
    assert entry.file.exists()
    assert len(list(spool.entries())) == 2
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT[:2]


def test_of_two_in_one_journal_the_first_counts(store, run, spool):
    """As if it had been sent the moment it was measured."""
    put(spool, "row_002.json", row_texts(CORRECT)["row_002.json"])
    put(spool, "row_002.json", row_texts([*CORRECT[:2], [0, 0]])["row_002.json"])
    with pytest.raises(RecordError, match=r"contradicts row_002\.json"):
        list(send_waiting(store, run, spool))
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT


@pytest.mark.parametrize("name", ["row_001.json", "row_003.json"])
def test_a_file_that_is_damaged_or_renamed_is_no_row(store, run, spool, name):
    """It is told of before anything is stored under its name."""
    put(spool, name, "{" if name == "row_001.json" else row_texts(CORRECT)["row_002.json"])
    before = {path.name: path.read_bytes() for path in rows_folder(run).iterdir()}
    with pytest.raises(RecordError, match=name):
        list(send_waiting(store, run, spool))
    assert {path.name: path.read_bytes() for path in rows_folder(run).iterdir()} == before


def test_sync_keeps_what_it_could_not_send(store, run, spool):
    """The rest waits for the next time; then the folder is gone."""
    put(spool, "row_002.json", "{")
    spool.close()
    (synced,) = sync_each([spool.folder])
    assert not synced.done
    assert "row_002.json" in synced.detail
    (waiting,) = spool.folder.rglob("row_002.json")
    waiting.write_text(row_texts(CORRECT)["row_002.json"])
    (synced,) = sync_each([spool.folder])
    assert (synced.done, synced.sent) == (True, 1)
    assert not spool.folder.exists()
    assert [list(record.row.correct) for record in read_rows(store, run).values()] == CORRECT
