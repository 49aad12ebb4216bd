"""Settings of MLflow's client."""

import mlflow
import pytest
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
    ],
)
def test_a_blank_variable_of_mlflow_is_named(store, monkeypatch, variable, message):
    """MLflow would store runs in a folder, or an experiment, that is called like the blanks."""
    uri = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv(variable, "  ")
    check_error(TrackingError, message, track)
    monkeypatch.setenv(variable, uri if variable == "MLFLOW_TRACKING_URI" else "x")
    track()


def test_an_invalid_wait_at_the_end_opens_no_run(store, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "soon")
    check_error(TrackingError, "CLEAR_MLFLOW_EXIT_WAIT is 'soon'; expected seconds", track)
    assert store.search_runs(["0"]) == []
