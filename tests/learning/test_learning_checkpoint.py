"""Training states: every strategy resumes after every bucket, identical to the bit."""

import copy
import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from feature_streams import training
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_streams import config
from ports import free_port
from safetensors.torch import load, save
from strategy_runs import (
    assert_identical,
    assert_resumes_everywhere,
    build_strategy,
    feature_stream,
    image_stream,
    on_features,
    train_all,
    train_with_states,
)
from torch import nn

from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning import session
from clear_mlflow.learning.checkpoint import (
    parse_state,
    restore_snapshot,
    serialize_state,
    take_snapshot,
)
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import join_indices, list_bucket_indices
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.strategies import list_strategies, load_strategy
from clear_mlflow.learning.strategies._base import (
    Strategy,
    _get_generator_state,
    _set_generator_state,
    build_untrained_model,
)

ON_FEATURES_ALONE = ("linear", "ncm", "slda")


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [{"optimizer_state": "reset"}, {"optimizer_state": "keep", "optimizer": "adam", "lr": "0.02"}],
    ids=["reset", "adam kept"],
)
@pytest.mark.parametrize("strategy", list_strategies())
def test_on_features(strategy, recipe):
    assert_resumes_everywhere(feature_stream, on_features(strategy=strategy, **recipe))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(set(list_strategies()) - set(ON_FEATURES_ALONE)))
def test_on_images(tmp_path, strategy):
    settings = config(strategy=strategy, optimizer_state="keep")
    assert_resumes_everywhere(lambda: image_stream(tmp_path), settings)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    "buffer", ["reservoir", "biased_reservoir", "class_balanced", "greedy_balanced"]
)
def test_with_every_buffer(buffer):
    alpha = ",alpha=0.5n/k" if buffer == "biased_reservoir" else ""
    for batches in ("shuffled", "balanced"):
        args = f"buffer={buffer}{alpha},batches={batches}"
        settings = on_features(strategy="replay", strategy_args=args)
        assert_resumes_everywhere(feature_stream, settings)


class Lazy(nn.Sequential):
    """A custom model, with a layer that gets its shape from the first images."""

    def __init__(self, num_classes, image_size):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        self.append(nn.LazyLinear(num_classes))


@pytest.mark.parametrize("strategy", ["from_scratch", "ewc"])
def test_a_custom_model(tmp_path, strategy):
    settings = config(strategy=strategy, model=f"{__name__}:Lazy")
    assert_resumes_everywhere(lambda: image_stream(tmp_path), settings)


class Own(Strategy):
    """A custom strategy with many kinds of state, on which its loss depends."""

    state_attributes = ("_teacher", "_noise", "_kept", "_scale", "_own_steps", "_other", "_picks")
    temporary_attributes = ("_weights", "_batches")

    def __init__(self, config, stream, model, arguments):
        super().__init__(config, stream, model, arguments)
        self._teacher = copy.deepcopy(model)
        self._noise = torch.zeros(())
        self._weights = [model.weight]
        self._kept = {"weights": (), 3: [None, True, 1.5, np.arange(2)]}
        self._scale = nn.Parameter(torch.ones(()))
        self._own_steps = torch.optim.Adam([self._scale])
        self._other = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        self._batches = iter(())
        self._picks = list_bucket_indices(0, 1)  # a frozen dataclass

    def compute_loss(self, forward, batch):
        self._batches = iter([batch])
        self._noise = self._noise + len(self._picks) * 1e-3
        factor = 1 + self._noise + self._other.sum() * 1e-4
        loss = super().compute_loss(forward, batch) * factor
        loss = loss + (forward(batch.inputs) - self._teacher(batch.inputs)).square().mean()
        return loss + 1e-3 * self._scale.detach() * self._weights[0].square().sum()

    def after_bucket(self, bucket_index):
        self._teacher.load_state_dict(self.model.state_dict())
        self._picks = join_indices(self._picks, list_bucket_indices(bucket_index, 2))
        self._noise = torch.rand(()) + random.random() + np.random.rand()
        self._kept["weights"] = (self.model.weight.detach().clone(), {(1, 2): "text"})
        self._scale.grad = self._noise.clone()
        self._own_steps.step()


class Silent(Own):
    """Does not declare two attributes."""

    temporary_attributes = ()


class Unset(Own):
    state_attributes = (*Own.state_attributes, "_later")


