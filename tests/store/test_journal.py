"""The journal of what was measured: on the disk before it counts as kept, and sent in order."""

import json
import os
import threading
import time
from pathlib import Path

import mlflow
import pytest
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.journal import sender as sending
from clear_mlflow.journal.sender import Outbox, Sender, exit_patience, is_final, unsent_error
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
LONG = 60  # seconds: a bound against hangs


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
    draft, there = spool.folder / f"{END_JSON}.part", spool.folder / END_JSON
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
        Spool.take(spool.folder)
    for number in range(11):
        spool.put(f"{number}.json", b"")
    spool.put_metrics([Metric("m", 0.5, 1_000, 3)])
    spool.close()
    again = Spool.take(spool.folder)
    found = list(again.entries())
    assert [entry.artifact for entry in found] == [*(f"{n}.json" for n in range(11)), None]
    (point,) = found[-1].metrics()
    assert (point.key, point.value, point.timestamp, point.step) == ("m", 0.5, 1_000, 3)
    assert again.put("next.json", b"").folder.name == "00000013-file"
    again.close()
    with pytest.raises(TrackingError, match="13 files that an earlier process measured"):
        Spool.create(spool.folder, RUN, "http://host:1")
    assert len(list(Spool.take(spool.folder).entries())) == 13


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


class Stutters(MlflowClient):
    """A real store whose first answers to a file are these errors."""

    def __init__(self, uri, **errors):
        super().__init__(uri)
        self.errors = errors
        self.asked = []

    def log_artifact(self, run_id, local_path, artifact_path=None):
        name = Path(local_path).stem
        self.asked.append(name)
        if errors := self.errors.get(name, []):
            raise errors.pop(0)
        super().log_artifact(run_id, local_path, artifact_path)


def later():
    return MlflowException("try again", TEMPORARILY_UNAVAILABLE)


def never():
    return MlflowException("you may not", PERMISSION_DENIED)


@pytest.fixture
def run_id(store, experiment_id):
    return store.create_run(experiment_id).info.run_id


def files_of(store, run_id):
    return sorted(file.path for file in store.list_artifacts(run_id))


@pytest.fixture
def hurried(monkeypatch):
    """A store that is away is asked again at once."""
    monkeypatch.setattr(sending, "_LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "_LAST_PAUSE_SECONDS", 0.01)


def sent(client, run_id, spool, patience, *names):
    sender = Sender(client)
    for name in names:
        sender.put(run_id, spool.put(f"{name}.txt", name.encode()))
    sender.start()
    sender.finish(patience)
    return sender


@pytest.mark.usefixtures("hurried")
def test_what_cannot_be_stored_now_is_asked_for_again_in_order(store, run_id, spool):
    """Nothing overtakes it, and the journal forgets what the store has."""
    client = Stutters(store.tracking_uri, a=[later(), later()])
    sender = sent(client, run_id, spool, LONG, "a", "b")
    assert client.asked == ["a", "a", "a", "b"]
    assert files_of(store, run_id) == ["a.txt", "b.txt"]
    assert list(spool.entries()) == []
    assert sender.waiting() == {}
    assert not sender.is_away
    assert unsent_error(sender) is None


@pytest.mark.usefixtures("hurried")
def test_what_a_store_refuses_is_asked_for_once_more_at_the_end(store, run_id, spool):
    """A permission may have come meanwhile; until then it holds nothing else up."""
    client = Stutters(store.tracking_uri, a=[never()])
    sender = Sender(client)
    sender.start()
    for name in ("a", "b"):
        sender.put(run_id, spool.put(f"{name}.txt", b""))
    assert wait(lambda: client.asked == ["a", "b"] and len(list(spool.entries())) == 1)
    assert files_of(store, run_id) == ["b.txt"]
    assert [entry.artifact for entry in sender.waiting()[run_id]] == ["a.txt"]
    sender.finish(LONG)
    assert client.asked == ["a", "b", "a"]
    assert files_of(store, run_id) == ["a.txt", "b.txt"]
    assert sender.waiting() == {}


@pytest.mark.usefixtures("hurried")
def test_what_a_store_never_takes_stays_in_the_journal(store, run_id, spool):
    """The end waits no longer than it was asked to, and says where it lies."""
    client = Stutters(store.tracking_uri, a=[never(), never()], b=[later() for _ in range(10_000)])
    sender = sent(client, run_id, spool, 0.3, "a", "b")
    assert [entry.artifact for entry in sender.waiting()[run_id]] == ["b.txt", "a.txt"]
    assert len(list(spool.entries())) == 2
    error = unsent_error(sender)
    assert error is not None
    assert error.folders == {run_id: spool.folder}
    assert str(spool.folder) in str(error)


def wait(condition):
    until = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > until:
            return False
        threading.Event().wait(0.01)
    return True


def test_who_puts_a_file_knows_when_the_store_has_it(store, run_id, tmp_path, monkeypatch):
    """None is the answer then; while it is away it is the reason, at once."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    client = Stutters(store.tracking_uri, b=[later() for _ in range(10_000)])
    outbox = Outbox(client, run_id)
    outbox.open()
    outbox.sender.start()
    outbox.put("a.txt", b"a")
    assert outbox.sender.wait_delivered(LONG) is None
    assert files_of(store, run_id) == ["a.txt"]
    outbox.put("b.txt", b"b")
    problem = outbox.sender.wait_delivered(LONG)
    assert "try again" in str(problem)
    assert outbox.sender.is_away
    outbox.sender.finish(0.1)
    outbox.close()
    (left,) = left_spools(run_id)
    assert [entry.file.read_bytes() for entry in Spool.take(left).entries()] == [b"b"]


def test_a_journal_whose_files_were_all_sent_is_removed(store, run_id, tmp_path, monkeypatch):
    """Nothing is left of it."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    outbox = Outbox(store, run_id)
    outbox.open()
    outbox.sender.start()
    outbox.put("a.txt", b"a")
    outbox.put_metrics([Metric("m", 0.5, 1_000, 3)])
    outbox.sender.finish(LONG)
    folder = outbox.folder
    outbox.close()
    assert not folder.exists()
    assert mlflow.artifacts.load_text(f"{store.get_run(run_id).info.artifact_uri}/a.txt") == "a"
    (point,) = store.get_metric_history(run_id, "m")
    assert (point.value, point.timestamp, point.step) == (0.5, 1_000, 3)


@pytest.mark.parametrize(
    ("final", "statuses"),
    [(True, (400, 401, 403, 404, 413, 499)), (False, (399, 408, 425, 429, 500, 502, 503))],
)
def test_which_answers_are_final(final, statuses):
    """A store that says later is asked again; what it will never take is set aside."""
    error = TrackingError("not stored")
    for status in statuses:
        response = requests.Response()
        response.status_code = status
        error.__cause__ = requests.HTTPError(response=response)
        assert is_final(error) is final, status
    error.__cause__ = requests.ConnectionError()
    assert not is_final(error)


@pytest.mark.parametrize(("text", "seconds"), [("", 60), ("0", 0), ("2.5", 2.5), ("86400", 86400)])
def test_how_long_an_end_waits(monkeypatch, text, seconds):
    """A minute, unless the environment says else."""
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", text)
    assert exit_patience() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "86401", "nan"])
def test_no_number_of_seconds_is_refused(monkeypatch, text):
    """With what was expected."""
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", text)
    with pytest.raises(TrackingError, match="expected seconds, 0 to 86400"):
        exit_patience()
