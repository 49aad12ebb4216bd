"""Real MLflow stores for tests: a new SQLite store each, copied from one that was set up once."""

import shutil
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from clear_mlflow.store import lease
from clear_mlflow.store.sqlite import lock_store_opening

EXPERIMENT = "test"


@pytest.fixture(scope="session")
def empty_store(shared_folder):
    """A database with MLflow's tables and no runs. Setting one up takes seconds."""
    database = shared_folder / "empty.db"
    uri = f"sqlite:///{database}"
    with lock_store_opening(uri):
        MlflowClient(uri).search_experiments()
    return database


def copy_store(empty_store, folder):
    return f"sqlite:///{shutil.copy(empty_store, folder / 'mlflow.db')}"


@contextmanager
def tracking_uri(uri):
    """Use a store in a block, and end the runs that it leaves open."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    yield
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def store(empty_store, tmp_path, monkeypatch):
    """The client of a store for one test, which the environment names."""
    uri = copy_store(empty_store, tmp_path)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    # What mlflow.set_experiment chose, in whatever this process tested before, goes before these.
    monkeypatch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
    with tracking_uri(uri):
        client = MlflowClient(uri)
        client.create_experiment(EXPERIMENT, artifact_location=(tmp_path / "artifacts").as_uri())
        yield client


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder for one test, without other tests' run folders."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def experiment_id(store):
    return store.get_experiment_by_name(EXPERIMENT).experiment_id


@pytest.fixture(scope="module")
def fill_once(tmp_path_factory):
    """Return a function that fills the store of the first test of a module, and copies it later.

    It takes the test's client and a function, and returns the function's result.
    """
    copy = tmp_path_factory.mktemp("filled")
    results = []

    def fill_store(client, fill):
        database = Path(client.tracking_uri.removeprefix("sqlite:///"))
        if not results:
            artifacts = database.with_name("artifacts")  # where the copied database has them, too
            results.extend([artifacts, fill()])
            shutil.copytree(artifacts, copy / "artifacts")
            copy_database(database, copy / "mlflow.db")
        else:
            copy_database(copy / "mlflow.db", database)
            shutil.rmtree(results[0])
            shutil.copytree(copy / "artifacts", results[0])
            lease._first_seen.clear()  # runs have the ids that they had in other tests
        return results[1]

    return fill_store


def copy_database(source, target):
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)