class Late(Strategy):
    def after_bucket(self, bucket_index):
        self.steps = bucket_index


class Unkeepable(Own):
    state_attributes = (*Own.state_attributes, "_batches")
    temporary_attributes = ("_weights",)


class Twice(Own):
    """Stores a weight of the model."""

    state_attributes = (*Own.state_attributes, "_weights")
    temporary_attributes = ("_batches",)


@pytest.mark.parametrize(
    ("strategy_class", "message"),
    [
        (Silent, "Silent sets _batches, _weights; .*state_attr.*temporary_attr.*--resumable off"),
        (Unset, "names _later in state_attributes and has not set it; .*--resumable off"),
        (Unkeepable, "strategy/_batches is a builtins.tuple_iterator, .*temporary_attributes"),
        (Twice, "_weights in state_attributes of strategy Twice is a weight of the model"),
    ],
)
def test_attributes_that_are_not_saved_are_named(strategy_class, message):
    parameters = on_features(strategy=f"{__name__}:{strategy_class.__name__}")
    with pytest.raises(StateError, match=message):
        next(train(feature_stream(), parameters, progress=TrainingProgress()))
    assert len(train_all(feature_stream(), dataclasses.replace(parameters, resumable="off"))) == 4


def test_an_attribute_that_appears_later_is_named_by_its_state():
    states = []
    rows = training(on_features(strategy=f"{__name__}:Late")).rows(states.append)
    assert [measured.row.row for measured in rows] == [0, 1, 2, 3]
    assert [message.state is None for message in states] == [False, True, True]
    assert "strategy Late sets steps; name each" in states[1].state_problem


class Drawing(Strategy):
    """Scales its loss by draws from its own generators, and by a sum of them."""

    state_attributes = ("_numpy", "_legacy", "_philox", "_python", "_torch", "_sum")

    def setup(self):
        self._numpy = np.random.default_rng(self.config.seed)
        self._legacy = np.random.Generator(np.random.MT19937(self.config.seed))
        self._philox = np.random.Generator(np.random.Philox(self.config.seed))
        self._python = random.Random(self.config.seed)
        self._sum = np.float32(0)  # a sum of 64 bits would have other last digits
        self._torch = torch.Generator().manual_seed(self.config.seed)
        self._numpy.integers(9, dtype=np.uint32)  # half of a number remains

    def compute_loss(self, forward, batch):
        draws = [self._numpy.normal(), self._legacy.normal(), self._philox.normal()]
        draws += [self._python.gauss(0, 1), torch.randn((), generator=self._torch).item()]
        self._sum = self._sum + np.float32(draws[0])
        scale = 1 + (sum(draws) + self._sum.item()) ** 2 / 100
        return super().compute_loss(forward, batch) * scale


@pytest.mark.parametrize("strategy", ["Own", "Drawing"])
def test_a_custom_strategy(strategy):
    assert_resumes_everywhere(feature_stream, on_features(strategy=f"{__name__}:{strategy}"))


@pytest.mark.parametrize(("name", "position"), [("MT19937", "pos"), ("Philox", "buffer_pos")])
def test_a_generator_that_points_beyond_its_numbers_is_rejected(name, position):
    """Numpy would read foreign memory."""
    generator = np.random.Generator(getattr(np.random, name)(0))
    state = _get_generator_state(generator)
    (state if position in state else state["state"])[position] = 9999
    with pytest.raises(ValueError, match="numbers"):
        _set_generator_state(generator, state)


def test_a_state_follows_its_row():
    """Each row except the last has one, so that a resume does not repeat the row."""
    order = []
    made = training(on_features(strategy="replay", optimizer_state="keep", momentum="0.9"))
    for measured in made.rows(lambda message: order.append(parse_state(message.state).row.row)):
        order.append(f"row {measured.row.row}")
    assert order == ["row 0", 0, "row 1", 1, "row 2", 2, "row 3"]


def test_a_state_that_cannot_be_made_ends_the_training(monkeypatch):
    monkeypatch.setattr(session, "serialize_state", mock.Mock(side_effect=ZeroDivisionError))
    rows = training(on_features(strategy="naive")).rows()
    assert next(rows).row.row == 0
    with pytest.raises(ZeroDivisionError):
        next(rows)


class Keeping(Strategy):
    state_attributes = ("extra",)
    extra = None


