"""Settings of MLflow's client."""

import os
import traceback

import mlflow
import pytest
from commands import run_command
from mlflow.environment_variables import (
    MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR,
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
)
from offline_folders import create_offline_folder
from one_line_errors import check_error

import clear_mlflow
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.store.client import is_missing_store, open_store, set_up_mlflow
from clear_mlflow.store.offline import format_offline_uri

LIMITS = {
    MLFLOW_HTTP_REQUEST_MAX_RETRIES: 3,
    MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR: 1,
    MLFLOW_HTTP_REQUEST_TIMEOUT: 30,
}


@pytest.mark.parametrize("set_up", [set_up_mlflow, open_store])
@pytest.mark.parametrize("user_limits", [{}, {MLFLOW_HTTP_REQUEST_TIMEOUT: 5}])
def test_calls_to_a_dead_server_fail_within_seconds(monkeypatch, user_limits, set_up):
    """MLflow's own limits are minutes. Those of the user are kept."""
    for variable in LIMITS:
        monkeypatch.setenv(variable.name, "0")  # so that the variable is restored
        monkeypatch.delenv(variable.name)
    for variable, limit in user_limits.items():
        monkeypatch.setenv(variable.name, str(limit))
    set_up()
    assert {variable: variable.get() for variable in LIMITS} == {**LIMITS, **user_limits}


def test_a_store_that_was_never_opened_is_missing(tmp_path):
    create_offline_folder(tmp_path / "offline_runs")
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3")
    for name in ("mlflow.db", "other.db"):
        assert is_missing_store(f"sqlite:///{tmp_path / name}") == (name == "other.db")
    for name in ("offline_runs", "other_runs"):
        assert is_missing_store(format_offline_uri(tmp_path / name)) == (name == "other_runs")


def track():
    with clear_mlflow.track(buckets=2, num_instances=10):
        pass


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("MLFLOW_TRACKING_URI", "the tracking URI is blank; set MLFLOW_TRACKING_URI"),
        ("MLFLOW_EXPERIMENT_NAME", "the experiment's name is blank; pass experiment=NAME"),
        ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_ID is blank; set it to an id, or unset it"),
        ("MLFLOW_RUN_ID", "MLFLOW_RUN_ID is blank; set it to an id, or unset it"),
    ],
)
def test_a_blank_variable_of_mlflow_is_named(store, monkeypatch, variable, message):
    """MLflow would store runs in a folder, or an experiment, that is called like the blanks."""
    if variable == "MLFLOW_EXPERIMENT_ID":
        monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    uri = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv(variable, "  ")
    check_error(TrackingError, message, track)
    usable = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": "x"}
    monkeypatch.setenv(variable, usable.get(variable, ""))
    track()


def test_an_invalid_wait_at_the_end_opens_no_run(store, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "soon")
    check_error(TrackingError, "CLEAR_MLFLOW_EXIT_WAIT is 'soon'; expected seconds", track)
    assert store.search_runs(["0"]) == []


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:9", "to record the run in a folder until the"),
        ("MLFLOW_TRACKING_URI", "nope://store", "cannot read experiments in the tracking store"),
        ("MLFLOW_RUN_ID", "nope", "cannot read run nope (MLFLOW_RUN_ID) in the tracking store"),
        ("MLFLOW_RUN_ID", "1" * 32, "not found; unset MLFLOW_RUN_ID to open a new run"),
        ("MLFLOW_EXPERIMENT_ID", "77", "cannot read the experiment 77 in the tracking store"),
    ],
)
def test_a_script_ends_with_our_sentence_and_no_traceback_of_mlflow(
    store, monkeypatch, variable, value, message
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    if variable == "MLFLOW_TRACKING_URI":
        mlflow.set_tracking_uri(value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv(variable, value)
    with pytest.raises(TrackingError) as caught:
        track()
    printed = "".join(traceback.format_exception(caught.value))
    assert message in printed
    assert "site-packages" not in printed
    assert "MlflowException" not in printed


def test_a_relative_path_is_named_if_its_store_lacks_a_run(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{os.path.relpath(mlflow.get_tracking_uri()[10:])}")
    monkeypatch.setenv("MLFLOW_RUN_ID", "nope")
    message = f"is another file in each folder, here in {tmp_path}"
    check_error(TrackingError, message, track)


@pytest.mark.parametrize(
    ("run_id", "message"),
    [
        ("nope", "cannot read run nope: no such run in the tracking store sqlite:"),
        ("nope", "; pass the id of a run, or at least its first six digits"),
        ("1" * 32, f"cannot read run {'1' * 32}: no such run in the tracking store"),
        ("", "--resume is empty; expected the id of a run"),
        (" ", "--resume is empty; expected the id of a run"),
    ],
)
def test_a_run_that_is_not_there_is_not_resumed(store, run_id, message):
    output = run_command("train", "--resume", run_id, code=2)
    assert message in output
    assert output.count("\n") == 1


def test_a_missing_offline_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_OFFLINE", str(tmp_path / "gone"))
    before = mlflow.get_tracking_uri()
    try:
        output = run_command("train", "--resume", "1" * 32, code=2)
    finally:
        mlflow.set_tracking_uri(before)
    assert f"the offline folder {tmp_path / 'gone'} does not exist; set CLEAR_MLFLOW_OFF" in output
