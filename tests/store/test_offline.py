"""Runs recorded in a folder without a tracking store, and copied to one later."""

import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import mlflow
import pytest
from click.testing import CliRunner
from commands import run_command
from copying import check_equal, describe_run, track_loop
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from offline_folders import create_offline_folder, use_store
from ports import free_port
from stored_runs import histories, row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.core.disk import OFFLINE_VARIABLE
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store
from clear_mlflow.store.offline import format_offline_uri, locate_artifacts
from clear_mlflow.store.rows import read_rows
from clear_mlflow.store.sqlite import get_sqlite_path
from clear_mlflow.tracking.run_sources import open_sources

FAST = ("--strategy", "ncm", "--features", "pixels")


@pytest.fixture
def folder(store, own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(OFFLINE_VARIABLE, "")  # restored after the test
    use_store(monkeypatch, f"http://127.0.0.1:{free_port()}")
    return tmp_path / "offline_runs"


def sync(monkeypatch, store, *arguments):
    use_store(monkeypatch, store.tracking_uri)
    return run_command("sync", *arguments)


def list_copies(store):
    return store.search_runs([e.experiment_id for e in store.search_experiments()])


@pytest.mark.slow
def test_a_custom_loop_is_recorded_offline_and_synced_once(store, folder, monkeypatch):
    run_id = track_loop(offline=True)
    assert clear_mlflow.load(run_id).status == "FINISHED"
    assert f"run {run_id}: copied" in sync(monkeypatch, store)
    (copy,) = list_copies(store)
    check_equal(
        MlflowClient(format_offline_uri(folder)), run_id, store.tracking_uri, copy.info.run_id
    )
    assert f"there already, as run {copy.info.run_id}" in sync(monkeypatch, store, folder)
    assert len(list_copies(store)) == 1


@pytest.mark.slow
def test_a_folder_is_moved_continued_and_synced_again(store, folder, tmp_path, monkeypatch):
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


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(3, 3), (2, 3), (3, 2)])
def test_two_continued_copies_double_nothing(store, folder, tmp_path, monkeypatch, rows):
    run_id = track_loop(1, offline=folder)
    folders = folder, shutil.copytree(folder, tmp_path / "twin")
    for path, num_rows in zip(folders, rows, strict=True):
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)  # MLflow removes it
        track_loop(num_rows, offline=path)
    printed = [sync(monkeypatch, store, path) for path in folders * 2]
    assert [("updated" in line, "there already" in line) for line in printed] == [
        (False, False),
        (rows[1] > rows[0], rows[1] <= rows[0]),
        *[(False, True)] * 2,
    ]
    (copy,) = list_copies(store)
    assert (copy.info.status, len(read_rows(store, copy))) == ("FINISHED", 4)
    points = [
        (name, step)
        for name, values in histories(store, copy.info.run_id).items()
        for step, _, _ in values
    ]
    assert len(set(points)) == len(points)
    longest = MlflowClient(format_offline_uri(folders[rows[1] > rows[0]]))
    assert set(points) == {
        (name, step) for name, values in histories(longest, run_id).items() for step, _, _ in values
    }


def test_a_point_of_two_continued_copies_is_stored_once(store, tmp_path, monkeypatch):
    """Both logged it after the folder was copied, at different times. Other points are sent."""
    monkeypatch.setenv(OFFLINE_VARIABLE, "")  # restored after the test
    folders = tmp_path / "one", tmp_path / "two"
    client, experiment_id = create_offline_folder(folders[0])
    run_id = stored_run(client, experiment_id, FOUR_BUCKETS[:3]).info.run_id
    shutil.copytree(*folders)
    copied = MlflowClient(format_offline_uri(folders[1]))
    (rows_folder(copied.get_run(run_id)) / "row_003.json").write_text(row_texts()["row_003.json"])
    client.log_batch(run_id, [Metric("loss", 0.5, 1_000, 1)])
    copied.log_batch(run_id, [Metric("loss", 0.5, 2_000, 1), Metric("loss", 0.25, 3_000, 2)])
    for folder, action in zip(folders, ("copied", "updated"), strict=True):
        assert f"run {run_id}: {action}" in sync(monkeypatch, store, folder)
    (copy,) = list_copies(store)
    points = store.get_metric_history(copy.info.run_id, "loss")
    assert [(p.step, p.value, p.timestamp) for p in points] == [(1, 0.5, 1_000), (2, 0.25, 3_000)]


@pytest.mark.parametrize("years", [-1, 1])
def test_a_folder_whose_clock_is_a_year_off_is_continued_and_synced(
    store, folder, monkeypatch, years
):
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + years * 365 * 86400)
    run_id = track_loop(1, offline=folder)
    monkeypatch.setattr(time, "time", clock)
    assert "copied" in sync(monkeypatch, store, folder)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    track_loop(offline=folder)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    assert "updated" in sync(monkeypatch, store, folder)
    assert "there already" in sync(monkeypatch, store, folder)
    (copy,) = list_copies(store)
    source = MlflowClient(format_offline_uri(folder))
    check_equal(source, run_id, store.tracking_uri, copy.info.run_id)
    copied = histories(store, copy.info.run_id)
    assert {name: values[-1][2] for name, values in copied.items()} == copy.data.metrics
    times = [run.info.start_time for run in (source.get_run(run_id), copy)]
    assert times[0] == times[1] != pytest.approx(clock() * 1000, abs=86_400_000)


