"""A training in this process: what it stores in MLflow."""

import json
import platform
import re
import subprocess
from dataclasses import replace
from importlib.metadata import version

import mlflow
import pytest
from stored_runs import load_rows, only_run, stored_run
from trainings import EXPECTED, FOUR_BUCKETS, NUM_TEST, KnownTraining

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.metrics import summarize
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.lease import build_lease_tags
from clear_mlflow.tracking.run_recorder import RunRecorder
from clear_mlflow.tracking.tracked_training import train_in_process

ASKED = {"seed": "7", "epochs": "auto"}


def history(store, run_id, name):
    return {m.step: m.value for m in store.get_metric_history(run_id, name)}


def text_artifact(store, run, path):
    return mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{path}")


@pytest.fixture
def finished(store, experiment_id, fill_once):
    fill_once(store, lambda: train_in_process(store, KnownTraining(FOUR_BUCKETS), ASKED))
    return only_run(store, experiment_id)


def test_rows_are_artifacts(store, finished):
    for i, correct in enumerate(FOUR_BUCKETS):
        row = json.loads(text_artifact(store, finished, f"accuracy_matrix/rows/row_{i:03}.json"))
        expected = {"row": i, "correct": correct, "num_instances": [NUM_TEST] * 4, "seed": 7}
        assert (expected | {"trained_through": str(i) if i else None}).items() <= row.items()


def test_reports_are_artifacts(store, finished):
    matrix = json.loads(text_artifact(store, finished, names.MATRIX_JSON))
    assert matrix["values"][3] == [0.70, 0.81, 0.90, 0.95]
    assert "0.95" in text_artifact(store, finished, names.MATRIX_CSV)
    assert json.loads(text_artifact(store, finished, names.CONFIG_JSON))["seed"] == "7"
    listed = [f.path for f in store.list_artifacts(finished.info.run_id, "accuracy_matrix")]
    assert names.HEATMAP_PNG in listed
    images = [f.path for f in store.list_artifacts(finished.info.run_id, "images")]
    assert sum(path.endswith(".png") for path in images) == 1


def test_while_a_run_trains_its_newest_row_is_drawn(store, experiment_id, monkeypatch):
    writers = []
    opened = RunRecorder.open

    def note(self, *arguments):
        writers.append(self)
        opened(self, *arguments)

    class BeatenAfter(KnownTraining):
        def rows(self, *args):
            for measured in super().rows(*args):
                yield measured
                for _ in range({0: 1, 2: 2}.get(measured.row.row, 0)):
                    writers[0]._renew_leases_and_plot()

    monkeypatch.setattr(RunRecorder, "open", note)
    train_in_process(store, BeatenAfter(FOUR_BUCKETS), ASKED)
    run_id = only_run(store, experiment_id).info.run_id
    files = [re.split("[+%]", file.path) for file in store.list_artifacts(run_id, "images")]
    pictures = sorted((key, step) for key, _, step, *_, last in files if last.endswith(".png"))
    by_row = f"images/{names.IMAGE_PER_ROW}"
    assert pictures == [(f"images/{names.IMAGE_FINAL}", "0"), (by_row, "0"), (by_row, "2")]


def test_a_run_survives_an_unreachable_artifact_store(store, experiment_id):
    """The lease needs only the tracking store."""
    run = store.create_run(experiment_id, tags=build_lease_tags())
    recorder = RunRecorder(store, run.info.run_id, ())
    recorder.uploader.problem = TrackingError("the bucket is not there")
    before = run.data.tags[names.PROCESS_TAG]
    store.set_tag(run.info.run_id, names.PROCESS_TAG, before.replace("renewed_at", "before"))
    recorder._renew_leases_and_plot()
    assert "renewed_at" in store.get_run(run.info.run_id).data.tags[names.PROCESS_TAG]


def test_tags_params_and_dataset(finished):
    tags, params = finished.data.tags, finished.data.params
    expected = {"strategy": "naive", "dataset": "digits", "protocol": "iid", "seed": "7"}
    expected |= {"model": "small_cnn", names.ROWS_TAG: "complete"}
    assert expected.items() <= tags.items()
    used = tags[names.SOFTWARE_TAG].split(", ")  # and what other tests have loaded
    assert used[0] == f"Python {platform.python_version()}"
    needed = ("mlflow", "numpy", "torch", "torchvision")
    assert {f"{name} {version(name)}" for name in needed} <= set(used)
    assert int(params["epochs"]) >= 1
    assert params["seed"] == "7"
    assert {"used/epochs", "asked/epochs", "asked/seed", "memory", "asked/memory"}.isdisjoint(
        params
    )
    (entry,) = finished.inputs.dataset_inputs
    assert entry.dataset.name == "digits"
    assert entry.dataset.digest.startswith(("ab" * 32)[:27])
    assert "| " in tags["mlflow.note.content"]


