"""Settings of MLflow's client."""

import pytest
from mlflow.environment_variables import (
    MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR,
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
)
from offline_folders import create_offline_folder

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