def test_values_that_were_logged_to_one_step_are_all_sent(store, folder, monkeypatch):
    """A metric without steps is a series of values at step 0, and grows between two syncs."""
    run_id = track_loop(1, offline=folder)
    client = MlflowClient(format_offline_uri(folder))
    client.log_batch(run_id, [Metric("own", value, 5, 0) for value in (1.0, 2.0)])
    copied = sync(monkeypatch, store, folder)
    later = (3.0, 4), (7.0, 6), (math.nan, 5)
    client.log_batch(run_id, [Metric("own", value, time, 0) for value, time in later])
    updated = sync(monkeypatch, store, folder)
    (copy,) = list_copies(store)
    assert f"copied, as run {copy.info.run_id}" in copied
    assert f"updated, as run {copy.info.run_id}" in updated
    sent, logged = (
        sorted(map(repr, histories(of_client, of_run)["own"]))
        for of_client, of_run in ((store, copy.info.run_id), (client, run_id))
    )
    assert sent == logged
    assert len(sent) == 5


@pytest.mark.slow
def test_an_interrupted_training_is_resumed_by_its_folder(store, folder, tmp_path, monkeypatch):
    command = ["clear-mlflow", "train", "--features", "pixels", "--epochs", "100", "--offline"]
    environment = {**os.environ, "CLEAR_MLFLOW_CACHE": str(tmp_path / "cache")}
    environment.pop(OFFLINE_VARIABLE)
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as process:
        while not list(folder.rglob("training_state/after_002.json")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    (interrupted,) = open_sources(str(folder))
    folders = folder, shutil.copytree(folder, tmp_path / "twin")
    for path in folders:
        resumed = CliRunner().invoke(main, ["train", "--resume", str(path)])
        assert resumed.exit_code == 0, resumed.output
        (source,) = open_sources(str(path))
        assert (source.run.info.status, len(source.read_rows())) == ("FINISHED", 11)
        new_params = source.run.data.params.keys() - interrupted.run.data.params.keys()
        assert new_params == {"resumed/1"}  # nobody passed any
    sync(monkeypatch, store, folder)
    (copy,) = list_copies(store)
    before = describe_run(store, copy.info.run_id)
    for _ in range(2):
        refused = CliRunner().invoke(main, ["sync", str(folders[1])])
        assert refused.exit_code == 2
        assert re.fullmatch(
            r"run \w{32}: failed; parameter 'resumed/1' is .* another copy of the source was .*\n",
            refused.stderr,
        )
        assert describe_run(store, copy.info.run_id) == before


@pytest.mark.slow
def test_an_ensemble_is_recorded_offline_and_synced(store, folder, monkeypatch):
    options = {"strategy": "ncm", "features": "pixels", "predictions": "none"}
    ensemble = clear_mlflow.train_ensemble(seeds=[0, 1], offline=True, **options)
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


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_an_error_that_names_the_option(folder):
    with pytest.raises(TrackingError, match="pass offline=True to train"):
        connect_store()
    refused = CliRunner().invoke(main, ["train", *FAST])
    assert refused.exit_code == 2
    assert "pass --offline to train" in refused.stderr
    assert not folder.exists()


def test_an_active_run_of_another_store_is_not_joined(store, folder, monkeypatch):
    use_store(monkeypatch, store.tracking_uri)
    with mlflow.start_run(), pytest.raises(TrackingError, match="an MLflow run of another store"):
        track_loop(offline=True)


def test_a_workspace_without_the_default_experiment_needs_a_name(store, folder, monkeypatch):
    """MLflow creates Default only in the default workspace."""
    track_loop(1, offline=folder)
    with closing(sqlite3.connect(get_sqlite_path(store.tracking_uri))) as database, database:
        database.execute("DELETE FROM experiments WHERE experiment_id = 0")
    use_store(monkeypatch, store.tracking_uri)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    refused = CliRunner().invoke(main, ["sync", str(folder)])
    assert refused.exit_code == 2
    assert "lacks the experiment Default, like each" in refused.stderr
    assert "pass --experiment NAME" in refused.stderr
    run_command("sync", folder, "--experiment", "own")


def test_ids_in_a_database_are_never_followed_as_paths(store, experiment_id, tmp_path):
    run = store.get_run(store.create_run(experiment_id).info.run_id)
    run.info._run_id = "../../../outside"
    with pytest.raises(TrackingError, match="contains a run with the id"):
        locate_artifacts(tmp_path, run)


def test_the_pages_of_an_offline_folder_need_a_sync(folder, monkeypatch):
    """MLflow would start a server that can show nothing."""
    track_loop(1, offline=folder)
    opened = CliRunner().invoke(main, ["open"], env={OFFLINE_VARIABLE: str(folder)})
    assert opened.exit_code == 2
    assert f"clear-mlflow sync {folder}" in opened.stderr
