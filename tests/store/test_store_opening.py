"""The first call to a new store, by real processes: MLflow sets its database up in it."""

import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.store import sqlite
from clear_mlflow.store.client import preflight

SCRIPT = Path(__file__).parents[1] / "support" / "first_opening.py"


def failed(folder, what, *numbers):
    """How many processes fail, for each number; see the script."""
    command = [sys.executable, SCRIPT, what, folder, *map(str, numbers)]
    output = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout
    # Nothing but the database stays.
    for number in numbers:
        assert [path.name for path in (folder / str(number)).iterdir()] == ["mlflow.db"]
    return list(map(int, output.split()))


def test_all_that_open_a_new_store_at_the_same_moment_can(tmp_path):
    """Left to MLflow, all but one fail: each of them makes the same tables."""
    assert failed(tmp_path, "together", 2, 8, 16) == [0, 0, 0]
    for store in tmp_path.iterdir():
        client = MlflowClient(f"sqlite:///{store}/mlflow.db")
        assert [experiment.name for experiment in client.search_experiments()] == ["Default"]


def test_one_that_is_killed_while_it_sets_a_store_up_stops_nobody(tmp_path):
    """Left to MLflow, a kill after 120 or 240 statements leaves tables that stop all others."""
    assert failed(tmp_path, "killed", 120, 240) == [0, 0]


def test_a_program_that_takes_no_lock_is_waited_for(tmp_path):
    """As ``mlflow ui`` and a training in the same new folder: both live."""
    assert failed(tmp_path, "beside", 1) == [0]


def test_what_is_no_database_of_mlflow_is_refused(tmp_path, store, monkeypatch):
    """It is waited for as long as somebody may be at work on it, and left as it is."""
    monkeypatch.setattr(sqlite, "_ABANDONED_SECONDS", 0.5)
    file = tmp_path / "other.db"
    file.write_text("not a database")
    mlflow.set_tracking_uri(f"sqlite:///{file}")
    with pytest.raises(TrackingError, match="not a database"):
        preflight()
    assert file.read_text() == "not a database"


def test_a_folder_that_takes_no_lock_is_read(tmp_path, store):
    """The lock is a file; where none can be made, nothing can be set up either."""
    (tmp_path / "mlflow.db.lock").mkdir()
    assert preflight().search_experiments()
