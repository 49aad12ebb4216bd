"""The journal of what was measured: on the disk before it counts as kept, and sent in order."""

import json
import os
from pathlib import Path

import pytest
from mlflow.entities import Metric

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.journal.spool import (
    END_JSON,
    SPOOL_JSON,
    End,
    HeldError,
    Spool,
    left_spools,
    read_origin,
)

RUN = "0123456789abcdef" * 2


@pytest.fixture
def spool(tmp_path):
    found = Spool.create(tmp_path / RUN, RUN, "http://me:secret@host:1")
    yield found
    found.close()


@pytest.fixture
def disk(monkeypatch):
    """What reaches the disk, in order: ("flush", path, content) and ("name", from, to)."""
    happened = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def path_of(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    def flush(descriptor):
        path = path_of(descriptor)
        happened.append(("flush", path, path.read_bytes() if path.is_file() else None))
        fsync(descriptor)

    def named(original):
        def move(self, target):
            happened.append(("name", self, Path(target)))
            return original(self, target)

        return move

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "rename", named(rename))
    monkeypatch.setattr(Path, "replace", named(replace))
    return happened


def test_an_entry_is_on_the_disk_before_it_counts_as_kept(spool, disk):
    """Its content first, then its name: a machine that goes down leaves all of it or nothing."""
    entry = spool.put("a/b.json", b"measured")
    draft = entry.folder.with_name(f"{entry.folder.name}.part")
    assert disk == [
        ("flush", draft / "a/b.json", b"measured"),
        ("name", draft, entry.folder),
        ("flush", spool.folder, None),
    ]
    assert entry.file.read_bytes() == b"measured"


def test_how_a_training_ended_is_on_the_disk_too(spool, disk):
    """The file of before stays whole until the new one is."""
    spool.write_end(End("FAILED", "no more"))
    (content,) = {text for what, _, text in disk if what == "flush" and text is not None}
    assert json.loads(content)["error"] == "no more"
    draft, there = spool.folder / f".{END_JSON}.part", spool.folder / END_JSON
    assert [(what, path) for what, path, _ in disk] == [
        ("flush", draft),
        ("name", draft),
        ("flush", spool.folder),
    ]
    assert disk[1][2] == there


def test_what_the_disk_does_not_take_is_not_there(spool, monkeypatch):
    """Nothing of it is left, and the next entry has its number."""
    first = spool.put("a.json", b"1")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            spool.put("b.json", b"2")
        with pytest.raises(OSError, match="No space"):
            spool.write_end(End("FINISHED"))
    assert sorted(path.name for path in spool.folder.iterdir()) == [
        first.folder.name,
        "lock",
        SPOOL_JSON,
    ]
    assert spool.put("c.json", b"3").folder.name == "00000002-file"


def test_a_journal_is_one_process_s(spool):
    """Another one is told so; when it is closed, what waits is there for the next, in order."""
    with pytest.raises(HeldError, match="a process that lives writes to"):
        Spool.take(spool.folder, RUN)
    for number in range(11):
        spool.put(f"{number}.json", b"")
    spool.put_metrics([Metric("m", 0.5, 1_000, 3)])
    spool.close()
    again = Spool.take(spool.folder, RUN)
    found = list(again.entries())
    assert [entry.artifact for entry in found] == [*(f"{n}.json" for n in range(11)), None]
    (point,) = found[-1].metrics()
    assert (point.key, point.value, point.timestamp, point.step) == ("m", 0.5, 1_000, 3)
    assert again.put("next.json", b"").folder.name == "00000013-file"
    again.close()
    with pytest.raises(TrackingError, match="13 files that an earlier process measured"):
        Spool.create(spool.folder, RUN, "http://host:1")
    assert len(list(Spool.take(spool.folder, RUN).entries())) == 13


def test_an_entry_that_was_half_removed_is_none(spool):
    """Its file went first: the store has it."""
    gone, there = spool.put("a/a.json", b"1"), spool.put("b.json", b"2")
    gone.file.unlink()
    assert [entry.artifact for entry in spool.entries()] == ["b.json"]
    there.remove()
    assert list(spool.entries()) == []
    assert not gone.folder.exists()
    assert not there.folder.exists()


def test_whose_journal_it_is(spool, tmp_path, monkeypatch):
    """Without the password, and with a path that means the same elsewhere."""
    origin = read_origin(spool.folder)
    assert (origin.run_id, origin.tracking_uri) == (RUN, "http://***@host:1")
    assert origin.password
    monkeypatch.chdir(tmp_path)
    local = Spool.create(tmp_path / "other", "f" * 32, "sqlite:///mlflow.db")
    origin = read_origin(local.folder)
    assert origin.tracking_uri == f"sqlite:////{str(tmp_path).lstrip('/')}/mlflow.db"
    assert not origin.password
    local.close()
    (local.folder / SPOOL_JSON).write_text(json.dumps({"format": 2, "run_id": RUN}))
    with pytest.raises(TrackingError, match="is of format 2; this program knows 1"):
        read_origin(local.folder)


def test_an_end_is_read_back_and_a_new_training_starts_without_one(spool):
    """What an earlier one left does not close the run of the next."""
    assert spool.end() is None
    spool.write_end(End("KILLED", "two\nlines", diverged=True))
    assert spool.end() == End("KILLED", "two\N{REPLACEMENT CHARACTER}lines", diverged=True)
    (spool.folder / END_JSON).write_text(json.dumps({"status": "DELETED", "error": None}))
    with pytest.raises(TrackingError, match="does not say how a training ended"):
        spool.end()
    spool.close()
    again = Spool.create(spool.folder, RUN, "http://host:1")
    assert again.end() is None
    again.close()


def test_journals_that_were_left_are_found(tmp_path, monkeypatch):
    """Of all runs, or of one; where the cache is, and in the working folder."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    runs = ["a" * 32, "b" * 32]
    places = [tmp_path / "cache" / "unsent" / runs[0], tmp_path / "unsent_rows" / runs[1]]
    for place, run_id in zip(places, runs, strict=True):
        Spool.create(place, run_id, "http://host:1").close()
    (tmp_path / "unsent_rows" / "other").mkdir()
    assert left_spools() == places
    assert left_spools(runs[1]) == places[1:]
