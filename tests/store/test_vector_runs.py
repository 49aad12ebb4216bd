"""Runs on vectors and on new classes: what they store."""

import json

import pytest
from stored_runs import artifact_folder, load_rows, only_training

import clear_mlflow
from clear_mlflow.core.record import assemble

pytestmark = pytest.mark.slow

QUICK = {"epochs": 3, "device": "cpu", "precision": "off"}


def read_profile(run):
    return json.loads(run.inputs.dataset_inputs[0].dataset.profile)


@pytest.mark.parametrize("standardise", ["first", "past"])
def test_a_run_on_the_weather(store, experiment_id, standardise):
    options = {"dataset_args": {"standardise": standardise}, "log_models": "all"}
    clear_mlflow.train(dataset="weather", **options, **QUICK)
    run = only_training(store, experiment_id)
    rows = load_rows(run)
    record = assemble(rows)
    assert (record.dataset.name, record.dataset.times[1].isoformat()) == ("weather", "2012-07-01")
    assert rows["row_003.json"].extra["features"]["name"] == "vectors"
    params, profile = run.data.params, read_profile(run)
    assert params["dataset/standardise"] == standardise
    assert (params["model"], params["features"]) == ("linear", "vectors")
    assert profile["absent_classes"]["train"]["2012-H1"] == ["fog"]
    assert profile["warnings"] == [
        "13 (class, bucket) pairs have no training images, for example class 'fog' in bucket "
        "'2012-H1'"
    ]
    assert profile["licence"] == "public domain (NOAA)"
    assert "class_changes/vanished" in run.data.metrics
    assert "Classes over time" in (artifact_folder(run) / "report.html").read_text()


def test_runs_on_new_classes(store, experiment_id):
    options = {"scenario": "task", "scenario_args": {"times": "all"}, "log_models": "all"}
    clear_mlflow.train(features="pixels", **options, **QUICK)
    run = only_training(store, experiment_id)
    rows = load_rows(run)
    expected = {"name": "task", "classes_per_bucket": 2, "order": "labels", "times": "all"}
    for row in rows.values():
        assert expected.items() <= row.extra["scenario"].items()
        assert row.extra["scenario"]["classes"][4] == ["8", "9"]
    assert assemble(rows).dataset.name == run.data.tags["dataset"] == "digits (task)"
    assert run.data.params["scenario/times"] == "all"
    assert read_profile(run)["scenario"]["name"] == "task"
    assert read_profile(run)["warnings"] == []  # of classes that come later
