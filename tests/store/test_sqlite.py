"""The first call to a new store, whose database MLflow creates, by real processes."""

import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.store import sqlite
from clear_mlflow.store.client import connect_store

SCRIPT = Path(__file__).parents[1] / "support" / "first_opening.py"


def count_failures(folder, situation, *numbers):
    command = [sys.executable, SCRIPT, situation, folder, *map(str, numbers)]
    output = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout
    # Only the database is left.
    for number in numbers:
        assert [path.name for path in (folder / str(number)).iterdir()] == ["mlflow.db"]
    return list(map(int, output.split()))


@pytest.mark.program
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("processes", [3, 16])
def test_many_processes_can_open_a_new_store_at_the_same_time(tmp_path, processes):
    """Without our lock, all but one fail, since each creates the same tables."""
    assert count_failures(tmp_path, "together", processes) == [0]
    client = MlflowClient(f"sqlite:///{tmp_path}/{processes}/mlflow.db")
    assert [experiment.name for experiment in client.search_experiments()] == ["Default"]


@pytest.mark.program
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("statements", [120, 240])
def test_a_process_killed_while_it_sets_up_a_store_stops_no_other(tmp_path, statements):
    """Without our rename, a kill after 120 or 240 statements leaves an unusable database."""
    assert count_failures(tmp_path, "killed", statements) == [0]


@pytest.mark.slow
def test_a_program_without_our_lock_can_set_up_the_store(tmp_path):
    """Such as ``mlflow ui`` next to a training in the same new folder."""
    assert count_failures(tmp_path, "beside", 1) == [0]


def test_a_file_other_than_a_database_is_an_error(tmp_path, store, monkeypatch):
    """After a wait for a program that may be writing it. The file is not changed."""
    monkeypatch.setattr(sqlite, "_ABANDONED_SECONDS", 0.5)
    file = tmp_path / "other.db"
    file.write_text("not a database")
    mlflow.set_tracking_uri(f"sqlite:///{file}")
    with pytest.raises(TrackingError, match="not a database"):
        connect_store()
    assert file.read_text() == "not a database"


def test_a_store_is_read_if_its_lock_file_cannot_be_created(tmp_path, store):
    (tmp_path / "mlflow.db.lock").mkdir()
    assert connect_store().search_experiments()
