"""Importing, sending and downloading from Python, as the commands do."""

import hashlib
from dataclasses import replace

import mlflow
import pytest
from file_server import Hub, serving
from one_line_errors import check_error
from released_layout import write_released, zip_folder

import clear_mlflow
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data import download as downloads


def test_a_file_is_imported_once(store, experiment_id, tmp_path):
    (tmp_path / "good.csv").write_text("90\n80,70\n")
    (tmp_path / "bad.csv").write_text("90,x\n")
    paths = [tmp_path / "good.csv", str(tmp_path / "bad.csv")]
    for expected in ("imported", "there already"):
        good, bad = clear_mlflow.import_runs(paths, scale="percent", strategy="replay", seed=3)
        assert (good.action, bad.action) == (expected, "failed")
        assert (good.is_problem, bad.is_problem) == (False, True)
    run = clear_mlflow.load(good.run_id)
    assert run.matrix.values[1].tolist() == [0.8, 0.7]
    assert (run.tags["strategy"], run.tags["seed"]) == ("replay", "3")
    for seed in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(ConfigError, match="expected an integer of at most 64 bits"):
            clear_mlflow.import_runs(paths, scale="percent", seed=seed)
    with pytest.raises(TypeError, match="strateg"):
        clear_mlflow.import_runs(paths, strategie="replay")


@pytest.fixture
def folder(store, experiment_id, tmp_path, monkeypatch):
    """An offline folder with a run, as another process recorded it."""
    folder = tmp_path / "offline"
    monkeypatch.setenv("CLEAR_MLFLOW_OFFLINE", str(folder))
    with clear_mlflow.track(buckets=1, num_instances=10) as run:
        run.log_counts(1, [7])
    message = f"this process records in {folder}"
    check_error(ConfigError, message, clear_mlflow.sync, folder)
    check_error(ConfigError, message, clear_mlflow.import_runs, store=str(folder))
    monkeypatch.delenv("CLEAR_MLFLOW_OFFLINE")
    mlflow.set_tracking_uri(store.tracking_uri)
    return folder


def test_runs_of_another_store_are_copied(folder):
    (copied,) = clear_mlflow.import_runs(store=str(folder), experiment="copies")
    assert clear_mlflow.load(copied.run_id).matrix.values.tolist() == [[0.7]]
    assert len(clear_mlflow.runs("copies")) == 1
    message = "scale is for files, and store copies runs"
    check_error(ConfigError, message, clear_mlflow.import_runs, store=str(folder), scale="percent")


def test_an_offline_folder_is_sent_once(folder):
    actions = [clear_mlflow.sync(folder, experiment="sent")[0].action for _ in range(2)]
    assert actions == ["copied", "there already"]
    (run,) = clear_mlflow.runs("sent")
    assert run.matrix.values.tolist() == [[0.7]]


def test_a_dataset_that_is_there_is_not_downloaded_again(tmp_path, monkeypatch):
    release = downloads.RELEASES["clear10"]
    tree = write_released(tmp_path / "tree", train_folder="train_image_only", size=(8, 8))
    files = {a.file: zip_folder(tree, a.folder) for a in release.archives}
    archives = tuple(
        replace(a, md5=hashlib.md5(files[a.file]).hexdigest()) for a in release.archives
    )
    small = replace(release, archives=archives)
    root = tmp_path / "clear10"
    with serving(Hub(files=files, repository=f"datasets/{release.repository}")) as hub:
        downloads.download(small, root, endpoint=hub.url)
    monkeypatch.setitem(downloads.RELEASES, "clear10", small)
    monkeypatch.setenv("CLEAR_MLFLOW_DATA", str(tmp_path))
    assert clear_mlflow.download("clear10", str(root)) == root
    assert clear_mlflow.download("clear10") == root
    message = "dataset is 'digits'; expected clear10 or clear100"
    check_error(ConfigError, message, clear_mlflow.download, "digits")
