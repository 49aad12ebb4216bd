"""A newcomer's own model and strategy, as complete commands on a real store."""

import json

import pytest
from forked import environment, run_forked, run_python
from mlflow import MlflowClient
from mlflow_stores import copy_store
from stored_runs import read_stored_rows

pytestmark = pytest.mark.slow

NETS = """
import os
import random
import numpy as np
import torch
from torch import nn
from clear_mlflow.learning.strategies import Strategy


class Small(nn.Module):
    def __init__(self, num_classes, image_size):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.LazyLinear(num_classes)

    def forward(self, inputs):
        if inputs.isnan().any():  # reads numbers, which the meta device lacks
            raise ValueError
        hidden = torch.relu(self.norm(self.conv(inputs)))
        return self.head(hidden.view(len(inputs), -1))


class Own(Strategy):
    @classmethod
    def build_model(cls, config, stream):
        return nn.Sequential(nn.Linear(stream.width, 8), nn.Linear(8, stream.num_classes))

    @classmethod
    def count_epochs(cls, config, arguments):
        return 1

    def criterion(self, logits, labels):
        return nn.functional.multi_margin_loss(logits, labels)


class Silent(Strategy):
    def setup(self):
        self.steps, self.draws = 0, []


class Late(Strategy):
    def after_bucket(self, bucket_index):
        self.steps = bucket_index
        if bucket_index == 3 and "STOP" in os.environ:
            raise SystemExit(3)


class Draws(Strategy):
    state_attributes = ("python", "numpy", "total")

    def setup(self):
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)
        self.total = np.float32(0)

    def after_bucket(self, bucket_index):
        self.total += np.float32(self.python.random() + self.numpy.random())
        with torch.no_grad():
            next(self.model.parameters()).mul_(float(self.total) / (bucket_index + 1))
        if bucket_index == 3 and "STOP" in os.environ:
            raise SystemExit(3)
"""
ON_FEATURES = ("--features", "pixels", "--epochs", "1", "--batch-size", "full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("custom code")
    copy_store(empty_store, folder)
    (folder / "nets.py").write_text(NETS)
    return folder


def run(folder, *arguments, code=0, start=run_forked, **variables):
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", **variables}
    done = start(*arguments, cwd=folder, env=environment(**variables), timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def find_last_run(folder):
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return client, client.search_runs(ids, order_by=["attributes.start_time DESC"])[0]


def read_correct(stored):
    return [row["correct"] for row in read_stored_rows(stored).values()]


def test_what_a_strategy_replaces_is_not_recorded_as_passed(folder):
    options = ("--strategy", "nets:Own", *ON_FEATURES, "--label-smoothing", "0.3")
    run(folder, "train", *options)
    _, stored = find_last_run(folder)
    params = stored.data.params
    for name in ("model", "weights", "epochs", "label_smoothing"):
        assert params[name] == "set by nets:Own"
    assert stored.data.tags["model"] == "set by nets:Own"
    assert (params["asked/epochs"], params["asked/label_smoothing"]) == ("1", "0.3")
    assert params["batch_size"] == "full"
    grouped_by = json.loads(stored.data.tags["clear_mlflow.parameters"])
    assert grouped_by["method"]["model"] == grouped_by["tuned"]["epochs"] == "set by nets:Own"
    options = ("--strategy", "joint", "--strategy-args", "epochs=2", *ON_FEATURES)
    run(folder, "train", *options)
    _, stored = find_last_run(folder)
    assert stored.data.params["epochs"] == "set by joint"
    assert stored.data.params["strategy/epochs"] == "2"


def test_a_custom_model_is_trained_stored_and_loaded(folder):
    options = ("--model", "nets:Small", "--epochs", "1", "--log-models", "last")
    run(folder, "train", *options)
    client, stored = find_last_run(folder)
    assert stored.data.params["model"] == stored.data.tags["model"] == "nets:Small"
    (model,) = client.search_logged_models([stored.info.experiment_id])
    program = (
        "import sys, mlflow, pandas\n"
        f"model = mlflow.pyfunc.load_model('models:/{model.model_id}')\n"
        "print(*model.predict(pandas.DataFrame(model.input_example)).columns)\n"
    )
    _, errors = run(folder, "-c", program, start=run_python, code=1)
    assert "set CLEAR_MLFLOW_MODEL=nets:Small if you know it" in errors
    printed, _ = run(folder, "-c", program, start=run_python, CLEAR_MLFLOW_MODEL="nets:Small")
    assert printed.strip() == "class label probability"
    # Its training state is gone: the run is complete. What it names is not imported even so.
    _, errors = run(folder, "train", "--resume", stored.info.run_id, code=2)
    assert errors.strip().endswith("pass --model nets:Small if you know it")


def test_a_custom_model_and_generators_continue_after_a_stop(folder):
    """The resumed run, which needs both names, has the rows of one that was not stopped."""
    options = ("--strategy", "nets:Draws", "--model", "nets:Small", "--epochs", "1")
    run(folder, "train", *options)
    expected = read_correct(find_last_run(folder)[1])
    run(folder, "train", *options, code=2, STOP="1")
    client, stopped = find_last_run(folder)
    assert read_correct(stopped) == expected[:4]
    resume = ("train", "--resume", stopped.info.run_id)
    _, errors = run(folder, *resume, *options[:2], code=2)
    assert errors.strip().endswith("pass --model nets:Small if you know it")
    run(folder, *resume, *options[:4])
    assert read_correct(client.get_run(stopped.info.run_id)) == expected


def test_missing_state_is_an_error_before_the_first_row(folder):
    for options in (ON_FEATURES, (*ON_FEATURES, "--seeds", "0,1"), (*ON_FEATURES, "--offline")):
        _, errors = run(folder, "train", "--strategy", "nets:Silent", *options, code=2)
        assert "strategy Silent sets draws, steps; name each in the class's state_attr" in errors
        assert "temporary_attributes, or pass --resumable off" in errors
        assert read_stored_rows(find_last_run(folder)[1]) == {}
    run(folder, "train", "--strategy", "nets:Silent", *ON_FEATURES, "--resumable", "off")


def test_the_reason_of_a_missing_state_is_repeated_at_the_resume(folder):
    _, errors = run(folder, "train", "--strategy", "nets:Late", *ON_FEATURES, code=2, STOP="1")
    assert errors.count("strategy Late sets steps; name each") == 1
    _, stored = find_last_run(folder)
    _, errors = run(folder, "train", "--resume", stored.info.run_id, "--strategy", "nets:Late")
    reason = "is resumed after row 0, its last state: after row 1, strategy Late sets steps; name"
    assert reason in errors
    assert "resumable=off" not in errors