@pytest.mark.slow
def test_the_logged_commit_is_the_users(store, experiment_id, tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").touch()
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.chdir(tmp_path)
    for changed in ("", "-dirty"):
        (tmp_path / "file").write_text(changed)
        train_in_process(store, KnownTraining(FOUR_BUCKETS), ASKED)
        tags = store.search_runs([experiment_id], max_results=1)[0].data.tags
        assert tags["git_commit"] == head.stdout.strip() + changed
        assert tags.get(names.COMMIT_TAG) != tags["git_commit"]


class StreamingTraining(KnownTraining):
    """The known rows, as if each bucket were tested on its training images."""

    @property
    def config(self):
        return TrainConfig.resolve({"protocol": "streaming"})

    @property
    def dataset(self):
        return replace(super().dataset, protocol="streaming", division="none")


def test_streaming_is_recorded_and_masks_trained_buckets(store, experiment_id):
    train_in_process(store, StreamingTraining(FOUR_BUCKETS), {"protocol": "streaming"})
    run = only_run(store, experiment_id)
    logged = {name for name in run.data.metrics if "bucket" not in name}
    assert logged == set(summarize(EXPECTED, "streaming"))
    assert "clear/next_domain_accuracy" in logged
    assert "clear/in_domain_accuracy" not in logged
    assert run.data.tags["protocol"] == "streaming"
    profile = json.loads(run.inputs.dataset_inputs[0].dataset.profile)
    assert (profile["protocol"], profile["split"]) == ("streaming", "none")
    assert {row.dataset.protocol for row in load_rows(run).values()} == {"streaming"}
    for j in range(4):  # a bucket has no accuracy after it was trained on
        steps = history(store, run.info.run_id, f"test_accuracy/bucket_0{j + 1}")
        assert sorted(steps) == list(range(j + 1))


def test_headline_metrics_come_first(store, experiment_id):
    """MLflow's page lists metrics in the order of the database, here of rows that scoring logs."""
    imported = stored_run(store, experiment_id)
    score(store, imported.info.run_id)
    of_buckets = list(map(names.is_bucket_series, store.get_run(imported.info.run_id).data.metrics))
    assert of_buckets == sorted(of_buckets)
    assert sum(of_buckets) == 4


@pytest.mark.slow
def test_active_run_is_joined_and_left_open(store, capfd):
    tags = {"model": "mine", "seed": "7", names.ERROR_TAG: "of an earlier try"}
    with mlflow.start_run(run_name="mine", description="my own words", tags=tags) as active:
        mlflow.log_param("epochs", "12 of mine")
        train_in_process(store, KnownTraining(FOUR_BUCKETS), ASKED)
        assert mlflow.active_run().info.run_id == active.info.run_id
        mlflow.log_metric("after", 1.0)
    run = store.get_run(active.info.run_id)
    assert run.info.run_name == "mine"
    assert run.data.params["epochs"] == "12 of mine"
    assert int(run.data.params["used/epochs"]) >= 1
    tags = run.data.tags
    assert (tags["mlflow.note.content"], tags["model"], tags["strategy"]) == (
        "my own words",
        "small_cnn",
        "naive",
    )
    (warning,) = [line for line in capfd.readouterr().err.splitlines() if "has the tag" in line]
    assert "has the tag model='mine' already, and got 'small_cnn'; the first one is rep" in warning
    assert not {names.ERROR_TAG, names.PROCESS_TAG} & tags.keys()
    assert (
        run.data.metrics["clear/in_domain_accuracy"]
        == summarize(EXPECTED)["clear/in_domain_accuracy"]
    )


def test_a_training_that_failed_before_its_first_row_has_a_reason(
    store, experiment_id, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError):
        train_in_process(store, KnownTraining([[1, 2]], ends_with=RuntimeError("no")), ASKED)
    run = only_run(store, experiment_id)
    assert run.data.tags[names.ERROR_TAG] == "RuntimeError: no"
    assert run.info.status == "FAILED"
    assert run.data.tags["strategy"] == "naive"
    assert "git_commit" not in run.data.tags


def test_a_named_finished_run_is_left_unchanged(store, finished, monkeypatch):
    """A scheduler that repeats an old run id does not make it fail."""
    monkeypatch.setenv("MLFLOW_RUN_ID", finished.info.run_id)
    with pytest.raises(TrackingError, match="already contains 5 rows"):
        train_in_process(store, KnownTraining(FOUR_BUCKETS), ASKED)
    after = store.get_run(finished.info.run_id)
    assert after.info.status == "FINISHED"
    assert after.data.tags == finished.data.tags
