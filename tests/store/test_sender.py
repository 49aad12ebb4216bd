"""What was measured, sent from one thread: in order, asked for again, and never lost."""

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
from clear_mlflow.journal.journal import Journal, left_journals
from clear_mlflow.journal.sender import Sender, exit_patience, is_final, unsent_error
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.lease import lease_tags

LONG = 60  # seconds: a bound against hangs


class Stutters(MlflowClient):
    """A real store whose first answers to a file are these errors."""

    def __init__(self, uri, **errors):
        super().__init__(uri)
        self.errors = errors
        self.asked = []

    def answer(self, name):
        self.asked.append(name)
        if errors := self.errors.get(name, []):
            raise errors.pop(0)


@pytest.fixture(autouse=True)
def stuttering(monkeypatch):
    """Files on this machine's disks go past MLflow: what refuses them stands before the write."""

    def answered(client, run_id, content, artifact):
        if isinstance(client, Stutters):
            client.answer(Path(artifact).stem)
        log_durably(client, run_id, content, artifact)

    monkeypatch.setattr(sending, "log_durably", answered)


def later():
    return MlflowException("try again", TEMPORARILY_UNAVAILABLE)


def never():
    return MlflowException("you may not", PERMISSION_DENIED)


@pytest.fixture
def run_id(store, experiment_id):
    return store.create_run(experiment_id, tags=lease_tags()).info.run_id


def files_of(store, run_id):
    return sorted(file.path for file in store.list_artifacts(run_id))


@pytest.fixture
def hurried(monkeypatch):
    """A store that is away is asked again at once."""
    monkeypatch.setattr(sending, "_LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "_LAST_PAUSE_SECONDS", 0.01)


def opened(client, run_id):
    """A sender that keeps a run's journal, and sends."""
    sender = Sender(client)
    sender.open(run_id)
    sender.start()
    return sender


def put(sender, run_id, *names):
    for name in names:
        sender.send(sender.append(run_id, f"{name}.txt", name.encode()))


def left_of(run_id):
    """What lies in a run's journal when nobody holds it."""
    (folder,) = left_journals(run_id)
    journal = Journal.take(folder, run_id)
    found = {entry.artifact: entry.file.read_bytes() for entry in journal.entries()}
    journal.close()
    return found


@pytest.mark.usefixtures("hurried")
def test_what_cannot_be_stored_now_is_asked_for_again_in_order(store, run_id):
    """Nothing overtakes it, and the journal is gone when the store has all."""
    client = Stutters(store.tracking_uri, a=[later(), later()])
    sender = opened(client, run_id)
    put(sender, run_id, "a", "b")
    (points,) = sender.append_metrics(run_id, [Metric("m", 0.5, 1_000, 3)])
    sender.send(points)
    sender.finish(LONG)
    assert client.asked == ["a", "a", "a", "b"]
    assert sender.waiting() == {}
    assert not sender.is_away
    assert unsent_error(sender) is None
    sender.close()
    assert left_journals(run_id) == []
    assert files_of(store, run_id) == ["a.txt", "b.txt"]
    assert mlflow.artifacts.load_text(f"{store.get_run(run_id).info.artifact_uri}/a.txt") == "a"
    (point,) = store.get_metric_history(run_id, "m")
    assert (point.value, point.timestamp, point.step) == (0.5, 1_000, 3)


def test_points_that_do_not_all_fit_on_the_disk_are_not_kept_in_part(store, run_id, monkeypatch):
    """Whoever measured them keeps them, and would write those again that are there."""
    monkeypatch.setattr(sending, "MOST_METRICS", 1)
    answers = iter([Journal.append_metrics])
    sender = Sender(store)
    sender.open(run_id)

    def filling(journal, metrics):
        for append in answers:
            return append(journal, metrics)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "append_metrics", filling)
    points = [Metric("m", 0.5, 1_000, step) for step in (1, 2)]
    assert sender.append_metrics(run_id, points) is None
    sender.close()
    assert left_journals(run_id) == []


