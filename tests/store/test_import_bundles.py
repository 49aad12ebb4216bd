"""``clear-mlflow import`` of bundles is the inverse of ``export``: the same runs, once."""

import json
import math
import re
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from copying import describe_run, track_loop
from kept_predictions import kept_run
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from offline_folders import create_offline_folder
from stored_runs import artifact_folder, change, histories, rows_folder, stored_run
from trainings import FOUR_BUCKETS

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.report.exports import format_matrix_json
from clear_mlflow.scoring.run_log import read_scores
from clear_mlflow.store import names
from clear_mlflow.store.lease import build_lease_tags

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def my_store(empty_store, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    uri = f"sqlite:///{tmp_path}/mine/mlflow.db"
    Path(tmp_path / "mine" / "mlflow.db").write_bytes(empty_store.read_bytes())
    client = MlflowClient(uri)
    client.create_experiment("theirs", artifact_location=(tmp_path / "mine" / "files").as_uri())

    def switch():
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(uri)
        return client

    return switch


def import_bundles(*words):
    done = CliRunner().invoke(
        main, ["import", *map(str, words), "--experiment", "theirs", "--json"]
    )
    return json.loads(done.stdout)["files"], done.exit_code


def log_unusual_data(store, run_id):
    """Log texts, numbers and amounts at MLflow's limits."""
    params = {"text": "ä\n'\" \\ ☃", "long": "x" * 6000, **{f"p/{i}": str(i) for i in range(130)}}
    tags = {"empty": "", "text": "ä\n'\" ☃", **{f"t{i}": "x" * 100 for i in range(130)}}
    for start in (0, 100):
        store.log_batch(run_id, params=[Param(*p) for p in list(params.items())[start:][:100]])
        store.log_batch(run_id, tags=[RunTag(*t) for t in list(tags.items())[start:][:100]])
    values = [0.1 + 0.2, -0.0, 1.7e308, 5e-324, math.nan, 3.0]
    points = [Metric("own/odd", v, 1000 + i, 2 - i) for i, v in enumerate(values)]
    points += [Metric("own/twice", v, time, 4) for time, v in ((9, 1.0), (7, 2.0), (9, 3.0))]
    store.log_batch(run_id, metrics=points)
    for start in (0, 900):
        batch = [Metric("train/loss", 1 / (i + 1), i, i) for i in range(start, start + 900)]
        store.log_batch(run_id, metrics=batch)
    store.log_batch(run_id, metrics=[Metric(f"many/{i}", i / 7, 5, 0) for i in range(120)])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", ".tar.xz"])
def test_import_is_the_inverse_of_export(store, my_store, experiment_id, tmp_path, ending):
    incomplete = stored_run(store, experiment_id, FOUR_BUCKETS[:3]).info.run_id
    store.set_tag(incomplete, names.ERROR_TAG, "its disk was full")
    store.set_terminated(incomplete, "FAILED")
    clear_mlflow.evaluate(incomplete)
    run_ids = [track_loop(tags={"note": "mine"}, run_name="ä b/c"), incomplete]
    log_unusual_data(store, run_ids[0])
    exported = clear_mlflow.export("test", tmp_path / f"results{ending}")
    client = my_store()
    files, code = import_bundles(exported)
    assert ([file["outcome"] for file in files], code) == (["imported"] * 2, 0)
    copies = {client.get_run(f["run_id"]).data.tags[names.COPIED_FROM_TAG]: f for f in files}
    assert sorted(copies) == sorted(run_ids)
    for run_id in run_ids:
        source, copy_id = store.get_run(run_id), copies[run_id]["run_id"]
        described, expected = describe_run(client, copy_id), describe_run(store, run_id)
        for description in (described, expected):
            histories_by_name = sorted(description["histories"].items())
            description["histories"] = repr(histories_by_name)  # NaN equals NaN
            # MLflow's own tags name the user and the program of the store.
            tags = description["tags"].items()
            description["tags"] = {key: x for key, x in tags if not key.startswith("mlflow.")}
        assert described == expected
        scores = read_scores(client, client.get_run(copy_id))
        assert scores.changes.is_empty
        values = read_scores(store, source).results.values_by_name
        assert scores.results.values_by_name == values
    again, code = import_bundles(exported)
    assert ([file["outcome"] for file in again], code) == (["there already"] * 2, 0)
    assert {file["run_id"] for file in again} == {file["run_id"] for file in files}
    compared = clear_mlflow.compare(["theirs", exported], group_by=(), log=False)
    assert len(compared.comparison.runs) == 2  # the copy and its bundle are one run
    exported_again = clear_mlflow.export("theirs", tmp_path / f"again{ending}")
    run_names = {run.name for run in clear_mlflow.runs(exported_again)}
    assert run_names == {store.get_run(run_id).info.run_name for run_id in run_ids}


def test_different_rows_are_rejected(store, my_store, experiment_id, tmp_path):
    run = stored_run(store, experiment_id)
    other = stored_run(store, experiment_id, seed=8)
    exported = clear_mlflow.export([run.info.run_id, other.info.run_id], tmp_path / "results")
    row = rows_folder(run) / "row_002.json"
    change(row, correct=[1, *json.loads(row.read_text())["correct"][1:]])
    files, code = import_bundles(exported)
    outcomes = {file["run_id"]: file["outcome"] for file in files}
    assert (outcomes[other.info.run_id], code) == ("there already", 2)
    (refused,) = (file for file in files if file["outcome"] == "failed")
    assert (
        f"row_002.json is stored with other numbers in run {run.info.run_id}" in refused["detail"]
    )
    clear_mlflow.export(run.info.run_id, tmp_path / "changed")
    my_store()
    assert import_bundles(exported)[1] == 0
    files, code = import_bundles(tmp_path / "changed")
    assert (files[0]["outcome"], code) == ("failed", 2)
    assert "with other numbers" in files[0]["detail"]


@pytest.mark.parametrize("contradiction", ["counts", "images", "tests"])
def test_a_bundle_whose_parts_contradict_each_other_is_rejected(
    store, my_store, experiment_id, tmp_path, contradiction
):
    if contradiction == "tests":
        folder = artifact_folder(store.get_run(track_loop())) / "anytime_accuracy"
        file = min(folder.iterdir())
        change(file, num_instances=[n + 1 for n in json.loads(file.read_text())["num_instances"]])
    else:
        run = kept_run(store, experiment_id)
        row = rows_folder(run) / "row_002.json"
        correct = json.loads(row.read_text())["correct"]
        changed = {"correct": [correct[0] - 1, *correct[1:]]}
        if contradiction == "images":
            for row in rows_folder(run).iterdir():
                change(row, num_instances=[101, 101])
        else:
            change(row, **changed)
    sound = stored_run(store, experiment_id, seed=9)
    exported = clear_mlflow.export("test", tmp_path / "results")
    client = my_store()
    files, code = import_bundles(exported)
    assert (sorted(file["outcome"] for file in files), code) == (["failed", "imported"], 2)
    (refused,) = (file for file in files if file["outcome"] == "failed")
    (imported,) = (file for file in files if file["outcome"] == "imported")
    assert imported["detail"].startswith("4 rows, ")  # without the untrained model's
    assert re.search("but the (stored )?rows? ha(ve|s)", refused["detail"])
    (run,) = client.search_runs([client.get_experiment_by_name("theirs").experiment_id])
    assert run.data.tags[names.COPIED_FROM_TAG] == sound.info.run_id


def test_a_folder_contains_bundles_and_other_results(
    store, my_store, experiment_id, empty_store, tmp_path
):
    folder = tmp_path / "results"
    run_id = stored_run(store, experiment_id).info.run_id
    clear_mlflow.export(run_id, folder / "deep" / "bundle")
    clear_mlflow.export(run_id, folder / "packed.tar.xz")
    matrix = clear_mlflow.load(run_id).matrix
    (folder / "matrix.json").write_text(format_matrix_json(matrix))
    client, offline_id = create_offline_folder(folder / "offline_runs")
    stored_run(client, offline_id)
    (folder / "packed.tar.xz").write_bytes((folder / "packed.tar.xz").read_bytes() + b"x")
    my_store()
    files, code = import_bundles(folder)
    outcomes = {file["file"]: file["outcome"] for file in files}
    assert code == 2
    assert outcomes == {
        "matrix.json": "imported",
        "deep/bundle": "imported",
        "packed.tar.xz": "failed",
        "offline_runs": "failed",
    }
    details = {file["file"]: file["detail"] for file in files}
    assert "clear-mlflow sync" in details["offline_runs"]
    assert "other bytes follow" in details["packed.tar.xz"]
    (refused,), _ = import_bundles(folder / "deep" / "bundle", "--strategy", "replay")
    assert refused["detail"].startswith("strategy is passed for bundle, whose runs are imported as")


@pytest.mark.slow
def test_a_published_archive_without_histories_is_imported(my_store):
    """The archives of docs/results.md have none: all metrics are computed from the rows."""
    client = my_store()
    archive = RESULTS / "weather.tar.xz"
    member = clear_mlflow.runs(archive)[0]
    files, code = import_bundles(f"{archive}/{Path(member.links[0].split()[-1]).name}")
    assert (files[0]["outcome"], code) == ("imported", 0)
    run = client.get_run(files[0]["run_id"])
    assert clear_mlflow.load(run.info.run_id).matrix.to_dict() == member.matrix.to_dict()
    assert (
        run.data.metrics["clear/challenge_score"] == member.metrics["clear/challenge_score"].value
    )
    assert run.data.params == member.entity.data.params


def copy_verbatim(source, target, run_id):
    """Copy a run as mlflow-export-import does: all tags as they are, a new id and start time."""
    run = source.get_run(run_id)
    experiment_id = target.get_experiment_by_name("theirs").experiment_id
    copy_id = target.create_run(experiment_id).info.run_id
    params = [Param(*item) for item in run.data.params.items()]
    metrics = [
        point for key in run.data.metrics for point in source.get_metric_history(run_id, key)
    ]
    tags = [RunTag(*item) for item in run.data.tags.items()]
    target.log_batch(copy_id, params=params)
    target.log_batch(copy_id, metrics=metrics)
    target.log_batch(copy_id, tags=tags)
    target.log_inputs(copy_id, datasets=run.inputs.dataset_inputs)
    target.log_artifacts(copy_id, run.info.artifact_uri.removeprefix("file://"))
    target.set_terminated(copy_id, run.info.status)
    return copy_id


@pytest.mark.slow
def test_a_verbatim_copy_by_another_program_is_scored_and_compared(store, my_store, experiment_id):
    """Its tags name another run, its parent does not exist, and its process is gone."""
    run_ids = [track_loop(seed=seed) for seed in (0, 1)]
    lease = {**json.loads(build_lease_tags()[names.HOLDER_TAG]), "pid": 2**22 + 1}
    for tag, text in {
        names.HOLDER_TAG: json.dumps(lease),
        names.PROCESS_TAG: json.dumps(lease),
        "mlflow.parentRunId": "0" * 32,
    }.items():
        store.set_tag(run_ids[1], tag, text)
    store.update_run(run_ids[1], status="RUNNING")
    expected = [clear_mlflow.load(run_id) for run_id in run_ids]
    client = my_store()
    copy_ids = [copy_verbatim(store, client, run_id) for run_id in run_ids]
    results = list(clear_mlflow.evaluate(copy_ids))
    assert [result.is_problem for result in results] == [False, False]
    assert [client.get_run(copy_id).info.status for copy_id in copy_ids] == ["FINISHED", "KILLED"]
    for copy_id, original in zip(copy_ids, expected, strict=True):
        loaded = clear_mlflow.load(copy_id)
        assert loaded.scores.changes.is_empty
        assert loaded.matrix.to_dict() == original.matrix.to_dict()
        assert histories(client, copy_id) == histories(store, original.run_id)
    compared = clear_mlflow.compare("theirs", log=False)
    assert {run.run_id for run in compared.comparison.runs} == {*copy_ids}
