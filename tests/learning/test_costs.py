"""What a row cost: held against a count by hooks on every layer, and against a resumed run."""

import pytest
import torch
from feature_streams import CLASSES, WIDTH
from learning_streams import config
from strategy_runs import feature_stream, image_stream, on_features
from torch import nn

from clear_mlflow.learning import costs
from clear_mlflow.learning.checkpoint import read_state, to_bytes
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.registry import WITHOUT_STEPS, strategy_names
from clear_mlflow.learning.strategies import ewc

ON_FEATURES = {"linear", *WITHOUT_STEPS}
BY_GRADIENTS = sorted(set(strategy_names()) - ON_FEATURES)


def on_images(strategy, **changes):
    """Two epochs of three steps and less, the last of another size."""
    asked = {"epochs": "2", "batch_size": "4", "memory": "5", "image_size": "8"}
    return config(strategy=strategy, **{**asked, **changes})


def rows_of(stream, settings, saved=None):
    return list(train(stream, settings, progress=TrainingProgress(), saved=saved))


class LiteralCount:
    """What every convolution and linear layer computes, while it is entered, in both passes."""

    def __init__(self):
        self.forward = self.backward = 0
        self.is_off = False

    def __enter__(self):
        self.hook = nn.modules.module.register_module_forward_hook(self._passed)
        return self

    def __exit__(self, *_):
        self.hook.remove()

    def _passed(self, module, inputs, output):
        if self.is_off or not isinstance(module, (nn.Conv2d, nn.Linear)):
            return
        per_output = module.weight[0].numel()
        flops = 2 * output.numel() * per_output
        self.forward += flops
        if output.requires_grad:
            wanted = module.weight.requires_grad + inputs[0].requires_grad
            output.register_hook(lambda _: self._went_back(wanted * flops))

    def _went_back(self, flops):
        self.backward += flops


@pytest.mark.parametrize("strategy", BY_GRADIENTS)
def test_flops_are_those_of_every_layer(strategy, tmp_path, monkeypatch):
    """Three buckets of a small network, with all that the strategy adds to a step."""
    stream, settings = image_stream(tmp_path), on_images(strategy)
    fisher = []
    with LiteralCount() as literal:

        def counted_apart(model, inputs, labels, share):
            """One image at a time, one label at a time, beside the layers' hooks."""
            fisher.append((len(inputs), labels.shape[1]))
            literal.is_off = True
            found = squared(model, inputs, labels, share)
            literal.is_off = False
            return found

        squared = ewc.squared_gradients
        monkeypatch.setattr(ewc, "squared_gradients", counted_apart)
        trained = rows_of(stream, settings)
    expected, found = literal.forward + literal.backward, [one.row.cost for one in trained]
    with LiteralCount() as of_one:
        model = trained[-1].model.train().requires_grad_(True)
        model(torch.zeros(2, 3, 8, 8)).sum().backward()
    weights = sum(weight.numel() for weight in model.parameters())
    for images, labels in fisher:  # passes, and the sum of squares, weighted
        passes = of_one.forward + labels * of_one.backward
        expected += images * passes // 2 + 2 * images * labels * weights
    assert sum(cost.training_flops + cost.test_flops for cost in found) == expected
    tested = 12 * of_one.forward // 2
    assert [cost.test_flops for cost in found] == [tested] * 4
    assert found[0].training_flops == 0 < found[1].training_flops
    assert bool(fisher) == (strategy == "ewc")


@pytest.mark.parametrize("strategy", ["replay", "derpp", "ewc", "gdumb", "cwr"])
def test_a_resumed_run_costs_the_same(strategy, tmp_path):
    """From the state after any row: what is no fact of the machine is the same to the digit."""
    stream, settings = image_stream(tmp_path), on_images(strategy)
    states, costs = [], []
    for one in train(stream, settings, progress=TrainingProgress()):
        states.append(to_bytes(one.snapshot(), one.row, None))
        costs.append(one.row.cost)
    for row, state in enumerate(states):
        saved = read_state(state)
        assert saved.row.cost == costs[row]
        again = [one.row.cost for one in rows_of(stream, settings, saved)]
        assert list(map(of_all_machines, again)) == list(map(of_all_machines, costs[row + 1 :]))


def of_all_machines(cost):
    return {k: v for k, v in cost.as_json().items() if type(v) is int and k != "peak_bytes"}


def test_counting_changes_nothing(tmp_path, monkeypatch):
    """Not a bit of the weights, and no random draw: held against steps that nothing counts."""
    stream, settings = image_stream(tmp_path), on_images("agem")
    counted = rows_of(stream, settings)[-1].model.state_dict()
    monkeypatch.setattr(costs.FlopCounter, "__enter__", lambda counter: counter)
    monkeypatch.setattr(costs.FlopCounter, "__exit__", lambda *_: None)
    plain = rows_of(stream, settings)
    assert [one.row.cost.training_flops for one in plain] == [0] * 4
    for name, weight in plain[-1].model.state_dict().items():
        assert torch.equal(weight, counted[name]), name


def test_images_are_those_of_the_bucket_and_others(tmp_path):
    """Two epochs of 7, 6 and 5 images; up to 5 of the buffer are shuffled among them."""
    found = {}
    for strategy in ("naive", "replay", "er_ace", "cumulative", "gdumb", "joint"):
        rows = rows_of(image_stream(tmp_path / strategy), on_images(strategy))
        found[strategy] = [(one.row.cost.images, one.row.cost.replayed_images) for one in rows]
    assert found["naive"] == [(0, 0), (14, 0), (12, 0), (10, 0)]
    assert found["replay"] == [(0, 0), (14, 0), (12, 10), (10, 10)]
    assert found["er_ace"] == [(0, 0), (14, 0), (12, 16), (10, 8)]  # four in each step
    assert found["cumulative"] == [(0, 0), (14, 0), (12, 14), (10, 26)]
    assert found["joint"] == [(0, 0), (14, 22), (0, 0), (0, 0)]
    assert [sum(images) for images in found["gdumb"]] == [0, 10, 10, 10]


def test_bytes_are_those_of_images_and_state(tmp_path):
    """Of 8 pixels a side, 192 bytes an image; 32 more of each in a class-balanced buffer."""
    found = {}
    for strategy in ("naive", "replay", "si", "cumulative"):
        rows = rows_of(image_stream(tmp_path / strategy), on_images(strategy))
        weights = sum(w.numel() for w in rows[-1].model.parameters())
        found[strategy] = [one.row.cost.stored_bytes for one in rows]
        assert {one.row.cost.trainable_parameters for one in rows} == {weights}
    assert found["naive"] == [0] * 4
    of_classes = 3 * 8  # how many of each class were seen
    assert found["replay"][1:] == [5 * (192 + 32) + of_classes] * 3
    assert found["si"] == [3 * 4 * weights] * 4
    assert found["cumulative"] == [0, 7 * 192, 13 * 192, 18 * 192]


def test_closed_forms_follow_their_formulas():
    """Of features of WIDTH numbers, and as many images as a bucket has."""
    d, classes = WIDTH, CLASSES
    for strategy in WITHOUT_STEPS:
        rows = rows_of(feature_stream((9, 7)), on_features(strategy=strategy))
        found = [one.row.cost for one in rows]
        assert [cost.images for cost in found] == [0, 9, 7]
        flops = [2 * n * d + 2 * classes * d for n in (9, 7)]
        if strategy == "slda":
            more = d**3 // 3 + 2 * classes * d**2
            flops = [one + 2 * n * d**2 + more for one, n in zip(flops, (9, 7), strict=True)]
        assert [cost.training_flops for cost in found] == [0, *flops]