@pytest.mark.usefixtures("hurried")
def test_what_a_store_refuses_is_asked_for_once_more_at_the_end(store, run_id):
    """A permission may have come meanwhile; until then it holds nothing else up."""
    client = Stutters(store.tracking_uri, a=[never()])
    sender = opened(client, run_id)
    put(sender, run_id, "a", "b")
    assert wait(lambda: len(client.asked) == 2 and "b.txt" in files_of(store, run_id))
    assert files_of(store, run_id) == ["b.txt"]
    assert [entry.artifact for entry in sender.waiting()[run_id]][-1] == "a.txt"
    sender.finish(LONG)
    assert client.asked == ["a", "b", "a"]
    assert files_of(store, run_id) == ["a.txt", "b.txt"]
    assert sender.waiting() == {}
    sender.close()
    assert left_journals(run_id) == []


@pytest.mark.usefixtures("hurried")
def test_what_a_store_never_takes_stays_in_the_journal(store, run_id):
    """The end waits no longer than it was asked to, and says where it lies."""
    errors = {"a": [never(), never()], "b": [later() for _ in range(10_000)]}
    sender = opened(Stutters(store.tracking_uri, **errors), run_id)
    put(sender, run_id, "a", "b")
    assert wait(lambda: "try again" in str(sender.problem))
    sender.finish(0.3)
    assert sorted(entry.artifact for entry in sender.waiting()[run_id]) == ["a.txt", "b.txt"]
    error = unsent_error(sender)
    assert error is not None
    sender.close()
    (folder,) = left_journals(run_id)
    assert error.folders == {run_id: folder}
    assert f"clear-mlflow sync {folder}" in str(error)
    assert left_of(run_id) == {"a.txt": b"a", "b.txt": b"b"}


@pytest.mark.usefixtures("hurried")
def test_a_function_that_the_store_refuses_blocks_nothing(store, run_id, capsys):
    """The refusal is reported, and files that follow are stored."""

    def refused():
        with mlflow_errors("tag the run"):
            raise never()

    sender = opened(store, run_id)
    sender.send(refused)
    put(sender, run_id, "a")
    sender.finish(1)
    sender.close()
    assert files_of(store, run_id) == ["a.txt"]
    assert "you may not" in capsys.readouterr().err


def test_what_waits_on_two_disks_is_named_by_both(store, run_id, tmp_path, monkeypatch):
    """The first one was full: each place with the command that sends what is in it."""
    monkeypatch.chdir(tmp_path)
    sender = Sender(store)
    for name in ("a", "b"):
        sender.open(run_id)
        put(sender, run_id, name)
    message = str(unsent_error(sender))
    sender.close()
    places = left_journals(run_id)
    assert len(places) == 2
    assert all(f"'clear-mlflow sync {place}'" in message for place in places)


def test_who_keeps_a_file_knows_when_the_store_has_it(store, run_id):
    """None is the answer then; while it is away it is the reason, at once."""
    sender = opened(Stutters(store.tracking_uri, b=[later() for _ in range(10_000)]), run_id)
    put(sender, run_id, "a")
    sender.wait_delivered(LONG)
    assert not sender.is_away
    assert files_of(store, run_id) == ["a.txt"]
    put(sender, run_id, "b")
    sender.wait_delivered(LONG)
    assert "try again" in str(sender.problem)
    assert sender.is_away
    sender.finish(0.1)
    sender.close()
    assert left_of(run_id) == {"b.txt": b"b"}


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
    """A minute, unless the environment says else; what is no number of seconds is refused."""
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", text)
    assert exit_patience() == seconds
    for wrong in ("soon", "-1", "86401", "nan"):
        monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", wrong)
        with pytest.raises(TrackingError, match="expected seconds, 0 to 86400"):
            exit_patience()
