"""Trainings on new classes, compared with Avalanche's class-incremental benchmark.

Both programs get the same images, order of classes and full batches, as in
test_parity_avalanche.py, so that weights and cells agree.
"""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training import plugins
from avalanche.training.supervised import Naive
from plain_avalanche import (
    DerOfAllImages,
    DerOfLastStep,
    LwfInEvaluation,
    LwfOfAllClasses,
    PerImageEwc,
    differentiate_true_labels_only,
    train_by_avalanche,
)
from strategy_runs import flatten_weights, learn_buckets, on_features, train_rows
from torch import nn
from torch.utils.data import TensorDataset

from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.core.predictions import RowPredictions
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import load_features
from clear_mlflow.data.scenarios import apply_scenario
from clear_mlflow.learning.loop import measure
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import FeatureStream
from clear_mlflow.learning.session import prepare_training, resolve_config

CPU = torch.device("cpu")
ORDER = (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)
EPOCHS = 4
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def stream():
    """The digits in five buckets of two classes, as pixels."""
    digits = load_stream("digits", "auto", cache_dir=default_cache_dir())
    arguments = {"order": ":".join(map(str, ORDER)), "times": "all"}
    made = apply_scenario(digits, "class", arguments)
    features = load_features(made, "pixels", cache_dir=default_cache_dir())
    return FeatureStream(made, features, device=CPU)


def network(width):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, 10))


def cells(model, stream):
    return measure(model, stream.test(), device=CPU).correct


def measure_own(stream, strategy, **changes):
    parameters = {"batch_size": "full", "epochs": str(EPOCHS), "lr": "0.05", "lr_step": "100"}
    parameters |= {"optimizer_state": "keep", "memory": "2000", "strategy": strategy}
    model = network(stream.width)
    trained = learn_buckets(stream, on_features(**{**parameters, **changes}), model)
    return [(flatten_weights(model), cells(model, stream)) for model in trained]


def measure_avalanche(stream, plugin=None, strategy=Naive):
    parts = [stream.train(bucket_index) for bucket_index in range(len(stream.keys))]
    parts = [(part.images.clone(), part.labels.clone()) for part in parts]
    images, labels = (torch.cat(of) for of in zip(*parts, strict=True))
    dataset = TensorDataset(images, labels)
    dataset.targets = labels.tolist()  # type: ignore[attr-defined]  # where Avalanche looks
    dataset = as_classification_dataset(dataset)
    benchmark = nc_benchmark(dataset, dataset, 5, task_labels=False, fixed_class_order=list(ORDER))
    trained = train_by_avalanche(
        benchmark, network(stream.width), plugin, strategy, lr=0.05, epochs=EPOCHS
    )
    return [(flatten_weights(model), cells(copy.deepcopy(model), stream)) for model in trained]


def apart(first, other):
    return [(a - b).abs().max().item() for (a, _), (b, _) in zip(first, other, strict=True)]


def assert_same(first, other):
    assert max(apart(first, other)) < TOLERANCE
    assert [row for _, row in first] == [row for _, row in other]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("strategy", "arguments", "plugin"),
    [
        ("naive", "none", lambda: None),
        ("replay", "batches=balanced", lambda: plugins.ReplayPlugin(mem_size=2000)),
        ("ewc", "strength=2,images=0", lambda: PerImageEwc(ewc_lambda=1.0)),
        ("lwf", "strength=1,temperature=2", lambda: LwfOfAllClasses(alpha=1, temperature=2)),
    ],
)
def test_weights_and_cells_equal_nc_benchmarks(stream, monkeypatch, strategy, arguments, plugin):
    differentiate_true_labels_only(monkeypatch)
    cells = measure_own(stream, strategy, strategy_args=arguments)
    assert_same(cells, measure_avalanche(stream, plugin()))
    # Of the first classes, next to nothing is left where no image of theirs or weight is held.
    assert (cells[-1][1][0] < cells[0][1][0] / 10) == (strategy in ("naive", "lwf"))


def test_derpp_equals_avalanches_if_all_images_are_stored(stream):
    """Then its one batch of the memory equals our two. Its logits are from the end of a bucket."""
    cells, options = measure_own(stream, "derpp"), {"mem_size": 2000, "alpha": 0.5, "beta": 0.5}
    assert_same(cells, measure_avalanche(stream, strategy=partial(DerOfLastStep, **options)))
    as_it_is = measure_avalanche(stream, strategy=partial(DerOfAllImages, **options))
    assert apart(cells, as_it_is)[-1] > 100 * TOLERANCE


def test_lwf_distils_future_classes(stream):
    """Avalanche's LwF distils only seen classes: equal in the first two buckets."""
    cells = measure_own(stream, "lwf", strategy_args="strength=1,temperature=2")
    other = measure_avalanche(stream, LwfInEvaluation(alpha=1, temperature=2))
    first, second, *_ = apart(cells, other)
    assert first < TOLERANCE < second


def test_after_the_first_bucket_only_its_classes_are_predicted(stream):
    (_, first), *_, (_, last) = measure_own(stream, "naive", epochs="30")
    assert first[0] > 0
    assert sum(first[1:]) == 0
    assert last[-1] > last[0]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("strategy", ["naive", "replay", "lwf", "ewc", "derpp"])
def test_predictions_of_a_task_are_its_classes(tmp_path, strategy):
    rows = {}
    for scenario in ("class", "task"):
        parameters = {"scenario": scenario, "scenario_args": "times=all", "features": "pixels"}
        parameters |= {"strategy": strategy, "epochs": "3", "lr_step": "2", "lr": "0.1"}
        parameters |= {"memory": "50", "device": "cpu"}
        made = prepare_training(resolve_config(TrainConfig.resolve(parameters)), TrainingProgress())
        assert made.dataset.scenario == {
            "name": scenario,
            "classes_per_bucket": 2,
            "order": "labels",
            "times": "all",
            "classes": [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"], ["8", "9"]],
        }
        *_, last = made.rows()
        file = tmp_path / "row_005.safetensors"
        file.write_bytes(last.predictions)
        rows[scenario] = RowPredictions.load(file).labels
    truth = np.concatenate([bucket.labels for bucket in made.stream.test])
    assert (rows["task"] // 2 == truth // 2).all()
    same_task = rows["class"] // 2 == truth // 2
    assert (rows["class"] == rows["task"])[same_task].all()
    assert (rows["task"] == truth).mean() > (rows["class"] == truth).mean()


@pytest.mark.parametrize("strategy", ["replay", "lwf", "ncm"])
@pytest.mark.parametrize("scenario", ["class", "task"])
def test_late_labels_of_new_classes_give_the_rows_of_earlier_models(scenario, strategy):
    digits = load_stream("digits", "auto", cache_dir=default_cache_dir())
    made = apply_scenario(digits, scenario, {"order": "seed:1", "classes_per_bucket": 3})
    features = load_features(made, "pixels", cache_dir=default_cache_dir())
    options = {"strategy": strategy, "epochs": "1", "lr": "0.1", "scenario": scenario}
    in_time, late = (
        train_rows(
            FeatureStream(made, features, device=CPU), on_features(label_delay=delay, **options)
        )[0]
        for delay in ("off", "1")
    )
    correct = [row.correct for row in in_time]
    assert [row.correct for row in late] == [correct[0], *correct[:-1]]
    assert len({*correct}) >= len(made.train)  # of one class, a task needs no training
