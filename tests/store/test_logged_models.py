"""Stored weights as MLflow models: loaded, served, ranked and registered by MLflow alone."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from kept_predictions import rescore
from mlflow.pyfunc.scoring_server import init
from released_layout import write_released
from safetensors.numpy import load_file, save_file
from stored_runs import artifact_folder
from torch import nn

from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import (
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.data.features import load_features
from clear_mlflow.learning.inference.description import ModelDescription, read_description
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
from clear_mlflow.learning.strategies import Strategy
from clear_mlflow.tracking.tracked_training import train_in_process

SMALL = {"dataset": "clear10", "model": "small_cnn", "image_size": "24", "epochs": "2"}
SMALL |= {"batch_size": "4", "device": "cpu", "lr": "0.05", "precision": "off", "log_models": "all"}
BUCKETS = 3
FAST = {"dataset": "digits", "epochs": "1", "device": "cpu", "precision": "off"}
FAST |= {"log_models": "all", "predictions": "none"}

# Asks a model about image files; nothing of what trains may be imported on the way.
ASK = """
import json, sys, mlflow, pandas as pd
address, paths = json.load(sys.stdin)
model = mlflow.pyfunc.load_model(address)
images = [open(path, "rb").read() for path in paths]
answers = model.predict(pd.DataFrame({"image": images}))
trains = ("loop", "session", "training.trainer", "strategies", "prepare")
loaded = [name for name in trains if "clear_mlflow.learning." + name in sys.modules]
loaded += [name for name in ("tracking", "api", "process") if "clear_mlflow." + name in sys.modules]
print(json.dumps([answers["class"].tolist(), answers["label"].tolist(), loaded]))
"""


def stored_models(store, run):
    condition = f"source_run_id = '{run.info.run_id}'"
    models = store.search_logged_models([run.info.experiment_id], condition)
    return {int(m.tags["clear_mlflow.row"]): m for m in models if m.status == "READY"}


def ids_by_row(store, run):
    return {row: model.model_id for row, model in stored_models(store, run).items()}


def train_run(store, experiment_id, **options):
    config = resolve_config(TrainConfig.resolve(options))
    train_in_process(store, prepare_training(config, TrainingProgress()), options)
    return store.search_runs([experiment_id], order_by=["attributes.start_time DESC"])[0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    keys = [str(j + 1) for j in range(BUCKETS)]
    return write_released(tmp_path_factory.mktemp("photos"), buckets=keys, train=4, test=5)


@pytest.fixture
def run(store, experiment_id, photos, fill_once):
    return fill_once(store, lambda: train_run(store, experiment_id, **SMALL, data_root=str(photos)))


class Tied(Strategy):
    """A custom network with two layers that share weights."""

    @classmethod
    def build_model(cls, config, stream):
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        second.weight = first.weight
        pool, head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, stream.num_classes)
        return nn.Sequential(pool, nn.Flatten(), nn.Linear(3, 8), first, second, head)


def test_models_with_tied_weights_are_stored(store, experiment_id, photos):
    parameters = {**SMALL, "data_root": str(photos), "strategy": f"{__name__}:Tied"}
    run = train_run(store, experiment_id, **parameters, predictions="none")
    assert (run.info.status, stored_models(store, run)) == ("FINISHED", {})
    for row in range(BUCKETS + 1):
        weights = load_file(artifact_folder(run) / "models" / f"after_{row:03d}.safetensors")
        assert np.array_equal(weights["3.weight"], weights["4.weight"])
        assert not np.array_equal(weights["3.bias"], weights["4.bias"])


@pytest.mark.slow
def test_mlflow_alone_loads_the_model_of_row_three(store, run, photos):
    folder = artifact_folder(run) / "predictions"
    images = EvaluationSet.load(folder / "evaluation_set.safetensors")
    files = (path for path in photos.rglob("*") if path.is_file())
    by_content = {hashlib.sha256(path.read_bytes()).digest()[:16]: path for path in files}
    paths = [str(by_content[content.tobytes()]) for content in images.content]
    process = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([f"models:/{stored_models(store, run)[3].model_id}", paths]),
        env={**os.environ, "MLFLOW_TRACKING_URI": store.tracking_uri},
        text=True,
        capture_output=True,
        check=True,
    )
    classes, labels, loaded = json.loads(process.stdout.splitlines()[-1])
    assert loaded == []
    stored = RowPredictions.load(folder / format_predictions_file_name(3))
    assert classes == stored.labels.tolist()
    assert labels == [images.class_names[number] for number in classes]
    assert len(set(classes)) > 1


def test_each_row_is_a_model_with_its_accuracies(store, run):
    models = stored_models(store, run)
    assert sorted(models) == [0, 1, 2, 3]
    outputs = store.get_run(run.info.run_id).outputs.model_outputs
    assert {o.model_id: o.step for o in outputs} == {m.model_id: row for row, m in models.items()}
    (dataset,) = (dataset_input.dataset for dataset_input in run.inputs.dataset_inputs)
    for name in (f"test_accuracy/bucket_{j + 1:02}" for j in range(BUCKETS)):
        history = {m.step: m.value for m in store.get_metric_history(run.info.run_id, name)}
        assert len(store.get_metric_history(run.info.run_id, name)) == len(history) == 4
        for row, model in models.items():
            (metric,) = (m for m in model.metrics if m.key == name)
            assert (metric.value, metric.step) == (history[row], row)
            assert (metric.dataset_name, metric.dataset_digest) == (dataset.name, dataset.digest)
    assert models[2].params["strategy"] == "naive"
    assert models[2].params["bucket"] == "2"


def test_a_model_server_predicts_raw_images_of_any_size(store, run, photos):
    model = mlflow.pyfunc.load_model(f"models:/{stored_models(store, run)[3].model_id}")
    contents = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[:3]]
    direct = model.predict(pd.DataFrame({"image": contents}))
    records = [{"image": base64.b64encode(content).decode()} for content in contents]
    response = TestClient(init(model)).post("/invocations", json={"dataframe_records": records})
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    assert [prediction["label"] for prediction in predictions] == direct["label"].tolist()
    assert all(0 < prediction["probability"] <= 1 for prediction in predictions)


def test_nothing_in_a_model_is_a_pickle(store, run):
    folder = Path(stored_models(store, run)[1].artifact_location.removeprefix("file://"))
    files = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert files == {"", ".yaml", ".txt", ".json", ".safetensors"}


def test_rescoring_logs_missing_models(store, run):
    before = ids_by_row(store, run)
    rescore(store, run)
    assert ids_by_row(store, run) == before
    store.delete_logged_model(before[2])
    rescore(store, run, dry_run=True)
    assert sorted(ids_by_row(store, run)) == [0, 1, 3]
    store.finalize_logged_model(before[1], "FAILED")
    verdict = rescore(store, run)
    assert not verdict.is_problem, verdict.detail
    after = ids_by_row(store, run)
    assert after.keys() == before.keys()
    assert {row for row in before if before[row] != after[row]} == {2}
    assert len(stored_models(store, run)[1].metrics) == BUCKETS


SETTINGS = {
    "task": {"scenario": "task", "model": "small_cnn"},
    "task on features": {"scenario": "task", "features": "pixels"},
    "class": {"scenario": "class", "model": "small_cnn"},
    "probabilities": {"scenario": "task", "model": "small_cnn", "predictions": "probs"},
    "ncm": {"features": "pixels", "strategy": "ncm"},
    "slda": {"features": "pixels", "strategy": "slda", "scenario": "task"},
    "cwr": {"strategy": "cwr", "model": "small_cnn"},
    "ensemble": {"features": "pixels", "seeds": "0,1"},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting_name", SETTINGS)
def test_a_model_predicts_as_its_row_was_measured(store, experiment_id, setting_name):
    parameters = {**FAST, "predictions": "labels", **SETTINGS[setting_name]}
    if "scenario" in parameters:
        parameters["scenario_args"] = "times=all"
    training = prepare_training(resolve_config(TrainConfig.resolve(parameters)), TrainingProgress())
    train_in_process(store, training, parameters)
    is_task = parameters.get("scenario") == "task"
    keys, sets = training.dataset.buckets, training.stream.test
    if "features" in parameters:
        features = load_features(training.stream, "pixels", cache_dir=default_cache_dir())
        inputs = [np.asarray(of_bucket) for of_bucket in features.test]
    else:
        images = ([path.read_bytes() for path in images.paths] for images in sets)
        inputs = [pd.DataFrame({"image": of_bucket}) for of_bucket in images]
    runs = [run for run in store.search_runs([experiment_id]) if stored_models(store, run)]
    assert len(runs) == (2 if "seeds" in parameters else 1)
    for run in runs:
        models = stored_models(store, run)
        assert sorted(models) == list(range(len(sets) + 1))
        for row in (0, 2, len(sets)):
            model = mlflow.pyfunc.load_model(f"models:/{models[row].model_id}")
            predictions = pd.concat(
                model.predict(of_bucket, params={"bucket": key} if is_task else None)
                for key, of_bucket in zip(keys, inputs, strict=True)
            )
            file = artifact_folder(run) / "predictions" / format_predictions_file_name(row)
            stored = RowPredictions.load(file)
            assert predictions["class"].tolist() == stored.labels.tolist()
            if stored.probabilities is not None:
                largest = stored.probabilities.max(axis=1).astype(np.float64)
                assert np.allclose(predictions["probability"], largest, atol=1e-3)


@pytest.mark.slow
def test_a_task_model_requires_the_bucket(store, experiment_id):
    run = train_run(store, experiment_id, **{**SETTINGS["task"], **FAST}, scenario_args="times=all")
    model = mlflow.pyfunc.load_model(f"models:/{stored_models(store, run)[5].model_id}")
    for params in (None, {"bucket": "6"}):
        with pytest.raises(RecordError, match=r"pass params=\{'bucket': KEY\}, one of \['1', '2'"):
            model.predict(model.input_example, params=params)
    (label,) = model.predict(model.input_example, params={"bucket": "2"})["label"]
    assert label in ("2", "3")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"image_size": value} for value in (10**7, "24", True)),
        *({"width": value} for value in (-1, 10**9)),
        *({"classes_by_bucket": value} for value in ({"1": ["c"]}, {"1": []}, ["a"])),
        *({"class_names": ["one"]}, {"num_classes": 10**9}, {"model": ["small_cnn"]}),
        *({"strategy": None}, {"requirements": 3}),
    ],
    ids=str,
)
def test_any_metadata_of_a_model_file_is_handled(tmp_path, wrong):
    description = ModelDescription(
        model="small_cnn", num_classes=2, class_names=("a", "b"), width=0, image_size=24,
        augment="none", precision="off", strategy="naive", dataset="digits",
        bucket="1", requirements=(),
    )  # fmt: skip
    path = tmp_path / "after_001.safetensors"
    tensors = {"weight": np.zeros(1, np.float32)}
    save_file(tensors, path, description.as_metadata())
    assert read_description(path) == description
    prediction = {**json.loads(description.as_metadata()["clear_mlflow"]), **wrong}
    save_file(tensors, path, {"clear_mlflow": json.dumps(prediction)})
    with pytest.raises(RecordError, match="is not a file of weights with a valid description"):
        read_description(path)


def test_damaged_weights_are_reported_in_one_line(store, run):
    file = artifact_folder(run) / "models" / "after_001.safetensors"
    store.delete_logged_model(stored_models(store, run)[1].model_id)
    save_file(load_file(file), file)
    for content in (file.read_bytes(), b"torn"):
        file.write_bytes(content)
        verdict = rescore(store, run)
        assert verdict.is_problem
        assert "after_001.safetensors is not a file of weights" in verdict.detail
