"""Trainings on streams of vectors, standardised by past buckets only."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.predictions import RowPredictions
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import load_features
from clear_mlflow.learning.inference.served import load_served_model
from clear_mlflow.learning.models import build_feature_model
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import FeatureStream
from clear_mlflow.learning.session import prepare_training, resolve_config

CPU = torch.device("cpu")


def weather(standardise):
    options = {"cache_dir": default_cache_dir()}
    stream = load_stream("weather", "auto", arguments={"standardise": standardise}, **options)
    features = load_features(stream, "vectors", **options)
    return stream, FeatureStream(stream, features, device=CPU)


def training(**changes):
    parameters = {"dataset": "weather", "device": "cpu", "epochs": "5", "lr_step": "3", **changes}
    return prepare_training(resolve_config(TrainConfig.resolve(parameters)), TrainingProgress())


def raw(stream, bucket_index):
    return stream.train[bucket_index].vectors[:]


def raw_tests(stream):
    return np.concatenate([bucket.vectors[:] for bucket in stream.test])


@pytest.mark.parametrize("standardise", ["first", "past"])
def test_vectors_are_standardised_by_the_first_or_by_past_buckets(standardise):
    stream, placed = weather(standardise)
    for bucket_index in (0, 1, 4):
        placed.begin_bucket(bucket_index)
        fitted = range(bucket_index + 1 if standardise == "past" else 1)
        scaler = StandardScaler().fit(np.concatenate([raw(stream, k) for k in fitted]))
        for of in (0, bucket_index):
            expected = scaler.transform(raw(stream, of))
            np.testing.assert_allclose(placed.train(of).images.numpy(), expected, atol=1e-5)
        expected = scaler.transform(raw_tests(stream))
        np.testing.assert_allclose(placed.test().images.numpy(), expected, atol=1e-5)


def test_vectors_are_used_unchanged():
    stream, placed = weather("none")
    assert placed.train(2).images.numpy().tobytes() == raw(stream, 2).tobytes()


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "replay", "memory": "50"},
        {"strategy": "ncm"},
        {"strategy": "slda"},
        {"strategy": "derpp", "model": "mlp:16-8", "memory": "50"},
        {"strategy": "ewc", "dataset_args": "standardise=past"},
    ],
)
def test_strategies_learn_from_vectors(changes):
    rows = [measured.row for measured in training(**changes).rows()]
    assert len(rows) == 9
    assert sum(rows[1].cells[:1]) > sum(rows[0].cells[:1])


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("model", ["linear", "mlp:12"])
@pytest.mark.parametrize("standardise", ["first", "past"])
def test_a_stored_model_accepts_raw_vectors(tmp_path, model, standardise):
    made = training(model=model, dataset_args=f"standardise={standardise}", log_models="last")
    *_, last = made.rows()
    (tmp_path / "model.safetensors").write_bytes(last.model)
    (tmp_path / "row_008.safetensors").write_bytes(last.predictions)
    served = load_served_model(tmp_path / "model.safetensors")
    vectors = raw_tests(made.stream)
    expected = RowPredictions.load(tmp_path / "row_008.safetensors").labels
    assert served.predict(vectors)["class"].tolist() == expected.tolist()
    assert served.predict(pd.DataFrame(vectors))["class"].tolist() == expected.tolist()


def test_a_resumed_training_standardises_by_its_past(tmp_path):
    parameters = {"dataset_args": "standardise=past", "strategy": "replay", "memory": "40"}
    states = []
    full_run = list(training(**parameters).rows(states.append))
    (tmp_path / "state").write_bytes(states[4].state)
    resumed = replace(training(**parameters), saved=tmp_path / "state")
    assert [r.row for r in resumed.rows()] == [r.row for r in full_run[4:]]


def test_hidden_widths_come_from_the_model_name():
    model = build_feature_model("mlp:7-5", 3, num_classes=2)
    layers = [layer for layer in model.children() if hasattr(layer, "bias")]
    assert [(of.in_features, of.out_features) for of in layers] == [(3, 7), (7, 5), (5, 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "ncm", "model": "mlp:8"}, "computes a linear layer"),
        ({"strategy": "slda", "dataset_args": "standardise=past"}, "computes a linear layer"),
        ({"model": "resnet18"}, "stored features are for the models linear and mlp:WIDTH"),
        ({"dataset": "digits", "model": "mlp:8"}, "stored features are for the models"),
    ],
)
def test_options_that_conflict_with_vectors_are_one_line_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        training(**changes)
