"""Run folders: entries are flushed before they count, and read in order."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
from mlflow.entities import Metric

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.run_folder import (
    HEADER_JSON,
    METRICS_JSON,
    OUTCOME_JSON,
    TAGS_JSON,
    FolderLockedError,
    Outcome,
    RunFolder,
    find_run_folders,
    is_safe_path,
    read_header,
)

RUN = "0123456789abcdef" * 2


@pytest.fixture
def journal(tmp_path):
    folder = RunFolder.create(tmp_path / RUN, RUN, "http://me:secret@host:1")
    yield folder
    folder.close()


def test_entries_and_outcomes_are_flushed_before_they_count(journal, monkeypatch):
    """First the content, then the name, so that a crash leaves complete entries only."""
    happened = []  # ("flush", path, content) and ("name", from, to)
    fsync, replace = os.fsync, Path.replace

    def flush(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        happened.append(("flush", path, path.read_bytes() if path.is_file() else None))
        fsync(descriptor)

    def name(self, target):
        happened.append(("name", self, Path(target)))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "replace", name)
    entry = journal.append("a/b.json", b"measured")
    assert (entry.name, entry.file.read_bytes()) == ("a/b.json", b"measured")
    outcome = journal.append_json(OUTCOME_JSON, Outcome("FAILED", "no more"))
    written = [step for step in happened if step[1].name.endswith(".part")]
    (end,) = [content for action, _, content in written[2:3] if action == "flush"]
    assert json.loads(end)["error"] == "no more"
    for file, content, steps in (
        (entry.file, b"measured", happened[-6:-3]),
        (outcome.file, end, happened[-3:]),
    ):
        draft = steps[0][1]
        assert draft.parent == file.parent
        assert draft.name.startswith(f".{file.name}.")
        assert steps == [
            ("flush", draft, content),
            ("name", draft, file),
            ("flush", file.parent, None),
        ]


def test_a_failed_write_leaves_no_entry(journal, monkeypatch):
    journal.append("a.json", b"1")
    first = journal.append_json(TAGS_JSON, {})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.append("b.json", b"2")
        with pytest.raises(OSError, match="No space"):
            journal.append_json(OUTCOME_JSON, Outcome("FINISHED"))
    names = sorted(path.name for path in journal.folder.iterdir())
    assert names == sorted([first.file.name, HEADER_JSON, "artifacts", "lock"])
    assert [entry.name for entry in journal.list_entries()] == ["a.json", TAGS_JSON]
    assert journal.append_json(TAGS_JSON, {}).file.name == "00000002-tags.json"


def test_a_run_folder_belongs_to_one_process(journal):
    with pytest.raises(FolderLockedError, match="another process writes to"):
        RunFolder.reopen(journal.folder)
    for name in ("of/b.json", "of/a.json", f"{ROWS_FOLDER}/row_001.json"):
        journal.append(name, b"")
    journal.append_metrics([Metric("m", 0.5, 1_000, 3)])
    journal.close()
    again = RunFolder.reopen(journal.folder)
    folder = again.list_entries()
    names = [f"{ROWS_FOLDER}/row_001.json", "of/a.json", "of/b.json", METRICS_JSON]
    assert [entry.name for entry in folder] == names
    (point,) = folder[-1].read_metrics()
    assert (point.key, point.value, point.timestamp, point.step) == ("m", 0.5, 1_000, 3)
    assert again.append_json(TAGS_JSON, {}).file.name == "00000002-tags.json"
    folder[0].remove()
    assert len(again.list_entries()) == 4
    again.close()
    with pytest.raises(TrackingError, match="4 files of an earlier process of run"):
        RunFolder.create(journal.folder, RUN, "http://host:1")


def test_entry_numbers_continue_after_entries_were_sent(journal):
    """Otherwise an entry would be sent before earlier measurements, or replace one."""
    entries = [journal.append_json(TAGS_JSON, {"n": str(n)}) for n in range(4)]
    for entry in entries[:2]:
        entry.remove()
    journal.close()
    again = RunFolder.reopen(journal.folder)
    again.append_json(TAGS_JSON, {"n": "4"})
    assert [entry.read()["n"] for entry in again.list_entries()] == ["2", "3", "4"]
    again.close()


def test_a_file_that_is_written_again_is_sent_once_with_its_last_content(journal):
    first, last = (journal.append("a.json", content) for content in (b"1", b"2"))
    assert (first.is_replaced, last.is_replaced) == (True, False)
    first.remove()
    assert [entry.read() for entry in journal.list_entries()] == [b"2"]
    last.remove()
    assert journal.list_entries() == []


def test_a_row_is_never_overwritten(journal):
    entry = journal.append(f"{ROWS_FOLDER}/row_001.json", b"1")
    with pytest.raises(RecordError, match=r"row_001.json exists already"):
        journal.append(f"{ROWS_FOLDER}/row_001.json", b"2")
    assert entry.read() == b"1"


def test_a_nan_point_is_read_back(journal):
    """MLflow stores it."""
    journal.append_metrics([Metric("loss", float("nan"), 1_000, 3)])
    ((point,),) = [entry.read_metrics() for entry in journal.list_entries()]
    assert str(point.value) == "nan"


@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinite_point_is_the_largest_number_that_databases_store(journal, sign):
    journal.append_metrics([Metric("loss", sign * math.inf, 1_000, 3)])
    (entry,) = journal.list_entries()
    assert entry.read_metrics()[0].value == sign * sys.float_info.max


@pytest.mark.parametrize("name", ["params.json", "inputs.json", "info.json"])
def test_nothing_else_is_set_in_a_run(journal, name):
    """A folder may come from anyone, and only a run of an offline folder or bundle has these."""
    (journal.folder / f"00000009-{name}").write_text("{}")
    assert journal.list_entries() == []


def test_foreign_files_are_neither_sent_nor_removed(journal, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret of this machine")
    artifacts = journal.folder / "artifacts"
    (artifacts / "deep").mkdir(parents=True)
    strange = [
        *(journal.folder / f"00000009-{name}" for name in ("tags.json", "folder", "a?b")),
        *(artifacts / name for name in ("link", "a?b", ".hidden", "folder", "deep/a#b")),
    ]
    strange[0].symlink_to(secret)
    strange[3].symlink_to(secret)
    strange[6].symlink_to(tmp_path)
    strange[1].mkdir()
    for file in (strange[2], strange[4], strange[5], strange[7]):
        file.write_text("{}")
    assert journal.list_entries() == []
    journal.close(remove=True)
    folders = {artifacts, artifacts / "deep"}
    assert {path for path in journal.folder.rglob("*") if path not in folders} == {*strange}


def test_a_run_folder_has_its_runs_id_and_store(journal, tmp_path, monkeypatch):
    origin = read_header(journal.folder)
    assert (origin.run_id, origin.tracking_uri) == (RUN, "http://***@host:1")
    assert origin.password
    monkeypatch.chdir(tmp_path)
    local = RunFolder.create(tmp_path / "other", "f" * 32, "sqlite:///mlflow.db")
    origin = read_header(local.folder)
    assert origin.tracking_uri == f"sqlite:////{str(tmp_path).lstrip('/')}/mlflow.db"
    assert not origin.password
    local.close()
    (local.folder / HEADER_JSON).write_text(json.dumps({"format": "3.0", "run_id": RUN}))
    with pytest.raises(TrackingError, match=r"has format '3.0'; this program reads 2.0"):
        read_header(local.folder)


def test_an_outcome_is_read_back_and_a_new_training_starts_without_one(journal):
    assert journal.read_outcome() is None
    journal.append_json(OUTCOME_JSON, Outcome("KILLED", "two\nlines", diverged=True))
    assert journal.read_outcome() == Outcome(
        "KILLED", "two\N{REPLACEMENT CHARACTER}lines", diverged=True
    )
    outcome = journal.append_json(OUTCOME_JSON, Outcome("KILLED"))
    outcome.file.write_text(json.dumps({"status": "DELETED", "error": None}))
    with pytest.raises(TrackingError, match=r"outcome\.json is damaged: "):
        journal.read_outcome()
    journal.close()
    again = RunFolder.create(journal.folder, RUN, "http://host:1")
    assert again.read_outcome() is None
    again.close(remove=True)
    assert not journal.folder.exists()


def test_leftover_run_folders_are_found(tmp_path, own_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = ["a" * 32, "b" * 32]
    folders = [own_cache / "unsent" / runs[0], tmp_path / "unsent_rows" / runs[1]]
    for folder, run_id in zip(folders, runs, strict=True):
        RunFolder.create(folder, run_id, "http://host:1").close()
    (tmp_path / "unsent_rows" / "other").mkdir()
    assert find_run_folders() == folders
    assert find_run_folders(runs[1]) == folders[1:]


def test_a_removed_folder_contains_only_what_is_not_of_this_package(tmp_path):
    for name, remains in ((".00000001-a.json.0123.part", []), ("notes.txt", ["notes.txt"])):
        folder = RunFolder.create(tmp_path / name.strip("."), RUN, "http://host:1")
        (folder.folder / name).write_bytes(b"{")
        folder.close(remove=True)
        files = folder.folder.iterdir() if folder.folder.exists() else ()
        assert [path.name for path in files] == remains


@pytest.mark.parametrize(
    "path", ["../x", "a/../x", "/x", "a//x", "a?b", "a#b", "a%2e", "a\\b", "."]
)
def test_paths_that_leave_the_run_are_not_copied(path):
    assert not is_safe_path(path)
    assert is_safe_path("images/my run+step+1.png")
