"""Uploads in order by one thread, with retries."""

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
from clear_mlflow.journal import uploader as uploading
from clear_mlflow.journal.run_folder import (
    TAGS_JSON,
    Outcome,
    RunFolder,
    find_run_folders,
    list_candidate_folders,
)
from clear_mlflow.journal.uploader import (
    Uploader,
    is_permanent_error,
    read_exit_wait,
    store_outcome,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.lease import build_lease_tags

LONG = 60  # seconds: a bound against hangs


class Stutters(MlflowClient):
    """A real store whose first responses for a file are these errors."""

    def __init__(self, uri, **errors):
        super().__init__(uri)
        self.errors = errors
        self.requests = []

    def answer(self, name):
        self.requests.append(name)
        if errors := self.errors.get(name, []):
            raise errors.pop(0)


@pytest.fixture(autouse=True)
def stuttering(monkeypatch):
    """Make such a store's errors precede local writes, which bypass MLflow."""

    class StutteringFolder(ArtifactFolder):
        def __init__(self, client, run):
            super().__init__(client, run)
            self.client = client

        def write_file(self, name, content, *, is_durable=True):
            if isinstance(self.client, Stutters):
                self.client.answer(Path(name).stem)
            super().write_file(name, content, is_durable=is_durable)

    monkeypatch.setattr(uploading, "ArtifactFolder", StutteringFolder)


def later():
    return MlflowException("try again", TEMPORARILY_UNAVAILABLE)


def never():
    return MlflowException("you may not", PERMISSION_DENIED)


@pytest.fixture
def run_id(store, experiment_id):
    return store.create_run(experiment_id, tags=build_lease_tags()).info.run_id


def list_files(store, run_id):
    return sorted(file.path for file in store.list_artifacts(run_id))


@pytest.fixture
def hurried(monkeypatch):
    """Retry an unreachable store at once."""
    monkeypatch.setattr(uploading, "_PAUSE_SECONDS", 0.01)


@pytest.fixture
def folder(store, run_id):
    run_folder = RunFolder.create(list_candidate_folders(run_id)[0], run_id, store.tracking_uri)
    yield run_folder
    run_folder.close()


def start_uploader(client, run_id):
    uploader = Uploader(client, run_id)
    uploader.start()
    return uploader


def put(uploader, folder, *names):
    for name in names:
        uploader.enqueue(folder.append(f"{name}.txt", name.encode()))


def contents(folder):
    return {entry.name: entry.file.read_bytes() for entry in folder.list_entries()}


@pytest.mark.usefixtures("hurried")
def test_failed_uploads_are_retried_in_order(store, run_id, folder):
    client = Stutters(store.tracking_uri, a=[later(), later()])
    uploader = start_uploader(client, run_id)
    put(uploader, folder, "a", "b")
    uploader.enqueue(folder.append_metrics([Metric("m", 0.5, 1_000, 3)]))
    uploader.finish(LONG)
    assert client.requests == ["a", "a", "a", "b"]
    assert uploader.list_unsent() == []
    assert not uploader.is_failing
    assert uploader.build_unsent_error() is None
    assert folder.list_entries() == []
    assert list_files(store, run_id) == ["a.txt", "b.txt"]
    assert mlflow.artifacts.load_text(f"{store.get_run(run_id).info.artifact_uri}/a.txt") == "a"
    (point,) = store.get_metric_history(run_id, "m")
    assert (point.value, point.timestamp, point.step) == (0.5, 1_000, 3)


def test_an_upload_may_be_repeated(store, run_id, folder):
    entries = [
        folder.append("a.txt", b"a"),
        folder.append_metrics([Metric("m", 0.5, 1_000, 3)]),
        folder.append_json(TAGS_JSON, {names.ROWS_TAG: "partial"}),
    ]

    def state():
        run = store.get_run(run_id)
        history = [point.to_proto() for point in store.get_metric_history(run_id, "m")]
        return run.info.status, run.data.params, run.data.tags, history, list_files(store, run_id)

    states = []
    for _ in range(2):
        for entry in entries:
            Uploader(store, run_id).upload(entry)
        store_outcome(store, run_id, Outcome("FAILED", "because", diverged=True))
        states.append(state())
    assert states[0] == states[1]
    status, _, tags, history, files = states[0]
    assert (status, len(history), files) == ("FAILED", 1, ["a.txt"])
    assert (tags[names.ERROR_TAG], tags[names.DIVERGED_TAG]) == ("because", "true")


@pytest.mark.usefixtures("hurried")
def test_rejected_uploads_are_tried_once_more_at_the_end(store, run_id, folder):
    """A permission may have been granted. Other uploads are not delayed."""
    client = Stutters(store.tracking_uri, a=[never()])
    uploader = start_uploader(client, run_id)
    put(uploader, folder, "a", "b")
    assert wait(lambda: [entry.name for entry in uploader.list_unsent()] == ["a.txt"])
    assert list_files(store, run_id) == ["b.txt"]
    uploader.finish(LONG)
    assert client.requests == ["a", "b", "a"]
    assert list_files(store, run_id) == ["a.txt", "b.txt"]
    assert uploader.list_unsent() == []
    assert folder.list_entries() == []


@pytest.mark.usefixtures("hurried")
def test_rejected_files_remain_in_the_folder(store, run_id, folder):
    errors = {"a": [never(), never()], "b": [later() for _ in range(10_000)]}
    uploader = start_uploader(Stutters(store.tracking_uri, **errors), run_id)
    put(uploader, folder, "a", "b")
    assert wait(lambda: "try again" in str(uploader.problem))
    uploader.finish(0.3)
    assert sorted(entry.name for entry in uploader.list_unsent()) == ["a.txt", "b.txt"]
    error = uploader.build_unsent_error()
    assert error is not None
    assert f"clear-mlflow sync {folder.folder}" in str(error)
    assert contents(folder) == {"a.txt": b"a", "b.txt": b"b"}


def test_a_warning_names_both_folders_with_unsent_files(store, run_id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uploader = Uploader(store, run_id)
    for name, path in zip("ab", list_candidate_folders(run_id), strict=True):
        folder = RunFolder.create(path, run_id, store.tracking_uri)
        put(uploader, folder, name)
        folder.close()
    message = str(uploader.build_unsent_error())
    folders = find_run_folders(run_id)
    assert len(folders) == 2
    assert all(f"'clear-mlflow sync {path}'" in message for path in folders)


def test_waiting_for_a_file_ends_when_it_is_stored(store, run_id, folder):
    uploader = start_uploader(
        Stutters(store.tracking_uri, b=[later() for _ in range(10_000)]), run_id
    )
    put(uploader, folder, "a")
    uploader.wait_until_stored(LONG)
    assert not uploader.is_failing
    assert list_files(store, run_id) == ["a.txt"]
    put(uploader, folder, "b")
    uploader.wait_until_stored(LONG)
    assert "try again" in str(uploader.problem)
    assert uploader.is_failing
    uploader.finish(0.1)
    assert contents(folder) == {"b.txt": b"b"}


def wait(condition):
    until = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > until:
            return False
        threading.Event().wait(0.01)
    return True


@pytest.mark.parametrize(
    ("final", "statuses"),
    [(True, (400, 401, 403, 404, 413, 499)), (False, (399, 408, 425, 429, 500, 502, 503))],
)
def test_which_http_errors_are_permanent(final, statuses):
    error = TrackingError("not stored")
    for status in statuses:
        response = requests.Response()
        response.status_code = status
        error.__cause__ = requests.HTTPError(response=response)
        assert is_permanent_error(error) is final, status
    error.__cause__ = requests.ConnectionError()
    assert not is_permanent_error(error)


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 60), (" ", 60), ("0", 0), ("2.5 ", 2.5), ("86400", 86400)]
)
def test_how_long_finish_waits(monkeypatch, text, seconds):
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", text)
    assert read_exit_wait() == seconds
    for wrong in ("soon", "-1", "86401", "nan"):
        monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", wrong)
        with pytest.raises(TrackingError, match="expected seconds, 0 to 86400"):
            read_exit_wait()