@pytest.mark.parametrize(
    ("value", "message"),
    [({1, 2}, "builtins.set"), (np.array(["text"]), "array of <U4"), (lambda: 1, "function")],
)
def test_values_that_cannot_be_saved(keeping, value, message):
    model, strategy, trainer = keeping
    strategy.extra = value
    with pytest.raises(StateError, match=message):
        take_snapshot(model, strategy, trainer)


def parts(strategy, **changes):
    parameters, stream = on_features(strategy=strategy, **changes), feature_stream()
    model = build_untrained_model(load_strategy(parameters.strategy), stream, parameters)
    return model, *build_strategy(stream, parameters, model)


ARRAYS = [np.array([0, 1], dtype=kind) for kind in ("float32", "float64", "int64", "uint8", "bool")]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.integers(-(2**70), 2**70),
    st.text(max_size=5),
    st.sampled_from(ARRAYS),
    st.lists(st.floats(-1, 1), max_size=4).map(torch.tensor),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(first, other):
    if type(first) is not type(other):
        return False
    if isinstance(first, (torch.Tensor, np.ndarray)):
        return first.dtype == other.dtype and bool((first == other).all())
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(same, first, other))
    if isinstance(first, dict):
        return list(first) == list(other) and all(map(same, first.values(), other.values()))
    return first == other


@pytest.fixture(scope="module")
def keeping():
    return parts(f"{__name__}:Keeping")


FIRST_ROW = AccuracyRow(0, ("1",), (0,), (1,))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(value=VALUES)
def test_values_round_trip(keeping, value):
    model, strategy, trainer = keeping
    strategy.extra = value
    saved = parse_state(serialize_state(take_snapshot(model, strategy, trainer), FIRST_ROW, None))
    strategy.extra = None
    restore_snapshot(saved.snapshot, model, strategy, trainer)
    assert same(strategy.extra, value)
    assert (saved.row, saved.predictions) == (FIRST_ROW, None)


def test_frozen_weights_stay_frozen():
    """As a custom class may have frozen them."""
    model, strategy, trainer = parts("naive")
    model.bias.requires_grad_(False)
    saved = parse_state(serialize_state(take_snapshot(model, strategy, trainer), FIRST_ROW, None))
    model, strategy, trainer = parts("naive")
    restore_snapshot(saved.snapshot, model, strategy, trainer)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["strategy"]["dict"].append(["learn", 1]), "has _buffer, learn of the strat"),
        (lambda d: d.update(strategy={"dict": []}), "expected _buffer"),
        (lambda d: d.update(strategy={"pickle": "cos"}), "is damaged"),
        (lambda d: d.update(trained=3), "not fit this model"),
        (lambda d: d.update(random=3), "not fit this model"),
    ],
)
def test_invalid_state_descriptions_are_rejected(change, message):
    state = train_with_states(feature_stream(), on_features(strategy="replay"))[1][1]
    length = int.from_bytes(state[:8], "little")
    described = json.loads(json.loads(state[8 : 8 + length])["__metadata__"]["clear_mlflow"])
    change(described)
    state = save(load(state), metadata={"clear_mlflow": json.dumps(described)})
    with pytest.raises(StateError, match=message):
        restore_snapshot(parse_state(state).snapshot, *parts("replay"))


@pytest.mark.slow
def test_two_processes_continue_from_the_state_of_one(tmp_path):
    together = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    together["MASTER_PORT"] = str(free_port())
    worker = Path(__file__).parents[1] / "support" / "resume_worker.py"
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(tmp_path)],
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    assert {path.name for path in tmp_path.glob("*.txt")} == {"0.txt", "1.txt"}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("log_models", ["all", "last", "none"])
def test_a_resumed_training_has_the_weights_of_its_row(tmp_path, log_models):
    """So that weights which were not stored before a kill are stored now."""
    parameters = {"features": "made_up", "device": "cpu", "epochs": "2", "log_models": log_models}
    settings = TrainConfig.resolve(parameters)
    states = []
    rows = list(training(settings).rows(states.append))
    file = tmp_path / "state.safetensors"
    file.write_bytes(states[1].state)
    resumed = list(training(settings, saved=file).rows())
    assert [measured.row for measured in resumed] == [measured.row for measured in rows[1:]]
    for resumed_row, first in zip(resumed, rows[1:], strict=True):
        assert (resumed_row.model is None) == (first.model is None)
        if first.model is not None:
            assert_identical(load(resumed_row.model), load(first.model))
