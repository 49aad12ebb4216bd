"""Nine real trainings in one store, made once for all tests and copied into that of a test."""

import contextlib
import fcntl
import shutil
import sqlite3
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow_stores import EXPERIMENT, copy_database

from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
from clear_mlflow.store import lease
from clear_mlflow.tracking.tracked_training import train_in_process

STRATEGIES, SEEDS = ("naive", "replay", "ncm"), (0, 1, 2)
KILLED = ("replay", 2)  # after its first bucket: it has two rows and a training state


class Stopping(TrainingProgress):
    """Ends a training, as Ctrl-C does, when its second bucket begins."""

    def bucket_started(self, key, *, bucket_index, num_buckets):
        if bucket_index == 1:
            raise KeyboardInterrupt


def _train_all(folder: Path) -> None:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    client.create_experiment(EXPERIMENT, artifact_location=(folder / "artifacts").as_uri())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
        patch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        patch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
        patch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
        mlflow.set_tracking_uri(client.tracking_uri)
        for strategy in STRATEGIES:
            for seed in SEEDS:
                parameters = {"strategy": strategy, "seed": str(seed), "features": "pixels"}
                parameters |= {"epochs": "1", "device": "cpu"}
                progress = Stopping() if (strategy, seed) == KILLED else TrainingProgress()
                training = prepare_training(
                    resolve_config(TrainConfig.resolve(parameters)), progress
                )
                with contextlib.suppress(KeyboardInterrupt):
                    train_in_process(client, training, parameters)


@pytest.fixture(scope="session")
def nine_runs(empty_store, shared_folder) -> Path:
    """The folder of the store that tests copy, with its database and its artifacts."""
    folder, unfinished = shared_folder / "nine_runs", shared_folder / "nine_runs.unfinished"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait
        if not folder.exists():
            before = mlflow.get_tracking_uri()
            unfinished.mkdir()
            shutil.copy(empty_store, unfinished / "mlflow.db")
            _train_all(unfinished)
            mlflow.set_tracking_uri(before)
            unfinished.rename(folder)
    return folder


@pytest.fixture
def trained_runs(nine_runs, store, tmp_path):
    """The runs in the test's store, by strategy and seed."""
    shutil.rmtree(tmp_path / "artifacts", ignore_errors=True)
    shutil.copytree(nine_runs / "artifacts", tmp_path / "artifacts")
    copy_database(nine_runs / "mlflow.db", tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        moved = (f"{nine_runs}.unfinished/", f"{tmp_path}/")
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", moved)
    lease._first_seen.clear()  # the runs have the ids that they had in other tests
    experiment = store.get_experiment_by_name(EXPERIMENT)
    runs = store.search_runs([experiment.experiment_id])
    return {(run.data.tags["strategy"], int(run.data.tags["seed"])): run for run in runs}
