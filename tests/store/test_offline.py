"""Runs recorded in a folder without a tracking store, and copied to one later."""

import os
import shutil
import signal
import subprocess

import mlflow
import pytest
from click.testing import CliRunner
from copying import check_equal, track_loop
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from offline_folders import use_store
from ports import free_port

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.core.disk import OFFLINE_VARIABLE
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.store import names
from clear_mlflow.store.client import preflight
from clear_mlflow.store.offline import format_offline_uri, locate_artifacts
from clear_mlflow.tracking.copy_runs import open_sources

FAST = ("--strategy", "ncm", "--features", "pixels")


@pytest.fixture
def folder(store, own_cache, tmp_path, monkeypatch):
    """The path of an offline folder; the configured store does not answer."""
    monkeypatch.chdir(tmp_path)
    for name in (OFFLINE_VARIABLE, "_MLFLOW_SERVER_ARTIFACT_ROOT"):  # restored after the test
        monkeypatch.setenv(name, "")
    use_store(monkeypatch, f"http://127.0.0.1:{free_port()}")
    return tmp_path / "offline_runs"


def sync(monkeypatch, store, *arguments):
    """Copy to the store in the environment. Return the lines that are printed."""
    use_store(monkeypatch, store.tracking_uri)
    result = CliRunner().invoke(main, ["sync", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def list_copies(store):
    return store.search_runs([e.experiment_id for e in store.search_experiments()])


def test_a_custom_loop_is_recorded_offline_and_synced_once(store, folder, monkeypatch):
    """The store of the environment is not contacted, and the copy equals the recorded run."""
    run_id = track_loop(offline=True)
    assert clear_mlflow.load(run_id).status == "FINISHED"
    assert f"run {run_id}: copied" in sync(monkeypatch, store)
    (copy,) = list_copies(store)
    check_equal(
        MlflowClient(format_offline_uri(folder)), run_id, store.tracking_uri, copy.info.run_id
    )
    assert f"there already, as run {copy.info.run_id}" in sync(monkeypatch, store, folder)
    assert len(list_copies(store)) == 1


def test_a_folder_is_moved_continued_and_synced_again(store, folder, tmp_path, monkeypatch):
    """The new folder's files are read. An older folder does not undo an update."""
    run_id = track_loop(1, offline=folder)
    moved, older = tmp_path / "other" / "runs 100%", tmp_path / "older"
    shutil.copytree(folder, older)
    folder.parent.joinpath("other").mkdir()
    folder.rename(moved)
    sync(monkeypatch, store, moved, "--experiment", "moved")
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    track_loop(offline=moved)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    assert f"run {run_id}: updated" in sync(monkeypatch, store, moved, "--experiment", "moved")
    assert "there already" in sync(monkeypatch, store, older, "--experiment", "moved")
    (copy,) = list_copies(store)
    assert store.get_experiment(copy.info.experiment_id).name == "moved"
    check_equal(
        MlflowClient(format_offline_uri(moved)), run_id, store.tracking_uri, copy.info.run_id
    )


def test_an_interrupted_training_is_resumed_by_its_folder(store, folder, tmp_path):
    """The process is killed after its first rows; ``--resume FOLDER`` trains the rest."""
    command = ["clear-mlflow", "train", "--features", "pixels", "--epochs", "100", "--offline"]
    environment = {**os.environ, "CLEAR_MLFLOW_CACHE": str(tmp_path / "cache")}
    environment.pop(OFFLINE_VARIABLE)
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as process:
        while not list(folder.rglob("training_state/after_002.json")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    resumed = CliRunner().invoke(main, ["train", "--resume", str(folder)])
    assert resumed.exit_code == 0, resumed.output
    (source,) = open_sources(str(folder))
    assert (source.run.info.status, len(source.read_rows())) == ("FINISHED", 11)


def test_an_ensemble_is_recorded_offline_and_synced(store, folder, monkeypatch):
    """Copies of members are children of the copy of the ensemble, which has the means."""
    options = {"strategy": "ncm", "features": "pixels", "predictions": "none"}
    ensemble = clear_mlflow.train_ensemble(seeds="0,1", offline=True, **options)
    sync(monkeypatch, store)
    parents, members = [], []
    for run in list_copies(store):
        (parents if run.data.tags[names.KIND_TAG] == names.KIND_ENSEMBLE else members).append(run)
    (parent,) = parents
    assert {run.data.tags[MLFLOW_PARENT_RUN_ID] for run in members} == {parent.info.run_id}
    copied_from = {run.data.tags[names.COPIED_FROM_TAG] for run in members}
    assert copied_from == {run.run_id for run in ensemble.values()}
    name = "clear/in_domain_accuracy"
    mean = sum(run.data.metrics[name] for run in members) / 2
    assert parent.data.metrics[f"mean/{name}"] == pytest.approx(mean)


def test_a_server_that_does_not_answer_is_an_error_that_names_the_option(folder):
    with pytest.raises(TrackingError, match="pass offline=True to train"):
        preflight()
    refused = CliRunner().invoke(main, ["train", *FAST])
    assert refused.exit_code == 2
    assert "pass --offline to train" in refused.stderr
    assert not folder.exists()


def test_an_active_run_of_another_store_is_not_joined(store, folder, monkeypatch):
    use_store(monkeypatch, store.tracking_uri)
    with mlflow.start_run(), pytest.raises(TrackingError, match="an MLflow run of another store"):
        track_loop(offline=True)


def test_the_database_of_another_store_is_not_used(folder, store, tmp_path):
    with pytest.raises(TrackingError, match="of another store; name a new folder"):
        track_loop(offline=tmp_path)


def test_ids_in_a_database_are_never_followed_as_paths(store, experiment_id, tmp_path):
    run = store.get_run(store.create_run(experiment_id).info.run_id)
    run.info._run_id = "../../../outside"
    with pytest.raises(TrackingError, match="contains a run with the id"):
        locate_artifacts(tmp_path, run)
